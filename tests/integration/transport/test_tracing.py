"""A turn's trace from the socket over the engine to the log, and one trace across an owner that was lost."""

from __future__ import annotations

import httpx
import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from inference.simulated import SimulatedOptions
from persistence.memory.database import MemoryDatabase
from sessions.model.errors import BadInput
from sessions.model.types import ResponseId, TenantId
from sessions.tracing import trace_ids
from tests.support.doors.assembly import Assembly, assembled
from transport.ops.otlp import OtelTracer, otlp

SLOW = SimulatedOptions(step_base_s=0.02, answer_tokens_mean=100_000)


def tracer(name: str) -> tuple[OtelTracer, InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    return OtelTracer(SimpleSpanProcessor(exporter), role="test", name=name, version="1"), exporter


def of(exporter: InMemorySpanExporter) -> dict[str, ReadableSpan]:
    return {span.name: span for span in exporter.get_finished_spans()}


async def ask(server: Assembly, tokens: int, *, background: bool = False) -> str:
    body = {"model": "simulated", "input": "tell me a secret", "max_output_tokens": tokens, "background": background}
    async with httpx.AsyncClient(base_url=server.server.url, timeout=60) as http:
        answer = await http.post("/v1/responses", json=body)
        assert answer.status_code == 200, answer.text
        return str(answer.json()["id"])


async def test_a_turn_is_one_trace_from_the_socket_to_the_log() -> None:
    async with assembled() as server:
        server.gateway.measures.tracer, exporter = tracer("only")
        response = ResponseId(await ask(server, 5))
        spans = of(exporter)
        assert set(spans) == {"command", "generation", "journal.append", "response"}
        trace_id, root_id = trace_ids(TenantId("local"), response)
        for span in spans.values():
            assert span.context is not None and span.context.trace_id == trace_id
            assert span.start_time is not None and span.end_time is not None and span.start_time <= span.end_time
            assert span.attributes is not None and span.attributes["sessile.response_id"] == response
            assert "secret" not in str(dict(span.attributes))
        root = spans.pop("response")
        assert root.context is not None and (root.context.span_id, root.parent) == (root_id, None)
        assert all(span.parent is not None and span.parent.span_id == root_id for span in spans.values())
        attributes = spans["generation"].attributes
        assert attributes is not None
        assert attributes["gen_ai.usage.output_tokens"] == 5
        assert attributes["sessile.goes_on"] is False


async def test_whoever_takes_a_response_over_goes_on_in_its_trace() -> None:
    store = MemoryDatabase()
    async with assembled(store=store, engine=SLOW) as first:
        first.gateway.measures.tracer, before = tracer("first")
        response = ResponseId(await ask(first, 40, background=True))
    assert "response" not in of(before), "its owner left in the middle of it"
    async with assembled(store=store, engine=SLOW) as second:
        second.gateway.measures.tracer, after = tracer("second")
        (head,) = await second.journal.open_heads(limit=9, after=None)
        await second.runtime.recover(head.key)
        async with httpx.AsyncClient(base_url=second.server.url, timeout=60) as http:
            told = await http.get(f"/v1/responses/{response}", params={"stream": "true"})
            assert "response.incomplete" in told.text
    trace_id, root_id = trace_ids(TenantId("local"), response)
    spans = [*before.get_finished_spans(), *after.get_finished_spans()]
    assert {span.context.trace_id for span in spans if span.context is not None} == {trace_id}
    assert [span.resource.attributes["service.instance.id"] for span in spans if span.name == "generation"] == [
        "first",
        "second",
    ]
    (root,) = [span for span in spans if span.name == "response"]
    assert root.context is not None and root.context.span_id == root_id
    assert root.start_time is not None
    assert root.start_time <= min(span.start_time for span in spans if span.start_time is not None) + 1_000_000_000


def test_an_address_that_is_none_is_refused() -> None:
    with pytest.raises(BadInput, match="http://host:4318"):
        otlp("collector:4318", role="test", name="x", version="1")
