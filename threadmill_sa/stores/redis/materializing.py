"""The commit of a tick: read, plan, and one script that writes if what was read still stands."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from datetime import datetime
from itertools import count
from typing import Any, Final

from threadmill_sa.errors import StoreInvariantError, StoreUnavailableError
from threadmill_sa.model.limits import RECOUNT_MAX, STORE_TRIES
from threadmill_sa.spi.recurring import (
    NudgeAction,
    Plan,
    TaskOutcome,
    TaskPlan,
    TaskReading,
    TickResult,
)
from threadmill_sa.stores.redis.definitions import StoredTask, look_at, state_text, stored_task
from threadmill_sa.stores.redis.gateway import Gateway, instant_text, pack, pause_seconds, words
from threadmill_sa.stores.redis.hashes import job_record, moment
from threadmill_sa.stores.redis.jobs import raise_if_taken

logger = logging.getLogger("threadmill_sa.redis")

COMMIT_TRIES: Final = 5  # of one batch; then what keeps changing is left to the next tick
_VALUES: Final = 6  # that lua/task_read gives of each name

_Planned = tuple[StoredTask, TaskPlan]


def read_tasks(
    gateway: Gateway, names: Sequence[str], now: datetime | None
) -> tuple[datetime, list[StoredTask | None]]:
    """Return the instant of the reading and each task as it stood then, None when unknown."""
    at, *values = gateway.run("task_read", now=instant_text(now), names=pack(list(names)))
    read_at = moment(at)
    return read_at, [
        stored_task(name, values[start : start + _VALUES], read_at)
        for name, start in zip(names, count(0, _VALUES))
    ]


def forget(gateway: Gateway, names: Sequence[tuple[object, bool]]) -> None:
    """Take names that no task has out of what ticks look at, and say so.

    Args:
        names: each, as it is packed, with whether it is no text, so that no task can have it.
    """
    if not names:
        return
    for name in gateway.run("task_forget", names=pack(names)):
        logger.warning(
            "%r is named in %r or %r and is no recurring task: taken out",
            name.decode(errors="backslashreplace"),
            gateway.key("due"),
            gateway.key("nudged"),
        )


def recount(gateway: Gateway, names: Sequence[str]) -> bool:
    """Set counters right that hold a task back for no unfinished job; True when one was wrong."""
    if not names:
        return False
    righted = gateway.run("task_recount", names=pack(list(names)), limit=RECOUNT_MAX)
    for name, said, number in zip(righted[::3], righted[1::3], righted[2::3], strict=True):
        logger.warning(
            "recurring task %r was held back by its counter in %r, which said %r: %d of its jobs"
            " are unfinished, and that is what it says now",
            name.decode(),
            gateway.key("counters"),
            said.decode(errors="backslashreplace"),
            number,
        )
    return bool(righted)


class Materialization:
    """Commits batches of tasks."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._told: set[str] = set()  # damaged ones whose fault is logged already

    def commit(
        self, names: Sequence[str], plan: Plan, *, wait: bool, now: datetime | None
    ) -> list[TaskOutcome]:
        """Return one outcome per name; see `spi.Recurring.materialize`.

        Each try reads and plans all of the batch anew. Whoever is told that a task has changed
        has lost against somebody who got on, so a batch cannot block itself.
        """
        tries = STORE_TRIES if wait else COMMIT_TRIES
        restless: set[str] = set()
        for turn in range(tries):
            last = turn == tries - 1 and not wait
            left = [name for name in names if not (last and name in restless)]
            _, found = read_tasks(self._gateway, left, now)
            if recount(self._gateway, [task.name for task in found if task and task.held]):
                _, found = read_tasks(self._gateway, left, now)
            readable, faults = self._parted([task for task in found if task is not None])
            planned = [(task, plan(reading)) for task, reading in readable]
            restless = self.write([each for each in planned if _writes(each[1])], now=now)
            if not restless:
                _tell_torn(planned)
                unknown = [name for name, task in zip(left, found, strict=True) if task is None]
                # Where it was deleted since it was nominated, nothing names it any more.
                forget(self._gateway, [(name, False) for name in unknown])
                return _outcomes(names, left, planned, faults)
            threading.Event().wait(pause_seconds(turn))
        if wait:
            raise StoreUnavailableError(
                f"recurring tasks {sorted(restless)!r:.500} were changed by others {tries} times"
                " while they were being written: try again"
            )
        return [TaskOutcome(name, TickResult.BUSY) for name in names]

    def _parted(
        self, found: Sequence[StoredTask]
    ) -> tuple[list[tuple[StoredTask, TaskReading]], dict[str, str]]:
        """Return those that can be read, and what is wrong with the others, by name."""
        readable: list[tuple[StoredTask, TaskReading]] = []
        faults: dict[str, str] = {}
        for task in found:
            try:
                readable.append((task, task.reading()))
            except StoreInvariantError as error:
                faults[task.name] = error.message
                if task.name not in self._told:
                    logger.warning("%s", error)
        self._told = self._told - {task.name for task in found} | faults.keys()
        return readable, faults

    def write(
        self, planned: Sequence[_Planned], *, now: datetime | None, guarded: bool = True
    ) -> set[str]:
        """Write all plans in one script; returns the names that changed, and then wrote nothing.

        Args:
            guarded: an unfinished job that came or went since the reading is a change as well.
        Raises: StoreInvariantError when the id of a job is stored already.
        """
        if not planned:
            return set()
        decisions = [_decision(task, plan, guarded=guarded) for task, plan in planned]
        reply = self._gateway.run(
            "task_materialize", now=instant_text(now), decisions=pack(decisions)
        )
        raise_if_taken(reply)
        word, *changed = words(reply)
        return set(changed) if word == "changed" else set()


def _writes(plan: TaskPlan) -> bool:
    # Nothing to compact: a task has one pending nudge at most.
    return bool(plan.jobs) or plan.state is not None or plan.nudges is NudgeAction.CONSUME


def _tell_torn(planned: Sequence[_Planned]) -> None:
    for task, plan in planned:
        if task.torn and plan.nudges is NudgeAction.CONSUME:
            logger.warning(
                "recurring task %r had half of a pending nudge, a hand was at the other: it is"
                " served like a whole one",
                task.name,
            )


def _decision(task: StoredTask, plan: TaskPlan, *, guarded: bool) -> list[Any]:
    nudge = "keep"
    if plan.nudges is NudgeAction.CONSUME:
        nudge = "consume" if task.pending else "none"
    return [
        task.name,
        task.definition.decode(),
        task.gate.decode(),
        task.state.decode(),
        task.held if guarded else "any",
        False if plan.state is None else state_text(plan.state).decode(),
        "" if plan.state is None else look_at(plan.state),
        nudge,
        [job_record(job) for job in plan.jobs],
    ]


def _outcomes(
    names: Sequence[str],
    read: Sequence[str],
    planned: Sequence[_Planned],
    faults: Mapping[str, str],
) -> list[TaskOutcome]:
    plans = {task.name: plan for task, plan in planned}
    done = []
    for name in names:
        plan = plans.get(name)
        if name in faults:
            done.append(TaskOutcome(name, TickResult.BROKEN, broken_reason=faults[name]))
        elif plan is None:
            gone = TickResult.UNKNOWN_TASK if name in read else TickResult.BUSY
            done.append(TaskOutcome(name, gone))
        else:
            reason = None if plan.state is None else plan.state.broken_reason
            done.append(TaskOutcome(name, plan.result, plan.jobs, reason))
    return done
