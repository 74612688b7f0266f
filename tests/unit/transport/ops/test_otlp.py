"""Spans for an OpenTelemetry collector: ids follow from the response, so every process's spans are one trace."""

from __future__ import annotations

import pytest

from sessions.model.types import ResponseId, TenantId
from sessions.tracing import trace_ids
from transport.ops.otlp import OtelTracer

sdk = pytest.importorskip("opentelemetry.sdk.trace.export")
memory = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter")
ACME, RESPONSE = TenantId("acme"), ResponseId("resp_1")


def test_a_root_span_has_the_ids_of_its_response_and_the_rest_are_below_it() -> None:
    exporter = memory.InMemorySpanExporter()
    tracer = OtelTracer(sdk.SimpleSpanProcessor(exporter), role="serve", name="local", version="1")
    tracer.span("prefill", ACME, RESPONSE, begun_at=1.0, ended_at=2.0, attributes={"tokens": 3})
    tracer.span("response", ACME, RESPONSE, begun_at=1.0, ended_at=0.5, attributes={}, failed="lost", root=True)
    tracer.close()
    below, root = exporter.get_finished_spans()
    trace_id, span_id = trace_ids(ACME, RESPONSE)
    assert (root.context.trace_id, root.context.span_id) == (trace_id, span_id) and root.parent is None
    assert below.context.trace_id == trace_id and below.parent.span_id == span_id
    assert below.attributes["tokens"] == 3 and below.attributes["sessile.tenant"] == "acme"
    assert root.end_time == root.start_time and root.status.description == "lost"
