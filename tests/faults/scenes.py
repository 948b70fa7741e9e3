"""What every scene has: one operation, what it may leave behind, and what must be true at last."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Final

from tests.faults.world import World
from threadmill_sa import Threadmill

STATEMENTS_MAX: Final = 120
SMALL_BATCHES: Final[Mapping[str, int]] = {"INSERT_BATCH_MAX": 2}


class Scene:
    """One operation on fresh names of its own.

    `look` tells the calls whose effect is visible and fails when one is there by half; None where
    the operation is several transactions, or its effect cannot be seen. The test calls `act`,
    lets a fault strike in it, keeps what `look` tells as `had`, calls `again` after an error,
    settles, and has `verify` compare with `done`, the number of calls that took effect.
    """

    joins: ClassVar[bool] = False  # needs a caller's transaction that the store can join
    limits: ClassVar[Mapping[str, int]] = {}  # bounds that are made small, so that they are met
    atomic: ClassVar[bool] = True  # one transaction: an error before its commit leaves nothing
    callers: ClassVar[bool] = False  # its errors are the caller's own, as its transaction is
    retried: ClassVar[bool] = True  # a conflict is tried again inside, and never seen
    step: ClassVar[int] = 1  # the default run strikes at every so many boundaries
    effect: ClassVar[int] = 1  # what `look` tells after one whole call

    def __init__(self, world: World) -> None:
        self.world = world
        self.had: int | None = None
        self.done = 0
        self.arrange()

    def arrange(self) -> None:
        """Write what must be there before."""

    def act(self, tm: Threadmill) -> None:
        """Call the operation once, as the engine or a user does."""
        raise NotImplementedError

    def look(self) -> int | None:
        """How many calls have taken effect; fails on half of one."""
        return None

    def again(self, tm: Threadmill) -> None:
        """Call it once more, after an error."""
        self.act(tm)

    def after(self) -> None:
        """Go on before the rest settles."""

    def verify(self) -> None:
        """Look at the end."""
        raise NotImplementedError


def settle(scene: Scene) -> None:
    """Go on until nothing is left to do, and look at everything."""
    scene.after()
    scene.world.settle()
    scene.verify()
    scene.world.check_consistent()
