"""After-commit writes inside tests that wrap everything in one outer transaction."""

from __future__ import annotations

from contextlib import AbstractContextManager

from threadmill_sa.spi.commits import commit_is_final


def treat_commit_as_final() -> AbstractContextManager[None]:
    """Within the block, after-commit writes of a session on a borrowed connection happen.

    For suites that run each test in an outer transaction and roll it back at the end: there a
    commit of the session decides nothing, so `after_commit` is refused. With this switch the
    session's own commit counts, although the outer transaction may still be undone; the writes
    then stay. It holds for the whole process, nests, and changes nothing for bare connections.
    """
    return commit_is_final.hold()
