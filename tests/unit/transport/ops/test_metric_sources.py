"""The gauges that are read at a scrape."""

from __future__ import annotations

from collections import Counter
from typing import Any

from sessions.limits import Limits
from sessions.metrics import TPOT_TARGET_S, TTFT_TARGET_S, Gauge, Metrics
from sessions.model.generation import EngineStats
from transport.ops.metric_sources import latency_targets, register_connection_metrics, register_engine_metrics


def read(measures: Metrics, name: str) -> dict[tuple[str, ...], float]:
    family = measures.families[name]
    assert isinstance(family, Gauge)
    return dict(family.read())


class Engine:
    """One that has counted something."""

    smaller: EngineStats | None = None

    def stats(self) -> EngineStats:
        counters: dict[str, float] = {"prefilled_tokens": 5, "reused_tokens": 3, "spills": 2, "odd": 1}
        return EngineStats(
            slots=4, running=1, waiting=2, counters=counters, gauges={"host_bytes": 7}, smaller=self.smaller
        )


def test_engine_counters_have_names_of_their_own_or_are_events() -> None:
    measures, engine = Metrics(), Engine()
    register_engine_metrics(measures, engine)  # type: ignore[arg-type]
    assert read(measures, "num_requests_waiting") == {(): 2}
    assert read(measures, "prefix_cache_queries") == {(): 8}
    assert read(measures, "kv_cache_writes") == {("host",): 2, ("disk",): 0, ("redis",): 0}
    assert read(measures, "kv_cache_bytes") == {("host",): 7, ("disk",): 0, ("redis",): 0}
    assert read(measures, "engine_events") == {("odd",): 1}
    assert read(measures, "smaller_model_slots") == {}
    engine.smaller = EngineStats(slots=9, running=3, waiting=0, counters={"aborts": 1})
    assert read(measures, "smaller_model_slots") == {(): 9}
    assert read(measures, "smaller_model_requests") == {("running",): 3, ("waiting",): 0}
    assert read(measures, "smaller_model_events") == {("aborts",): 1}


def test_connection_counters_are_labelled_by_how_their_names_end() -> None:
    measures, counters = Metrics(), Counter(closed_4408=2, closed_1012=1, resumed_replay=5, connections=9)
    register_connection_metrics(measures, counters)
    assert read(measures, "connections") == {(): 9}
    assert read(measures, "connections_closed") == {("4408",): 2, ("1012",): 1}
    assert read(measures, "slow_readers") == {(): 2}
    assert read(measures, "resumes") == {("replay",): 5}


def test_targets_are_the_files_where_it_has_some() -> None:
    limits: Any = Limits()
    assert latency_targets(lambda: limits)(0) == (TTFT_TARGET_S, TPOT_TARGET_S)
