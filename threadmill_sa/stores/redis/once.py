"""What has been told already of things that every look would meet again."""

from __future__ import annotations

import logging
from typing import Final

logger = logging.getLogger("threadmill_sa.redis")

_KEPT_MAX: Final = 1000  # lines; then all may be told again


class Once:
    """Logs each line once."""

    def __init__(self) -> None:
        self._told: set[str] = set()

    def warn(self, line: str) -> None:
        if line in self._told:
            return
        if len(self._told) >= _KEPT_MAX:
            self._told.clear()
        self._told.add(line)
        logger.warning("%s", line)
