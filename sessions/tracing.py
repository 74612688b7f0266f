"""Traces of turns: each process that worked on a response records spans of its part, and together they are one trace.

A trace's id follows from the response's id (and so does the id of its root span): whoever knows the response knows its
trace. Nothing has to be carried from process to process, the log keeps it, and a replica that takes a response over
goes on in the same trace. As any id of ours is (`docs/architecture.md`), it is derived.

    response            root: from the beginning in the log to the end in the log, wherever that was
    ├─ command          the gateway's part: from the socket to the journaled answer
    ├─ generation       one run of an engine; a failover or a redaction makes another
    └─ journal.append   the append of the terminal event

Spans name sessions and responses, never conversations' text; traces are for operators. No tracer (`Metrics.tracer` is
None) costs a comparison. Does not know OpenTelemetry.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Protocol

from sessions.model.types import ResponseId, TenantId

Attributes = Mapping[str, str | int | float | bool]


class Tracer(Protocol):
    """Records spans. Methods are plain and quick, and must not raise. Times are Unix seconds."""

    def now_s(self) -> float: ...

    def span(
        self,
        name: str,
        tenant: TenantId,
        response_id: ResponseId,
        *,
        begun_at: float,
        ended_at: float,
        attributes: Attributes,
        failed: str = "",
        root: bool = False,
    ) -> None:
        """Records a span that has ended. `failed` is an error's code, "" for none."""
        ...


def trace_ids(tenant: TenantId, response_id: ResponseId) -> tuple[int, int]:
    """Returns the ids of a response's trace and root span: 128 and 64 bits, neither of them zero."""
    digest = hashlib.blake2b(f"{tenant}\0{response_id}".encode(), digest_size=24).digest()
    return int.from_bytes(digest[:16], "big") or 1, int.from_bytes(digest[16:], "big") or 1
