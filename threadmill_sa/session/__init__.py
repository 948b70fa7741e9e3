"""The boundary between a caller's SQLAlchemy session and the store."""

from __future__ import annotations

from threadmill_sa.session.boundary import SessionBoundary

__all__ = ["SessionBoundary"]
