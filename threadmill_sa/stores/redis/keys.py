"""Every key of the store. One hash tag, so all of them lie in one slot whatever users name."""

from __future__ import annotations

from typing import Final

from threadmill_sa.errors import InvalidNameError
from threadmill_sa.model.names import check_name

# What each holds; the scripts' headers call them by these names.
KEYS: Final = (
    "rows",  # hash: job id -> packed row (lua/lib/rows.lua)
    "payloads",  # hash: job id -> encoded payload
    "index",  # zset ordered by bytes: jobs by state, task and lane (lua/lib/index.lua)
    "counters",  # hash: s:<state>, q:<queue> and t:<task> -> number of jobs
    "delayed",  # zset: id of a SCHEDULED job -> its time
    "processing",  # zset: id of a held job -> last beat
    "trail",  # hash: <id>:<n> -> history entry, <id>:result -> result and note
    "tasks",  # hash: d:, g:, s: and r:<task> (lua/lib/tasks.lua)
    "sequences",  # hash: epoch, revision; only ever incremented
    "due",  # zset: task -> when a tick looks at it
    "nudged",  # zset: task with a pending nudge -> earliest request
    "nodes",  # hash: <node>:info, <node>:started
    "beats",  # zset: node -> last beat
    "nudge_records",  # hash: revision -> recorded nudge (lua/lib/records.lua)
    "snapshots",  # list: what was committed as runs began and nudges were dropped
    "leases",  # hash: name -> packed lease (lua/lib/leases.lua)
    "scratch",  # gone at the end of the script that uses it
)


class KeySpace:
    """The names under one prefix: `{prefix}:rows` and so on."""

    def __init__(self, prefix: str) -> None:
        check_name(prefix, kind="Redis prefix")
        if "{" in prefix or "}" in prefix:
            raise InvalidNameError(
                f"Redis prefix {prefix!r} has a brace: leave braces out, the prefix becomes the"
                " hash tag of every key",
                name=prefix,
            )
        self.prefix = prefix

    def name(self, key: str) -> str:
        """Return the full name of one of `KEYS`, or of a channel."""
        return f"{{{self.prefix}}}:{key}"
