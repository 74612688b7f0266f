"""Counters, histograms and gauges: exact figures, a bound on labels, one family for each name."""

from __future__ import annotations

import pytest

from sessions.metrics import OTHER, VALUES_MAX, Counter, Histogram, Histograms, Metrics, quantile_of


def test_labels_are_bounded() -> None:
    counter = Counter("c", "", ("why",))
    for number in range(VALUES_MAX + 3):
        counter.add(str(number))
    assert len(counter.values) == VALUES_MAX + 1 and counter.values[OTHER,] == 3
    family = Histograms("h", "", (1.0,), ("why",))
    for number in range(VALUES_MAX + 3):
        family.of(str(number)).observe(0.5)
    assert family.of(OTHER).count == 3


def test_a_wrong_number_of_labels_is_our_bug() -> None:
    with pytest.raises(AssertionError):
        Counter("c", "", ("why",)).add()
    with pytest.raises(AssertionError):
        Histograms("h", "", (1.0,), ()).of("why")


def test_quantiles() -> None:
    histogram = Histogram((1.0, 2.0, 4.0))
    assert quantile_of(histogram.bounds, histogram.counts, 0.5) is None
    for value in (0.5, 0.5, 3.0, 9.0):
        histogram.observe(value)
    found = [quantile_of(histogram.bounds, histogram.counts, share) for share in (0.25, 0.75, 1.0)]
    assert found == [0.5, 3.0, 4.0]


def test_the_same_name_is_the_same_family_and_its_labels_stay() -> None:
    metrics = Metrics()
    first = metrics.counter("limits_hit", "about", "kind")
    assert metrics.counter("limits_hit", "about", "kind") is first
    with pytest.raises(AssertionError):
        metrics.counter("limits_hit", "about", "other")
    with pytest.raises(AssertionError):
        metrics.histograms("limits_hit", "about", (1.0,))
