"""A lease's fence in a caller's transaction."""

from __future__ import annotations

from sqlalchemy import Connection
from sqlalchemy.orm import Session

from threadmill_sa.errors import CannotJoinError
from threadmill_sa.model.lease import FenceVerdict, Lease
from threadmill_sa.session.handles import unwrap, unwrap_async
from threadmill_sa.spi.store import CannotJoin, JobStore


class SessionFencing:
    """Fences whatever the user holds a transaction by."""

    def __init__(self, store: JobStore) -> None:
        self._store = store

    def fence(self, handle: object, lease: Lease) -> FenceVerdict:
        return self._fence(unwrap(handle), lease)

    async def afence(self, handle: object, lease: Lease) -> FenceVerdict:
        return await unwrap_async(handle).run_sync(self._fence, lease)

    def _fence(self, handle: Session | Connection, lease: Lease) -> FenceVerdict:
        writes = self._store.joined(handle)
        if isinstance(writes, CannotJoin):
            raise CannotJoinError(
                f"a transaction cannot be fenced here: {writes.reason}; pass grant.term to the"
                " resource and let it refuse smaller ones",
                reason=writes.reason,
            )
        return writes.fence(lease)
