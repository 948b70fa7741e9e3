"""What must hold once the system has come to rest, whatever the order of the steps was."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta

from tests.races.actors import Kind
from tests.races.driver import Run
from tests.races.facts import AFTER, BEFORE, Fact, Facts, What, accepts, later, read
from tests.races.stages import PUMP, Ending, Stage
from threadmill_sa.errors import TaskDisabledError, UnknownTaskError
from threadmill_sa.model.job import AttemptOutcome, FinishVerdict, OutcomeKind
from threadmill_sa.model.nudge import NudgeVerdict
from threadmill_sa.model.recurring import CronOrigin
from threadmill_sa.testing import assert_every_nudge_covered

_HOUR = timedelta(hours=1)
_DROPPING = (What.PAUSED, What.DELETED)


def problems(run: Run, kinds: Sequence[Kind], stage: Stage, ending: Ending) -> list[str]:
    """Return every promise that this run has broken."""
    repeatable = frozenset(n for n, kind in enumerate(kinds) if kind.isolation)
    during = read(run.history, repeatable, stage.nudges)
    known = {fact.job for fact in during.of(What.CREATED)}
    known |= stage.scene_jobs
    made = [(j.id, j.handler, j.task, j.origin) for j in ending.jobs if j.id not in known]
    facts = Facts([*during.all, *later(made)])
    return [
        *_errors(run, kinds, stage),
        *([] if stage.one_writer else _waits(run, kinds)),
        *_verdicts(run, kinds, stage, facts),
        *_answers(run, repeatable, facts),
        *_every_nudge_is_followed(facts),
        *_every_run_was_asked_for(facts, stage),
        *_instances_follow_the_definition(facts),
        *_attempts(stage, ending),
        *_counts(ending),
        *_schedule(facts, stage, ending),
        *_leftovers(facts, stage, ending),
        *_records(stage),
    ]


def _errors(run: Run, kinds: Sequence[Kind], stage: Stage) -> Iterator[str]:
    """N7: no error reaches a caller who did nothing wrong, and none is hidden by another try."""
    for number, error in enumerate(run.errors):
        if error is not None:
            yield f"{kinds[number]} (actor {number}) raised {type(error).__name__}: {error}"
        gates = stage.seats[number].gates
        if gates is not None and gates.errors:
            yield f"{kinds[number]} (actor {number}) met errors of the database: {gates.errors}"


def _waits(run: Run, kinds: Sequence[Kind]) -> Iterator[str]:
    """N7, N8: producers wait for nobody and hold up nobody; a tick and a claim never wait."""
    for step in run.history:
        if not step.blocked_by:
            continue
        waiter, holders = kinds[step.actor], [kinds[n] for n in sorted(step.blocked_by)]
        if not waiter.patient or any(holder.producer for holder in holders):
            yield f"{waiter} (actor {step.actor}) waits for {[str(h) for h in holders]} at {step}"


def _verdicts(run: Run, kinds: Sequence[Kind], stage: Stage, facts: Facts) -> Iterator[str]:
    """A refusal is right by what the caller could see."""
    for number, kind in enumerate(kinds):
        own = [step for step in run.history if step.actor == number]
        places = [step.place if step.kind == "call" else step.seq for step in own]
        if kind.isolation:
            places = places[:1]
        seen = [facts.registration(place) for place in places]
        for word, value in stage.seats[number].told:
            if word == "refused" and isinstance(value, TaskDisabledError):
                if not any(each is not None and not each.enabled for each in seen):
                    yield f"{kind} was told of a pause that it could not see"
            elif isinstance(value, UnknownTaskError) and None not in [
                *seen,
                # A lock that was waited for sees what is committed by its end.
                *_by_the_end(run, number, facts),
            ]:
                yield f"{kind} was told that the task is gone, which it could not see"


def _answers(run: Run, repeatable: frozenset[int], facts: Facts) -> Iterator[str]:
    """A nudge is accepted exactly when its snapshot has the task enabled."""
    began: dict[int, int] = {}
    for step in run.history:
        place: float = step.place if step.kind == "call" else step.seq
        if step.kind == "statement" and step.actor in repeatable:
            place = began.setdefault(step.actor, step.seq)
        if accepts(step):
            accepted = step.count == 1
        elif step.text == "recurring.request_cron_nudge" and step.result is not None:
            accepted = step.result.verdict is NudgeVerdict.ACCEPTED
        else:
            continue
        seen = facts.registration(place)
        if accepted != (seen is not None and seen.enabled):
            yield f"accepted is {accepted} although the snapshot has {seen}: {step}"


def _by_the_end(run: Run, actor: int, facts: Facts) -> list[object]:
    return [
        facts.registration(place)
        for step in run.history
        if step.actor == actor and step.blocked_by
        for place in range(step.seq, len(run.history) + 1)
    ]


def _every_nudge_is_followed(facts: Facts) -> Iterator[str]:
    """N1: a run created after the commit, unless the task was paused or deleted before it."""
    instances = [fact for fact in facts.of(What.CREATED) if fact.task == PUMP]
    for nudge in facts.of(What.NUDGED):
        own = facts.registration(nudge.seen)
        now = facts.registration(nudge.committed)
        if own is None or now is None or own.epoch != now.epoch or not now.enabled:
            continue
        created = min(
            (job.seen for job in instances if job.seen > nudge.committed), default=2 * AFTER
        )
        dropped = any(nudge.committed < f.committed < created for f in facts.of(*_DROPPING))
        if created > AFTER and not dropped:
            yield f"N1: {nudge} is followed by no run"


def _every_run_was_asked_for(facts: Facts, stage: Stage) -> Iterator[str]:
    """N2, N5, N6: each nudged run has a nudge of its own, of its registration and its time.

    Of its own: one that committed after the previous instance had consumed what it saw.
    """
    nudges = facts.of(What.NUDGED)
    consumed: float = BEFORE - 1
    fires = 0
    for job in facts.of(What.CREATED):
        if job.task != PUMP or job.origin == CronOrigin.MANUAL:
            continue
        own = facts.registration(job.seen)
        witnesses = [n for n in nudges if _serves(n, job, facts, consumed)]
        if job.origin == CronOrigin.SCHEDULE:
            fires += 1
        elif not witnesses:
            yield f"N2/N5/N6: {job} was made for no nudge that counts ({own})"
        consumed = max(consumed, job.cleared)
    if fires > (1 if "due" in (stage.needs or ()) else 0):
        yield f"{fires} fires of one due fire time"


def _serves(nudge: Fact, job: Fact, facts: Facts, consumed: float) -> bool:
    nudged, made = facts.registration(nudge.seen), facts.registration(job.seen)
    return (
        nudged is not None
        and made is not None
        and nudged.epoch == made.epoch
        and consumed < nudge.committed < job.cleared
        and nudge.committed > facts.pause_end(job.seen)
    )


def _instances_follow_the_definition(facts: Facts) -> Iterator[str]:
    """No run of a task that is gone or paused, or of an older definition."""
    for job in facts.of(What.CREATED):
        if job.task != PUMP:
            continue
        made = facts.registration(job.seen)
        if made is None:
            yield f"N6: {job} belongs to no registration"
        elif job.handler != made.handler:
            yield f"{job} has an older handler than {made}"
        elif not made.enabled and job.origin != CronOrigin.MANUAL:
            yield f"N5: {job} was made in a pause"
        elif made != facts.registration(job.committed):
            yield f"{job} was committed after its definition had changed"


def _attempts(stage: Stage, ending: Ending) -> Iterator[str]:
    """Each claim raises the token and ends once; what has ended stays so."""
    ended = list(_recorded(stage))
    ends = Counter((end.job_id, end.attempt_token) for end in ended)
    succeeded = Counter(end.job_id for end in ended if end.kind is OutcomeKind.SUCCEEDED)
    if any(n > 1 for n in succeeded.values()):
        yield f"a job has succeeded twice: {succeeded}"
    claims = Counter(stage.claims)
    if any(n > 1 for n in claims.values()):
        yield f"one token was given twice: {claims}"
    if claims != ends:
        yield f"attempts {claims} do not match their ends {ends}"
    taken_away = {
        value for seat in stage.seats for word, value in seat.told if word == "taken away"
    }
    for job in ending.jobs:
        tokens = sorted(token for owner, token in claims if owner == job.id)
        if tokens != list(range(1, job.token + 1)):
            yield f"job {job.id} was claimed with tokens {tokens} and has {job.token}"
        if job.id in taken_away:
            if job.state != "DELETED":
                yield f"job {job.id} was deleted and has come to rest as {job.state}"
        elif job.state != "SUCCEEDED" or job.id not in succeeded:
            yield f"job {job.id} has come to rest as {job.state}"


def _recorded(stage: Stage) -> Iterator[AttemptOutcome]:
    for seat in stage.seats:
        for word, value in seat.told:
            if word == "ended":
                yield from (end for end, verdict in value if verdict is FinishVerdict.RECORDED)
            elif word == "reclaimed":
                yield from value


def _counts(ending: Ending) -> Iterator[str]:
    states = dict(Counter(job.state for job in ending.jobs))
    if ending.counts != states:
        yield f"counts say {ending.counts}, the jobs are {states}"
    if ending.depths:
        yield f"queues at rest have depths {ending.depths}"


def _schedule(facts: Facts, stage: Stage, ending: Ending) -> Iterator[str]:
    """N4: the next fire is a function of the definition and of its own fires alone."""
    now = datetime.now(UTC)
    for task in ending.tasks:
        if task.next_run_at is None or task.anchor_at is None:
            if task.enabled:
                yield "an enabled task has no next fire"
            continue
        if (task.next_run_at - task.anchor_at) % _HOUR:
            yield f"N4: the next fire {task.next_run_at} has left the grid of {task.anchor_at}"
        if not now < task.next_run_at <= now + _HOUR:
            yield f"N4: the next fire {task.next_run_at} is not the next one after {now}"
    due = "due" in (stage.needs or ()) and not facts.of(What.PAUSED, What.DELETED)
    fired = [f for f in facts.of(What.CREATED) if f.origin == CronOrigin.SCHEDULE]
    if due and len(fired) != 1:
        yield f"a due fire has led to {len(fired)} runs"


def _records(stage: Stage) -> Iterator[str]:
    """The shipped checker, which knows snapshots and no gates, comes to the same verdict."""
    if stage.store.records is not None:
        try:
            assert_every_nudge_covered(stage.quiet)
        except AssertionError as error:
            yield f"by the records: {error}"


def _leftovers(facts: Facts, stage: Stage, ending: Ending) -> Iterator[str]:
    """N6: what is deleted is gone, and nothing pending is left of anything."""
    expected = facts.registration(AFTER)
    found = [task for task in ending.tasks if task.name == PUMP]
    if (expected is not None) != (len(found) == 1):
        yield f"N6: expected {expected}, found {found}"
    for task in found:
        if expected is not None and (task.handler, task.enabled) != (
            expected.handler,
            expected.enabled,
        ):
            yield f"the task is {task}, expected {expected}"
    if ending.pending:
        yield f"{ending.pending} nudges are pending at rest"
    told = [word for seat in stage.seats for word, _ in seat.told]
    if ending.orders is not None and ending.orders != told.count("order"):
        yield f"{ending.orders} rows of callers, expected {told.count('order')}"
    stored = {job.id for job in ending.jobs}
    for seat in stage.seats:
        for word, value in seat.told:
            if word == "job" and value not in stored:
                yield f"job {value} is lost"
