"""The store that lives in this process: the same contract, nothing survives its end."""

from __future__ import annotations

from threadmill_sa.stores.memory.store import MemoryStore

__all__ = ["MemoryStore"]
