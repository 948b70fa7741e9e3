"""The scripts: what their headers say is what they use, and a flushed cache is never seen."""

from __future__ import annotations

import random
import re
import threading
from collections.abc import Iterator
from importlib.resources import files

import pytest
from redis import Redis

from tests.fixtures.valkey import RedisSpace
from tests.store_only.redis_books import check_books
from threadmill_sa.model import failure
from threadmill_sa.model.job import AttemptOutcome, OrphanedJob, OutcomeKind
from threadmill_sa.model.node import HeldJob, NodeInfo
from threadmill_sa.stores.redis.keys import KEYS
from threadmill_sa.stores.redis.scripts import Script, script, script_names
from threadmill_sa.stores.redis.store import RedisStore
from threadmill_sa.testing.suite.tools import (
    AFTER_ALL,
    T0,
    claim,
    insert,
    new_job,
    new_node,
    new_task,
    nudge,
    one_instance,
    outcome,
    run_all,
    together,
)

FOLDER = files("threadmill_sa.stores.redis") / "lua"
SCRIPTS = [script(name) for name in script_names()]
CODE_LINES_MAX, KEYS_MAX, ARGUMENTS_MAX = 60, 8, 10
# Reading commands beside a key name in second place; these have none there.
NO_KEY = {"TIME", "PUBLISH"}
EVERY = pytest.mark.parametrize("each", SCRIPTS, ids=lambda each: each.name)


def _text(each: Script) -> str:
    return (FOLDER / f"{each.name}.lua").read_text(encoding="utf-8")


def _header(text: str) -> str:
    return text[: re.search(r"^(?!--).*$", text, re.MULTILINE).start()]  # type: ignore[union-attr]


def _code(text: str) -> str:
    """The text without comments."""
    return re.sub(r"--[^\n]*", "", text)


def _numbers(table: str, text: str) -> list[int]:
    return sorted({int(found) for found in re.findall(rf"\b{table}\[(\d+)\]", text)})


@EVERY
def test_a_header_declares_keys_and_arguments_in_order_and_the_script_uses_them_all(
    each: Script,
) -> None:
    header, code = _header(_text(each)), _code(_text(each))

    for table, names in (("KEYS", each.keys), ("ARGV", each.arguments)):
        expected = list(range(1, len(names) + 1))
        assert [
            int(n) for n in re.findall(rf"^-- {table}\[(\d+)\]", header, re.MULTILINE)
        ] == expected
        assert _numbers(table, code) == expected
        assert len(set(names)) == len(names)
    assert set(each.keys) <= set(KEYS)


@EVERY
def test_the_locals_of_keys_are_called_as_the_header_calls_them(each: Script) -> None:
    bound: dict[str, str] = {}
    for names, values in re.findall(
        r"^local ([\w, ]+) = (KEYS\[.+)$", _code(_text(each)), re.MULTILINE
    ):
        bound |= dict(zip(names.split(", "), values.split(", "), strict=True))

    assert bound == {name: f"KEYS[{number}]" for number, name in enumerate(each.keys, 1)}


@EVERY
def test_every_command_works_on_a_declared_key(each: Script) -> None:
    commands = re.findall(r"redis\.p?call\(\s*'(\w+)'(?:,\s*([\w.']+))?", _code(each.source))

    assert commands
    for command, key in commands:
        # A name that the script did not bind to one of its keys is a global that does not exist.
        assert command in NO_KEY or key in KEYS, f"{command} on {key}"
    for fragment in (FOLDER / "lib").iterdir():
        assert "KEYS[" not in fragment.read_text(encoding="utf-8")
    assert not re.search(r"'(EVAL|KEYS|SCAN|FLUSH)", _code(each.source))


@EVERY
def test_a_header_says_purpose_replies_and_cost(each: Script) -> None:
    header = _header(_text(each))
    said = " ".join(line.removeprefix("--").strip() for line in header.splitlines())
    replies = said.partition("Replies: ")[2].partition("Cost: ")[0]

    assert re.match(r"[A-Z].*?\.", said)
    assert replies
    assert said.partition("Cost: ")[2].startswith("O(")
    code = _code(_text(each))
    returned = set(re.findall(r"(?:return|verdicts\[position\] =)\s*\{?\s*'(\w+)'", code))
    returned |= set(re.findall(r"\{ '(changed)' \}", code))
    told = set(re.findall(r"\b[a-z_]+\b", replies))
    assert returned <= told


@EVERY
def test_a_script_is_short_and_takes_few_keys_and_arguments(each: Script) -> None:
    lines = [line for line in _code(_text(each)).splitlines() if line.strip()]

    assert len(lines) <= CODE_LINES_MAX
    assert len(each.keys) <= KEYS_MAX
    assert len(each.arguments) <= ARGUMENTS_MAX
    assert max(map(len, _text(each).splitlines())) <= 99


def test_every_fragment_is_included_by_a_script() -> None:
    found = {entry.name.removesuffix(".lua") for entry in (FOLDER / "lib").iterdir()}
    included = {
        name
        for each in SCRIPTS
        for name in re.findall(r"^--@include (\w+)$", _text(each), re.MULTILINE)
    }

    assert included == found


def test_every_key_is_used_by_a_script() -> None:
    assert {key for each in SCRIPTS for key in each.keys} == set(KEYS)


def test_all_keys_lie_in_one_slot_whatever_users_name(redis_space: RedisSpace) -> None:
    with redis_space.client() as client, redis_space.store() as store:
        for name in ("{other}", "a}b{c", "{}", "plain"):
            store.recurring.register(new_task(name, queue=name, handler=name), now=T0)
            nudge(store, name=name)
            store.recurring.materialize([name], one_instance, now=T0)
            insert(store, queue=name, handler=name, payload="1")
        slots = {_slot(key.encode()) for key in redis_space.names()}
        stored = set(client.scan_iter(f"{{{redis_space.prefix}}}*", count=1000))

    assert len(slots) == 1
    assert {key.decode() for key in stored} <= set(redis_space.names())


def _slot(key: bytes) -> int:
    from redis.crc import key_slot

    return key_slot(key)


@pytest.fixture
def flushing(redis_space: RedisSpace) -> Iterator[None]:
    """The server's scripts are forgotten again and again, all through the test."""
    stop = threading.Event()

    def flush(client: Redis) -> None:
        while not stop.wait(random.uniform(0, 0.002)):
            client.script_flush()

    with redis_space.client() as client:
        thread = threading.Thread(target=flush, args=(client,), daemon=True)
        thread.start()
        yield
        stop.set()
        thread.join(10)


def test_a_first_call_finds_no_script_and_still_answers(
    redis_space: RedisSpace, redis_store: RedisStore
) -> None:
    with redis_space.client() as client:
        client.script_flush()
        [job] = insert(redis_store)
        client.script_flush()

        assert [each.id for each in claim(redis_store, new_node())] == [job.id]


@pytest.mark.usefixtures("flushing")
def test_a_cache_that_is_flushed_at_any_moment_is_never_seen(
    redis_space: RedisSpace, redis_store: RedisStore
) -> None:
    redis_store.recurring.register(new_task(), now=T0)

    def produce() -> None:
        for _ in range(30):
            insert(redis_store)
            nudge(redis_store)

    def consume() -> int:
        done = 0
        for _ in range(30):
            redis_store.recurring.materialize(["pump"], one_instance, now=T0)
            node = new_node()
            held = claim(redis_store, node, 3)
            done += len(redis_store.jobs.finish(node, [outcome(job) for job in held], now=T0))
        return done

    _, _, first, second = together(produce, produce, consume, consume)

    rest = run_all(redis_store)
    assert len(redis_store.jobs.list(limit=500)) == first + second + len(rest)
    check_books(redis_space)


def test_a_beat_between_reading_and_ending_saves(redis_store: RedisStore) -> None:
    insert(redis_store)
    node = NodeInfo(new_node(), "host", 1, None, 2)
    [held] = claim(redis_store, node.id)

    def decide(orphan: OrphanedJob) -> AttemptOutcome:
        # The owner was slow and not dead: it beats while its end is decided.
        assert redis_store.nodes.beat(node, [HeldJob(held.id, held.attempt_token)]) == frozenset()
        return AttemptOutcome(orphan.id, orphan.attempt_token, OutcomeKind.FAILED, failure.ORPHAN)

    assert redis_store.jobs.reclaim(decide, silent_since=AFTER_ALL, limit=10, now=T0) == []
    assert redis_store.jobs.finish(node.id, [outcome(held)], now=T0) == ["recorded"]


def test_orphans_are_taken_by_id_whoever_was_silent_longest(redis_store: RedisStore) -> None:
    young, old = new_job(), new_job()
    for job in (old, young):
        redis_store.jobs.insert([job], now=T0)
        claim(redis_store, new_node())
    seen = []

    def decide(orphan: OrphanedJob) -> AttemptOutcome:
        seen.append(orphan.id)
        return AttemptOutcome(orphan.id, orphan.attempt_token, OutcomeKind.FAILED, failure.ORPHAN)

    for _ in range(2):
        redis_store.jobs.reclaim(decide, silent_since=AFTER_ALL, limit=1, now=T0)

    assert seen == [young.id, old.id]
