"""The role `Recurring` on Redis.

What a script cannot decide, such as the next fire of a cron expression, is decided here between a
read and a write; the write compares what was read and changes nothing when it is no longer so.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from threadmill_sa.errors import StoreInvariantError
from threadmill_sa.model.job import NewJob
from threadmill_sa.model.nudge import ClearOutcome, NudgeOutcome, NudgeVerdict
from threadmill_sa.model.recurring import CronTask, CronTaskView, FlipOutcome, RegisterOutcome
from threadmill_sa.model.timing import edited_state, first_state, flipped_state
from threadmill_sa.spi.recurring import (
    MakeInstance,
    NudgeAction,
    Plan,
    TaskOutcome,
    TaskPlan,
    TickResult,
)
from threadmill_sa.stores.redis.definitions import (
    StoredTask,
    definition_text,
    look_at,
    state_text,
    stored_task,
)
from threadmill_sa.stores.redis.gateway import Gateway, as_text, instant_text, pack
from threadmill_sa.stores.redis.hashes import moment
from threadmill_sa.stores.redis.jobs import pairs
from threadmill_sa.stores.redis.materializing import Materialization, forget, read_tasks
from threadmill_sa.stores.redis.once import Once

logger = logging.getLogger("threadmill_sa.redis")

_OPEN = b"1"


class RedisRecurring:
    """Recurring tasks in one hash, their times and nudges in ordered sets."""

    def __init__(self, gateway: Gateway, *, record_nudges: bool = False) -> None:
        self._gateway = gateway
        self._record = int(record_nudges)
        self._materialization = Materialization(gateway)
        self._once = Once()

    def register(self, task: CronTask, *, now: datetime | None = None) -> RegisterOutcome:
        def attempt() -> RegisterOutcome | None:
            read_at, [found] = read_tasks(self._gateway, [task.name], now)
            if found is None:
                return self._create(task, read_at)
            damage = found.fault()
            if damage is None:
                return self._edit(found, task, now)
            logger.warning("%s: it is replaced by what the code declares", damage)
            return self._create(task, read_at, instead_of=found)

        return self._gateway.try_until_written(f"recurring task {task.name!r}", attempt)

    def _create(
        self, task: CronTask, now: datetime, *, instead_of: StoredTask | None = None
    ) -> RegisterOutcome | None:
        """Register; over a damaged one with its gate and schedule as far as they can be read."""
        before, enabled = None, task.enabled
        if instead_of is not None:
            before, enabled = instead_of.schedule_or_none(), instead_of.enabled_or(enabled)
        whole = replace(
            task,
            enabled=enabled,
            anchor_at=task.anchor_at or now,
            created_at=now,
            updated_at=now,
        )
        if before is None:
            state = first_state(whole, now=now)
        else:
            state = edited_state(whole, before, now=now)
        word = self._gateway.run(
            "task_create",
            name=task.name,
            was_definition=b"" if instead_of is None else instead_of.definition,
            was_gate=b"" if instead_of is None else instead_of.gate,
            was_state=b"" if instead_of is None else instead_of.state,
            definition=definition_text(whole),
            enabled=int(enabled),
            state=state_text(state),
            look_at=look_at(state),
        )
        if word != b"created":
            return None
        return RegisterOutcome.CREATED if instead_of is None else RegisterOutcome.UPDATED

    def _edit(
        self, found: StoredTask, task: CronTask, now: datetime | None
    ) -> RegisterOutcome | None:
        stored, before = found.task, found.schedule
        edited = replace(
            task,
            enabled=stored.enabled,
            anchor_at=task.anchor_at or stored.anchor_at,
            epoch=stored.epoch,
            created_at=stored.created_at,
            updated_at=stored.updated_at,
        )
        state = edited_state(edited, before, now=found.now)
        if edited == stored and state == before:
            return self._mend(found, now)
        word = self._gateway.run(
            "task_edit",
            name=task.name,
            was_definition=found.definition,
            was_gate=found.gate,
            was_state=found.state,
            definition=definition_text(replace(edited, updated_at=found.now)),
            state=state_text(state),
            look_at=look_at(state),
        )
        return RegisterOutcome.UPDATED if word == b"edited" else None

    def _mend(self, found: StoredTask, now: datetime | None) -> RegisterOutcome | None:
        """Have ticks look for a task whose definition stays as it is."""
        word = self._gateway.run(
            "task_mend",
            name=found.name,
            was_definition=found.definition,
            was_gate=found.gate,
            was_state=found.state,
            look_at=look_at(found.schedule),
            now=instant_text(now),
        )
        if word == b"changed":
            return None
        if word == b"sound":
            return RegisterOutcome.UNCHANGED
        logger.warning(
            "recurring task %r was not where ticks look for it, in %r or %r: it is now",
            found.name,
            self._gateway.key("due"),
            self._gateway.key("nudged"),
        )
        return RegisterOutcome.UPDATED

    def set_enabled(self, name: str, *, enabled: bool, now: datetime | None = None) -> FlipOutcome:
        def attempt() -> FlipOutcome | None:
            _, [found] = read_tasks(self._gateway, [name], now)
            if found is None:
                return FlipOutcome.UNKNOWN_TASK
            if found.task.enabled == enabled:
                return FlipOutcome.UNCHANGED
            task = replace(found.task, enabled=enabled, updated_at=found.now)
            state = flipped_state(task, found.schedule, enabled=enabled, now=found.now)
            word = self._gateway.run(
                "task_flip",
                name=name,
                was_definition=found.definition,
                was_gate=found.gate,
                was_state=found.state,
                definition=definition_text(task),
                enabled=int(enabled),
                state=state_text(state),
                look_at=look_at(state),
            )
            return FlipOutcome.CHANGED if word == b"flipped" else None

        return self._gateway.try_until_written(f"recurring task {name!r}", attempt)

    def delete(self, name: str) -> bool:
        return bool(self._gateway.run("task_delete", name=name) == b"deleted")

    def trigger(
        self, name: str, make: MakeInstance, *, now: datetime | None = None
    ) -> NewJob | None:
        def attempt() -> tuple[NewJob | None] | None:
            _, [found] = read_tasks(self._gateway, [name], now)
            if found is None:
                return (None,)
            job = make(found.task)
            ran = replace(found.schedule, last_run_at=found.now, last_run_job_id=job.id)
            plan = TaskPlan(TickResult.MATERIALIZED, (job,), ran, NudgeAction.KEEP)
            changed = self._materialization.write([(found, plan)], now=now, guarded=False)
            return None if changed else (job,)

        [job] = self._gateway.try_until_written(f"recurring task {name!r}", attempt)
        return job

    def get(self, name: str) -> CronTaskView | None:
        _, [found] = read_tasks(self._gateway, [name], None)
        return None if found is None else found.view()

    def task_verdicts(self, names: Sequence[str]) -> Mapping[str, NudgeVerdict]:
        if not names:
            return {}
        gates = self._gateway.command("HMGET", "tasks", *(f"g:{name}" for name in names))
        return {name: _verdict(gate) for name, gate in zip(names, gates, strict=True)}

    def request_cron_nudge(self, name: str, *, now: datetime | None = None) -> NudgeOutcome:
        word, *revision = self._gateway.run_durably(
            "nudge_accept", name=name, now=instant_text(now), record=self._record
        )
        return NudgeOutcome(NudgeVerdict(word.decode()), *revision)

    def clear_cron_nudge(self, name: str, observed: frozenset[int]) -> ClearOutcome:
        word = self._gateway.run("nudge_clear", name=name, observed=pack([*map(str, observed)]))
        return ClearOutcome(word.decode())

    def nominate(self, *, after: str | None, limit: int, now: datetime | None = None) -> list[str]:
        found = self._gateway.run(
            "task_nominate", now=instant_text(now), after=after or "", limit=limit
        )
        named = [(name, _text(name)) for name in found]
        forget(self._gateway, [(as_text(name), True) for name, text in named if text is None])
        return [text for _, text in named if text is not None]

    def materialize(
        self,
        names: Sequence[str],
        plan: Plan,
        *,
        wait: bool = False,
        now: datetime | None = None,
    ) -> list[TaskOutcome]:
        return self._materialization.commit(sorted(set(names)), plan, wait=wait, now=now)

    def sweep_nudges(self, *, limit: int) -> int:
        del limit  # A nudge dies with its registration.
        return 0

    def list(self) -> list[CronTaskView]:
        found, nudged = self._gateway.run("task_list")
        values, requests = pairs(found), pairs(nudged)
        now = moment(0)  # a view does not tell when it was read
        views = []
        for field in sorted(field for field in values if field.startswith(b"d:")):
            name = field[2:]
            read = [values.get(kind + name) for kind in (b"d:", b"g:", b"s:", b"r:")]
            shown = name.decode(errors="backslashreplace")
            task = stored_task(shown, [*read, requests.get(name), None], now)
            try:
                views += [] if task is None else [task.view()]
            except StoreInvariantError as error:
                self._once.warn(f"left out of a listing: {error}")
        return views


def _text(name: bytes) -> str | None:
    try:
        return name.decode()
    except UnicodeDecodeError:
        return None


def _verdict(gate: bytes | None) -> NudgeVerdict:
    if gate is None:
        return NudgeVerdict.UNKNOWN_TASK
    return NudgeVerdict.ACCEPTED if gate.startswith(_OPEN) else NudgeVerdict.DISABLED
