"""The commit of a tick: read, plan, and one script that writes if what was read still stands."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from datetime import datetime
from itertools import count
from typing import Any, Final

from threadmill_sa.errors import StoreUnavailableError
from threadmill_sa.model.limits import STORE_TRIES
from threadmill_sa.spi.recurring import NudgeAction, Plan, TaskOutcome, TaskPlan, TickResult
from threadmill_sa.stores.redis.definitions import StoredTask, look_at, state_text, stored_task
from threadmill_sa.stores.redis.gateway import Gateway, instant_text, pack, pause_seconds, words
from threadmill_sa.stores.redis.hashes import job_record, moment
from threadmill_sa.stores.redis.jobs import raise_if_taken

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


class Materialization:
    """Commits batches of tasks."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

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
            planned = [(task, plan(task.reading())) for task in found if task is not None]
            restless = self.write([each for each in planned if _writes(each[1])], now=now)
            if not restless:
                return _outcomes(names, left, planned)
            threading.Event().wait(pause_seconds(turn))
        if wait:
            raise StoreUnavailableError(
                f"recurring tasks {sorted(restless)!r:.500} were changed by others {tries} times"
                " while they were being written: try again"
            )
        return [TaskOutcome(name, TickResult.BUSY) for name in names]

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


def _decision(task: StoredTask, plan: TaskPlan, *, guarded: bool) -> list[Any]:
    nudge = "keep"
    if plan.nudges is NudgeAction.CONSUME:
        nudge = "none" if task.requested_at is None else "consume"
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
    names: Sequence[str], read: Sequence[str], planned: Sequence[_Planned]
) -> list[TaskOutcome]:
    plans = {task.name: plan for task, plan in planned}
    done = []
    for name in names:
        plan = plans.get(name)
        if plan is None:
            gone = TickResult.UNKNOWN_TASK if name in read else TickResult.BUSY
            done.append(TaskOutcome(name, gone))
        else:
            reason = None if plan.state is None else plan.state.broken_reason
            done.append(TaskOutcome(name, plan.result, plan.jobs, reason))
    return done
