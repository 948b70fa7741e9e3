"""Whether everything that one Redis script writes beside the rows agrees with the rows."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec

from tests.fixtures.valkey import RedisSpace
from threadmill_sa.stores.redis.keys import KeySpace

UNFINISHED = {"AWAITING", "SCHEDULED", "ENQUEUED", "PROCESSING"}
FINISHED = {"SUCCEEDED", "FAILED", "DELETED", "QUARANTINED"}
STATE, STATE_AT, SCHEDULED_AT, OWNER, ENTRIES, QUEUE = 0, 1, 3, 7, 8, 9
HANDLER, PLACE, TASK = 10, 11, 12


def check_books(space: RedisSpace) -> None:
    """Fail when an index, a counter or a set tells something else than the rows and tasks."""
    with space.client() as client:
        books = _Books(client, KeySpace(space.prefix))
        books.check_jobs()
        books.check_tasks()
        assert not client.exists(books.name("scratch"))


class _Books:
    def __init__(self, client: Any, keys: KeySpace) -> None:
        self._client = client
        self.name = keys.name
        found = self._client.hgetall(keys.name("rows"))
        self._rows: dict[str, list[Any]] = {
            key.decode(): msgspec.msgpack.decode(packed) for key, packed in found.items()
        }

    def check_jobs(self) -> None:
        members: set[bytes] = set()
        counters: Counter[str] = Counter()
        for key, row in self._rows.items():
            state, task = row[STATE], row[TASK]
            members.add(f"s\0{state}\0{key}".encode())
            if state in FINISHED:
                members.add(f"f\0{state}\0{int(row[STATE_AT]):016d}{key}".encode())
            counters[f"s:{state}"] += 1
            if task:
                members.add(f"i\0{task}\0{key}".encode())
            if task and state in UNFINISHED:
                counters[f"t:{task}"] += 1
            if state == "ENQUEUED":
                counters[f"q:{row[QUEUE]}"] += 1
                members.add(f"a\0{row[HANDLER]}\0{row[PLACE]}{key}".encode())
                members.add(f"q\0{row[HANDLER]}\0{row[QUEUE]}\0{row[PLACE]}{key}".encode())
        assert members == set(self._client.zrange(self.name("index"), 0, -1))
        counted = self._client.hgetall(self.name("counters"))
        assert counters == {field.decode(): int(count) for field, count in counted.items()}
        self._check_waits()
        self._check_trail()

    def _check_waits(self) -> None:
        due = {key: float(row[SCHEDULED_AT]) for key, row in self._of_state("SCHEDULED").items()}
        assert due == self._scores("delayed")
        held = self._of_state("PROCESSING")
        assert held.keys() == self._scores("processing").keys()
        assert all(row[OWNER] for row in held.values())
        assert not any(row[OWNER] for key, row in self._rows.items() if key not in held)

    def _check_trail(self) -> None:
        assert {key.decode() for key in self._client.hkeys(self.name("payloads"))} <= {*self._rows}
        told = {field.decode() for field in self._client.hkeys(self.name("trail"))}
        entries = {
            f"{key}:{number}"
            for key, row in self._rows.items()
            for number in range(1, row[ENTRIES] + 1)
        }
        assert {field for field in told if not field.endswith(":result")} == entries
        assert {field.split(":")[0] for field in told} <= {*self._rows}

    def check_tasks(self) -> None:
        fields = self._client.hgetall(self.name("tasks"))
        kinds: dict[str, dict[str, bytes]] = {kind: {} for kind in "dgsr"}
        for field, value in fields.items():
            kind, name = field.decode().split(":", 1)
            kinds[kind][name] = value
        assert kinds["d"].keys() == kinds["g"].keys() == kinds["s"].keys()
        assert kinds["r"].keys() == self._scores("nudged").keys()
        assert kinds["r"].keys() <= {name for name, gate in kinds["g"].items() if gate[:1] == b"1"}
        looked_at = self._scores("due")
        for name, text in kinds["s"].items():
            state = msgspec.json.decode(text)
            if state["next_run_at"] is not None:
                assert looked_at.pop(name) == float(state["next_run_at"])
            elif state["broken_at"] is not None:
                assert looked_at.pop(name) > float(state["broken_at"])
        assert looked_at == {}

    def _of_state(self, state: str) -> dict[str, list[Any]]:
        return {key: row for key, row in self._rows.items() if row[STATE] == state}

    def _scores(self, key: str) -> dict[str, float]:
        found = self._client.zrange(self.name(key), 0, -1, withscores=True)
        return {member.decode(): score for member, score in found}
