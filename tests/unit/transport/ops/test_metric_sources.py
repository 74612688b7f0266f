"""The gauges that are read at a scrape."""

from __future__ import annotations

from collections import Counter

from sessions.metrics import Gauge, Metrics
from transport.ops.metric_sources import register_connection_metrics


def read(measures: Metrics, name: str) -> dict[tuple[str, ...], float]:
    family = measures.families[name]
    assert isinstance(family, Gauge)
    return dict(family.read())


def test_connection_counters_are_labelled_by_how_their_names_end() -> None:
    measures, counters = Metrics(), Counter(closed_4408=2, closed_1012=1, resumed_replay=5, connections=9)
    register_connection_metrics(measures, counters)
    assert read(measures, "connections") == {(): 9}
    assert read(measures, "connections_closed") == {("4408",): 2, ("1012",): 1}
    assert read(measures, "slow_readers") == {(): 2}
    assert read(measures, "resumes") == {("replay",): 5}
