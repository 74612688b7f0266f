"""Times of one run and of responses that ended: which of them count, and what is traced."""

from __future__ import annotations

from typing import Any

import pytest

from sessions.metrics import Metrics
from sessions.model.types import ResponseId
from sessions.turn.run_timing import RunTiming, count_ended
from tests.support.machine.machine_fixture import KEY, Ground


class Spans:
    def __init__(self) -> None:
        self.spans: list[tuple[str, dict[str, Any]]] = []

    def now_s(self) -> float:
        return 100.0

    def span(self, name: str, tenant: str, response_id: str, **more: Any) -> None:
        self.spans.append((name, more))


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


def timed(metrics: Metrics, *moments: float, whole: bool = True) -> RunTiming:
    """A run that began at 0 and made a token at each moment."""
    now = [0.0]
    timing = RunTiming(metrics, lambda: now[0], whole=whole)
    for moment in moments:
        now[0] = moment
        timing.record_tokens(1)
    return timing


def test_a_run_counts_its_first_token_and_what_lies_between_the_others(metrics: Metrics) -> None:
    timing = timed(metrics, 0.5, 0.7, 0.9)
    assert metrics.num_decoding == 1
    timing.end()
    assert metrics.num_decoding == 0
    assert (metrics.ttft_s.sum, metrics.itl_s.count) == (0.5, 2)
    assert metrics.tpot_s.sum == pytest.approx(0.2)
    assert metrics.in_target.values["true",] == 1


def test_a_continued_run_has_no_first_token_of_its_own(metrics: Metrics) -> None:
    timed(metrics, 50.0, 50.1, whole=False).end()
    assert (metrics.ttft_s.count, metrics.itl_s.count, metrics.in_target.total) == (0, 1, 0)


def test_a_run_without_tokens_counts_nothing(metrics: Metrics) -> None:
    timed(metrics).end()
    assert (metrics.num_decoding, metrics.ttft_s.count, metrics.in_target.total) == (0, 0, 0)


def test_a_span_covers_the_run(metrics: Metrics) -> None:
    tracer: Any = Spans()
    metrics.tracer = tracer
    timed(metrics, 0.5, 2.0).trace(KEY.tenant, ResponseId("r"), {"sessile.generation": 3})
    ((name, span),) = tracer.spans
    assert (name, span["begun_at"], span["ended_at"]) == ("generation", 98.0, 100.0)
    assert span["attributes"]["sessile.first_token_s"] == 0.5 and span["attributes"]["sessile.generation"] == 3


def test_ended_responses_are_counted_by_how(metrics: Metrics) -> None:
    tracer: Any = Spans()
    metrics.tracer = tracer
    ground = Ground()
    ground.create()
    first = ground.say().response_id
    assert first is not None
    ground.text(first)
    count_ended(metrics, KEY.tenant, ground.finish(first), 0.25)
    second = ground.say().response_id
    assert second is not None
    count_ended(metrics, KEY.tenant, ground.finish(second, "max_output_tokens"), 0.25)
    third = ground.say().response_id
    assert third is not None
    count_ended(metrics, KEY.tenant, ground.finish(third, "content_filter", refusal="no"), 0.25)
    assert metrics.responses.values == {("completed",): 1, ("max_output_tokens",): 1, ("content_filter",): 1}
    assert metrics.aborts.values == {("content_filter",): 1}, "what ends by itself is not cut short"
    assert (metrics.prompt_tokens.total, metrics.output_tokens.total) == (9, 6)
    assert [name for name, _ in tracer.spans] == ["journal.append", "response"] * 3
