"""What Prometheus reads of a load."""

from __future__ import annotations

from transport.load.load_exposition import LoadExposition
from transport.load.measurements import LatencyTargets, Measurements, RequestResult


async def test_results_are_counted_by_kind_and_outcome() -> None:
    counted = Measurements(LatencyTargets(ttft_ms=200))
    shown = LoadExposition(counted)
    counted.in_flight = 3
    for ttft, error, turned_away in ((0.1, "", False), (0.3, "", False), (None, "cut", False), (None, "429", True)):
        shown.observe(RequestResult("short", 0, 1, ttft, None, 4, error, turned_away, False))
    text = (await shown.text())[0].decode()
    for outcome in ("good", "slow", "failed", "turned_away"):
        assert f'sessile_load_requests_total{{kind="short",outcome="{outcome}"}} 1.0' in text
    assert 'sessile_load_time_to_first_token_seconds_bucket{kind="short",le="0.2"} 1.0' in text
    assert 'sessile_load_tokens_total{kind="short"} 16.0' in text
    assert "sessile_load_requests_in_flight 3.0" in text
