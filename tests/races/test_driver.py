"""The driver itself: on actors of plain Python, and on locks of a real PostgreSQL."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.exc import OperationalError

from tests.races.driver import Driver, HangError, Nobody, Run
from tests.races.gates import StatementGates
from tests.races.schedules import count_all, following
from tests.races.sqlstages import PostgresStage
from tests.races.stages import Stage


class OneLock:
    """A lock of plain Python; says who holds it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.holder: int | None = None
        self.waiting: set[int] = set()

    def take(self, actor: int) -> None:
        self.waiting.add(actor)
        self.lock.acquire()
        self.waiting.discard(actor)
        self.holder = actor

    def give(self) -> None:
        self.holder = None
        self.lock.release()

    def holders(self, actor: int) -> frozenset[int]:
        held = actor in self.waiting and self.holder not in {None, actor}
        return frozenset({self.holder} if held and self.holder is not None else ())


def _steps(driver: Driver, actor: int, count: int, log: list[int]) -> Callable[[], None]:
    def act() -> None:
        for _ in range(count):
            driver.actors[actor].reach("statement")
            log.append(actor)

    return act


def _run(driver: Driver, counts: list[int], schedule: tuple[int, ...]) -> tuple[Run, list[int]]:
    log: list[int] = []
    actions = [_steps(driver, actor, count, log) for actor, count in enumerate(counts)]
    return driver.run(actions, schedule), log


def test_steps_happen_in_the_order_of_the_schedule() -> None:
    run, log = _run(Driver(2, Nobody()), [3, 2], (1, 0, 0, 1, 0))

    assert log == [1, 0, 0, 1, 0]
    assert run.chosen == (1, 0, 0, 1, 0)
    assert [step.seq for step in run.history] == [0, 1, 2, 3, 4]


def test_a_turn_of_an_actor_that_has_ended_is_passed_over() -> None:
    _, log = _run(Driver(2, Nobody()), [1, 2], (0, 0, 0, 1, 0, 1))

    assert log == [0, 1, 1]


def test_what_is_left_is_done_by_the_last_actor_and_then_the_first() -> None:
    _, log = _run(Driver(3, Nobody()), [2, 2, 2], (1,))

    assert log == [1, 1, 0, 0, 2, 2]


def test_nothing_moves_between_two_steps() -> None:
    seen: list[tuple[int, int]] = []
    driver = Driver(2, Nobody())
    moves = [0, 0]

    def act(actor: int) -> None:
        for _ in range(20):
            driver.actors[actor].reach("statement")
            other = moves[1 - actor]
            moves[actor] += 1
            seen.append((other, moves[1 - actor]))

    driver.run([partial(act, 0), partial(act, 1)], (0, 1) * 20)

    assert all(before == after for before, after in seen)
    assert moves == [20, 20]


def test_an_error_of_an_actor_is_kept_and_the_other_goes_on() -> None:
    driver = Driver(2, Nobody())
    log: list[int] = []

    def fail() -> None:
        driver.actors[0].reach("statement")
        raise ValueError("on purpose")

    run = driver.run([fail, _steps(driver, 1, 2, log)], (0, 1, 0, 1))

    assert isinstance(run.errors[0], ValueError)
    assert run.errors[1] is None
    assert log == [1, 1]


def test_every_interleaving_of_two_actors_is_visited_once() -> None:
    driver = Driver(2, Nobody())
    found = []
    beginning: tuple[int, ...] | None = ()
    while beginning is not None:
        run, log = _run(driver, [3, 4], beginning)
        found.append(tuple(log))
        beginning = following(run.choices)

    assert len(found) == len(set(found)) == count_all(3, 4)


def _holding(driver: Driver, lock: OneLock, actor: int, log: list[str]) -> Callable[[], None]:
    def act() -> None:
        gates = driver.actors[actor]
        gates.reach("statement")
        lock.take(actor)
        log.append(f"{actor} has it")
        gates.reach("commit")
        log.append(f"{actor} ends")
        lock.give()

    return act


def test_a_blocked_step_is_left_aside_and_goes_on_when_it_is_free() -> None:
    lock, log = OneLock(), list[str]()
    driver = Driver(2, lock)

    run = driver.run([_holding(driver, lock, n, log) for n in range(2)], (0, 1, 1, 0, 1))

    assert log == ["0 has it", "0 ends", "1 has it", "1 ends"]
    assert run.chosen == (0, 1, 0, 1)
    waited = run.history[1]
    assert (waited.blocked_by, waited.freed, waited.place) == (frozenset({0}), 2, 2.5)
    assert run.choices[2].runnable == frozenset({0})


def test_a_step_that_never_returns_is_told() -> None:
    driver = Driver(1, Nobody(), hang=0.05)
    over = threading.Event()

    def act() -> None:
        driver.actors[0].reach("statement")
        over.wait(10)

    with pytest.raises(HangError, match="does not return"):
        driver.run([act], (0,))
    over.set()


def test_a_circle_that_nobody_breaks_is_told() -> None:
    over = threading.Event()

    class Each:
        def holders(self, actor: int) -> frozenset[int]:
            return frozenset({1 - actor})

    driver = Driver(2, Each(), hang=0.05)

    def act(actor: int) -> None:
        driver.actors[actor].reach("statement")
        over.wait(10)

    with pytest.raises(HangError, match="wait for each other"):
        driver.run([partial(act, 0), partial(act, 1)], (0, 1))
    over.set()


# On PostgreSQL ---------------------------------------------------------------------------------


@pytest.fixture
def rows(embedded_stage: Stage) -> tuple[Stage, list[Engine]]:
    """Two rows to lock, and the engines of two actors."""
    assert isinstance(embedded_stage, PostgresStage)
    with embedded_stage.engine.begin() as connection:
        connection.execute(text("DROP TABLE IF EXISTS two_rows"))
        connection.execute(text("CREATE TABLE two_rows (id INT PRIMARY KEY, n INT NOT NULL)"))
        connection.execute(text("INSERT INTO two_rows VALUES (1, 0), (2, 0)"))
    for seat in embedded_stage.seats:
        assert seat.gates is not None
        seat.gates.errors.clear()
    return embedded_stage, [seat.engine for seat in embedded_stage.seats[:2]]


def _adding(engine: Engine, ids: list[int]) -> Callable[[], None]:
    def act() -> None:
        with engine.begin() as connection:
            for each in ids:
                statement = text("UPDATE two_rows SET n = n + 1 WHERE id = :id")
                connection.execute(statement, {"id": each})

    return act


def test_a_row_lock_is_recognised_and_the_schedule_goes_on(
    rows: tuple[Stage, list[Engine]],
) -> None:
    stage, engines = rows
    actions = [_adding(engine, [1, 2]) for engine in engines]

    run = stage.driver.run(actions, (0, 1, 0, 0, 1, 1))

    assert [step.kind for step in run.history if step.actor == 0] == ["statement"] * 2 + ["commit"]
    assert [step.blocked_by for step in run.history if step.blocked_by] == [frozenset({0})]
    assert run.chosen == (0, 1, 0, 0, 1, 1)
    assert run.errors == [None, None]
    with stage.quiet.store._engine.connect() as connection:  # type: ignore[attr-defined]
        found = connection.execute(text("SELECT n FROM two_rows ORDER BY id")).scalars().all()
    assert found == [2, 2]


def test_a_deadlock_is_broken_by_the_server_and_seen(rows: tuple[Stage, list[Engine]]) -> None:
    stage, engines = rows
    actions = [_adding(engines[0], [1, 2]), _adding(engines[1], [2, 1])]

    run = stage.driver.run(actions, (0, 1, 0, 1))

    failed = [error for error in run.errors if error is not None]
    told = [error for seat in stage.seats if seat.gates for error in seat.gates.errors]
    assert len(failed) == 1
    assert isinstance(failed[0], OperationalError)
    assert [error[:5] for error in told] == ["40P01"]


def test_a_transaction_that_only_reads_has_no_gate_at_its_end(
    rows: tuple[Stage, list[Engine]],
) -> None:
    stage, [engine, _] = rows

    def act() -> None:
        with engine.begin() as connection:
            connection.execute(text("SELECT n FROM two_rows"))
        with engine.begin() as connection:
            connection.execute(text("SELECT n FROM two_rows FOR UPDATE"))
        with engine.connect() as connection:
            connection.execute(text("UPDATE two_rows SET n = 9"))
            connection.rollback()

    run = stage.driver.run([act], ())

    kinds = [step.kind for step in run.history]
    assert kinds == ["statement", "statement", "commit", "statement", "rollback"]


def test_others_on_the_engine_of_an_actor_pass_no_gate(rows: tuple[Stage, list[Engine]]) -> None:
    stage, [engine, _] = rows

    with engine.begin() as connection:
        assert connection.scalar(text("SELECT count(*) FROM two_rows")) == 2

    assert isinstance(stage.seats[0].gates, StatementGates)
