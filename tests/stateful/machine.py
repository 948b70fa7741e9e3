"""The machine: all rules together, and what has to be true when an example has come to rest."""

from __future__ import annotations

import sys

from tests.stateful import laws
from tests.stateful.callers import CallerRules


class NudgeMachine(CallerRules):
    """Run it with `profiles.search(lambda: NudgeMachine(world), settings)`."""

    def teardown(self) -> None:
        try:
            if self.nodes and sys.exc_info()[0] is None:
                self.come_to_rest()
        finally:
            for caller in self.open:
                caller.session.close()

    def come_to_rest(self) -> None:
        """End every transaction and every job: then one tick serves all that is pending."""
        for caller in sorted(self.open, key=lambda caller: not caller.writes):
            self._commit(caller)
            self.close(caller)
        while self.model.processing():
            self.reclaim(number=0, limit=10, dies=True)
        # The clock may have gone back since a delay or a retry was counted from it.
        delayed = [run.scheduled_at for run in self.model.runs if run.scheduled_at is not None]
        self.clock.set(max([self.now, *delayed]))
        while self.run_everything(0):
            pass
        self.keep_house(number=1, what="sweep")
        self.everything_is_as_promised()
        self.tick_on(1)
        self.everything_is_as_promised()
        for task in self.model.tasks.values():
            assert not (task.enabled and self.model.pending(task)), f"N1: {task} at rest"
        laws.check(self.model, None, self.observer.look(anew=True))
