"""Jobs that an index names and no sound row bears out: set right one by one, and told once."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from threadmill_sa.errors import StoreInvariantError
from threadmill_sa.model import failure
from threadmill_sa.stores.redis.gateway import Gateway, as_text, instant_text, pack, words
from threadmill_sa.stores.redis.hashes import Row, id_text

logger = logging.getLogger("threadmill_sa.redis")

_TOLD: Final = {
    "gone": "job %s has no row in %r, though an index named it: a hand deleted it, and what is"
    " left of it is forgotten",
    "quarantined": "job %s has a damaged row in %r and is quarantined: %s",
    "dropped": "job %s has a damaged row in %r, which is kept and no longer listed: %s",
    "indexed": "job %s was not where its row in %r says: it is now",
}


@dataclass(frozen=True, slots=True)
class Misfit:
    """What a script has met. Compared when it is set aside: a row that changed since is left."""

    id: bytes
    row: bytes | None  # None when there is none
    handler: bytes | None = None
    tail: bytes | None = None  # with the handler: the lane that named it
    task: str | None = None  # whose instance an index calls it
    wrong: str | None = None  # where it is not the row that tells


class Misfits:
    """Takes them out of the indexes and the counts, so that all other jobs go on."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    def set_aside(self, met: Iterable[Misfit], *, now: datetime | None) -> None:
        """Forget what has no row, quarantine what says what it is of, drop what does not.

        A sound row that only was not where it belongs is found there afterwards.
        Atomicity: one script.
        """
        found = list({each.id: each for each in met}.values())
        if not found:
            return
        faults = [each.wrong or _fault(each) for each in found]
        records = [_record(each, wrong) for each, wrong in zip(found, faults, strict=True)]
        verdicts = self._gateway.run(
            "job_set_aside",
            now=instant_text(now),
            reason=failure.QUARANTINE,
            misfits=pack(records),
        )
        for each, wrong, word in zip(found, faults, words(verdicts), strict=True):
            self._tell(each.id, word, wrong)

    def _tell(self, identity: bytes, word: str, wrong: str | None) -> None:
        line = _TOLD.get(word)
        if line is not None:
            told = [id_text(identity), self._gateway.key("rows"), wrong]
            logger.warning(line, *told[: line.count("%")])


def _fault(met: Misfit) -> str | None:
    if met.row is None:
        return None
    try:
        Row(met.id, met.row).summary()
    except StoreInvariantError as error:
        return error.message
    return None


def _record(met: Misfit, wrong: str | None) -> Sequence[object]:
    stored = (met.id, met.row, met.handler, met.tail)
    return [
        *(value is not None and as_text(value) for value in stored),
        met.task is not None and met.task,
        wrong is not None and wrong,
    ]
