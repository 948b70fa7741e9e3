"""The closed set of reasons that enter a job's history."""

from __future__ import annotations

from typing import Final

SUCCESS: Final = "engine.success"
EXCEPTION: Final = "engine.exception"
TIMEOUT: Final = "engine.timeout"
ORPHAN: Final = "engine.orphan-reclaim"
SHUTDOWN: Final = "engine.shutdown"
QUARANTINE: Final = "engine.quarantine"
RETRY: Final = "engine.retry"
PROMOTE: Final = "engine.promote"
DELETE: Final = "user.delete"
