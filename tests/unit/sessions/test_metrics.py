"""Counters, histograms and gauges: exact figures, a bound on labels, one family for each name."""

from __future__ import annotations

from functools import partial

import pytest

from sessions.metrics import OTHER, VALUES_MAX, Counter, Histogram, Histograms, Metrics, quantile_of


def test_a_counter_without_labels_begins_at_zero() -> None:
    assert Counter("c", "", ()).values == {(): 0}
    assert Counter("c", "", ("why",)).values == {}


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


def test_bounds_belong_to_their_bucket_and_the_last_has_none() -> None:
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 9.0):
        histogram.observe(value)
    assert histogram.counts == [2, 1, 1] and histogram.sum == 12.0


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


def test_what_can_be_known_in_advance_is_there_from_the_start() -> None:
    metrics = Metrics()
    assert metrics.activations.values["woken",] == 0
    metrics.activated("woken", 0.5)
    assert metrics.activations.values["woken",] == 1 and metrics.activation_s.of("woken").sum == 0.5


def test_a_later_gauge_replaces_an_earlier_one() -> None:
    metrics = Metrics()
    for value in (1.0, 2.0):
        metrics.gauge("depth", "", (), partial(dict[tuple[str, ...], float], {(): value}))
    family = metrics.families["depth"]
    assert family.read() == {(): 2.0}  # type: ignore[union-attr]
