"""Values to JSON text and back, the same on every store.

Payloads are refused at enqueue when they would not come back as they went in; results and
failures are always recordable. Decision 0003 says which JSON form each type has.
"""

from __future__ import annotations

from threadmill_sa.codec.annotations import check_annotation
from threadmill_sa.codec.decode import decode_payload
from threadmill_sa.codec.encode import encode_payload
from threadmill_sa.codec.outcome import (
    EncodedResult,
    encode_result,
    error_message,
    failure_text,
)
from threadmill_sa.codec.text import recordable_text

__all__ = [
    "EncodedResult",
    "check_annotation",
    "decode_payload",
    "encode_payload",
    "encode_result",
    "error_message",
    "failure_text",
    "recordable_text",
]
