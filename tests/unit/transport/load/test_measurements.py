"""Goodput, percentiles, and what counts as turned away."""

from __future__ import annotations

from transport.load.measurements import ERRORS_MAX, LatencyTargets, Measurements, RequestResult, percentile, result_of
from transport.load.stream_client import StreamedAnswer


def result(kind: str = "short", **given: object) -> RequestResult:
    fields: dict[str, object] = {"ttft_s": 0.1, "tpot_s": 0.01, "sent": 0.0, "ended": 1.0, "tokens": 10, "error": ""}
    return RequestResult(kind=kind, **{**fields, "turned_away": False, "counted_pieces": False, **given})  # type: ignore[arg-type]


def test_an_answer_becomes_its_users_figures() -> None:
    answer = StreamedAnswer(sent=10.0, first=10.5, last=12.5, ended=13.0, status=200, pieces=3, usage_tokens=5)
    figures = result_of("short", answer, start=8.0)
    assert (figures.sent, figures.ended, figures.ttft_s, figures.tpot_s, figures.tokens) == (2.0, 5.0, 0.5, 0.5, 5)
    one = result_of("short", StreamedAnswer(sent=1.0, first=2.0, last=2.0, pieces=1), start=0.0)
    assert one.tpot_s is None and one.counted_pieces
    assert result_of("x", StreamedAnswer(status=429, error="HTTP 429"), 0.0).turned_away
    assert result_of("x", StreamedAnswer(status=503, error="HTTP 503", retry_after_s=1.0), 0.0).turned_away
    assert not result_of("x", StreamedAnswer(status=503, error="HTTP 503"), 0.0).turned_away


def test_a_request_is_good_when_it_is_whole_and_meets_both_targets() -> None:
    counted = Measurements(LatencyTargets(ttft_ms=100, tpot_ms=10))
    assert counted.is_good(result())
    assert counted.is_good(result(tpot_s=None))
    for bad in (result(ttft_s=0.101), result(tpot_s=0.0101), result(error="cut"), result(ttft_s=None)):
        assert not counted.is_good(bad)


def test_goodput_counts_what_failed_and_what_was_turned_away() -> None:
    counted = Measurements(LatencyTargets())
    refused = result(ttft_s=None, tpot_s=None, tokens=0, error="HTTP 429", turned_away=True)
    for each in (result(), result("long", ttft_s=3.0), refused, result("long", error="cut")):
        counted.add(each)
    long, short, whole = counted.summaries(counted.results, 2.0)
    assert (long.kind, short.kind, whole.kind) == ("long", "short", "all")
    assert (whole.requests, whole.good, whole.failed, whole.turned_away) == (4, 1, 1, 1)
    assert (whole.goodput, whole.good_per_s, whole.tokens_per_s) == (0.25, 0.5, 15.0)
    assert long.ttft_ms == {"p50": 100.0, "p95": 3000.0, "p99": 3000.0}
    nothing = counted.summary("all", [], 0.0)
    assert nothing.ttft_ms is None and nothing.goodput == 1.0


def test_percentiles_are_of_the_nearest_rank() -> None:
    hundred = [float(each) for each in range(1, 101)]
    assert [percentile(hundred, share) for share in (0.5, 0.95, 0.99, 1.0)] == [50.0, 95.0, 99.0, 100.0]
    assert percentile([7.0], 0.5) == 7.0


def test_the_newest_are_those_since_then_and_sentences_are_bounded() -> None:
    counted = Measurements(LatencyTargets())
    for number in range(ERRORS_MAX + 20):
        counted.add(result(ended=float(number), error=f"error {number}"))
    assert [each.ended for each in counted.newest(ERRORS_MAX + 18.0)] == [ERRORS_MAX + 19.0, ERRORS_MAX + 18.0]
    assert len(counted.errors) == ERRORS_MAX + 1 and counted.errors["other errors"] == 20
