"""Columns for charts, made of samples."""

from __future__ import annotations

from sessions.load_history import STEP_S, LoadSample
from sessions.metrics import Metrics
from transport.ops.load_series import RANGE_MIN_S, series_of, times_of

NOW_S = 1_000_000_003


def sample(at: int, ttft_s: float | None = None, kv: dict[str, float] | None = None) -> LoadSample:
    metrics = Metrics()
    if ttft_s is not None:
        metrics.ttft_s.observe(ttft_s)
    return LoadSample(at, 10.0, tuple(metrics.ttft_s.counts), 30.0, 20.0, 1.0, 0.0, 2.0, 1, 2, 4, 5, kv or {})


def test_columns_have_a_value_per_time_and_null_where_nobody_was() -> None:
    times = times_of(NOW_S, RANGE_MIN_S)
    at = times[-1]
    series = series_of(times, [sample(at, ttft_s=0.3, kv={"disk": 1.0}), sample(at, ttft_s=0.3), sample(at - STEP_S)])
    assert {len(column) for column in (series["at"], series["sessions"], *series["ttft_s"].values())} == {len(times)}
    assert series["ttft_s"]["p95"][-3:] == [None, None, 0.375]
    assert series["tokens_per_s"] == {
        "decoded": [None] * (len(times) - 2) + [2.0, 4.0],
        "prefilled": [None] * (len(times) - 2) + [3.0, 6.0],
    }
    assert series["requests"]["waiting"][-2:] == [2, 4]
    assert series["kv_bytes"] == {"disk": [None] * (len(times) - 2) + [0.0, 1.0]}
    assert series["events"]["failovers"][-2:] == [1.0, 2.0]


def test_where_no_engine_counts_kv_there_is_no_column_of_it() -> None:
    assert series_of(times_of(NOW_S, RANGE_MIN_S), [])["kv_bytes"] == {}
