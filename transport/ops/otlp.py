"""Traces to an OpenTelemetry collector (OTLP over HTTP), where one is configured (`--otlp`).

Spans are handed over when they have ended and are sent in batches from a thread of the exporter's own; a collector that
is away loses spans and nothing else. The packages are those of requirements/traces.in and are imported only here, where
traces are configured.
"""

from __future__ import annotations

import time
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

from sessions.model.errors import BadInput
from sessions.model.types import ResponseId, TenantId
from sessions.tracing import Attributes, trace_ids

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import SpanProcessor

NANOS: Final = 1_000_000_000

_root: ContextVar[tuple[int, int] | None] = ContextVar("root", default=None)


class OtelTracer:
    """Implements `sessions.tracing.Tracer` with OpenTelemetry. `processor` receives the finished spans."""

    def __init__(self, processor: SpanProcessor, *, role: str, name: str, version: str) -> None:
        from opentelemetry import trace
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.id_generator import RandomIdGenerator

        class Ids(RandomIdGenerator):
            """Random ids, except for the root span of a response, whose ids follow from the response."""

            def generate_span_id(self) -> int:
                ids = _root.get()
                return ids[1] if ids is not None else super().generate_span_id()

            def generate_trace_id(self) -> int:
                ids = _root.get()
                return ids[0] if ids is not None else super().generate_trace_id()

        resource = Resource.create(
            {"service.name": "sessile", "service.version": version, "service.instance.id": name, "sessile.role": role}
        )
        self._provider = TracerProvider(resource=resource, id_generator=Ids(), shutdown_on_exit=False)
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("sessile", version)
        self._trace: Any = trace

    def now_s(self) -> float:
        return time.time()

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
        ids = trace_ids(tenant, response_id)
        trace = self._trace
        context: Any = trace.set_span_in_context(trace.INVALID_SPAN)
        if not root:
            above = trace.SpanContext(*ids, is_remote=True, trace_flags=trace.TraceFlags(trace.TraceFlags.SAMPLED))
            context = trace.set_span_in_context(trace.NonRecordingSpan(above))
        token = _root.set(ids if root else None)
        try:
            span = self._tracer.start_span(
                name,
                context,
                start_time=int(begun_at * NANOS),
                attributes={"sessile.response_id": response_id, "sessile.tenant": tenant, **attributes},
            )
        finally:
            _root.reset(token)
        if failed:
            span.set_status(trace.Status(trace.StatusCode.ERROR, failed))
        span.end(end_time=int(max(ended_at, begun_at) * NANOS))

    def close(self) -> None:
        """Sends the remaining spans. Blocks until that is done."""
        self._provider.shutdown()


def otlp(endpoint: str, *, role: str, name: str, version: str) -> OtelTracer:
    """Returns a tracer to a collector, such as `http://host:4318`. Raises BadInput for missing packages or a wrong
    address."""
    if not endpoint.startswith(("http://", "https://")):
        raise BadInput("invalid_setting", "otlp: write the address as http://host:4318 or https://…", param="otlp")
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        missing = f"otlp: the packages for traces are missing ({error}): `make setup-traces`."
        raise BadInput("invalid_setting", missing, param="otlp") from error
    exporter = OTLPSpanExporter(endpoint=endpoint.rstrip("/") + "/v1/traces", timeout=5)
    return OtelTracer(BatchSpanProcessor(exporter), role=role, name=name, version=version)
