"""Traces of turns: each process that worked on a response records spans of its part, and together they are one trace.

A trace's id, and that of its root span, are derived from the response's id, like all our ids (`docs/architecture.md`):
whoever knows the response knows its trace. So nothing has to be passed from process to process, and a replica that
takes a response over goes on in the same trace.

    response            root: from the beginning in the log to the end in the log, wherever that was
    ├─ command          the gateway's part: from the socket to the journaled answer
    ├─ generation       one run of an engine; a failover or a redaction makes another
    └─ journal.append   the append of the terminal event

Spans name sessions and responses, never conversations' text; traces are for operators. Without a tracer
(`Metrics.tracer` is None) they cost one comparison. Does not know OpenTelemetry.
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
        """Records a span that has ended. `failed` is an error's code, "" if it did not fail. `root`: it is the
        response's root span."""
        ...


def trace_ids(tenant: TenantId, response_id: ResponseId) -> tuple[int, int]:
    """Returns the ids of a response's trace and root span: 128 and 64 bits, neither of them zero."""
    digest = hashlib.blake2b(f"{tenant}\0{response_id}".encode(), digest_size=24).digest()
    return int.from_bytes(digest[:16], "big") or 1, int.from_bytes(digest[16:], "big") or 1
