"""What Prometheus reads: every family as it was counted, nothing by users or sessions."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from sessions.metrics import OTHER, VALUES_MAX, Metrics
from sessions.turn.run_timing import RunTiming
from transport.ops.prometheus import MetricsExposition


async def scraped(measures: Metrics) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    body, media_type = await MetricsExposition(measures, version="1", role="test").text()
    assert media_type.startswith("text/plain")
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(body.decode())
        for sample in family.samples
    }


async def test_what_was_counted_is_shown() -> None:
    measures = Metrics()
    measures.activations.add("woken")
    measures.activations.add("woken")
    measures.journal_s.observe(0.003)
    measures.journal_s.observe(99)
    waiting: dict[tuple[str, ...], float] = {("0",): 3.0}
    measures.gauge("queue_depth", "waiting", ("priority",), lambda: waiting)
    measures.gauge("seen", "kept elsewhere", (), lambda: {(): 7}, grows=True)
    found = await scraped(measures)
    assert found["sessile_activations_total", (("cause", "woken"),)] == 2
    assert found["sessile_journal_append_latency_seconds_bucket", (("le", "0.0025"),)] == 0
    assert found["sessile_journal_append_latency_seconds_bucket", (("le", "0.005"),)] == 1
    assert found["sessile_journal_append_latency_seconds_bucket", (("le", "+Inf"),)] == 2
    assert found["sessile_journal_append_latency_seconds_count", ()] == 2
    assert found["sessile_journal_append_latency_seconds_sum", ()] == pytest.approx(99.003)
    assert found["sessile_queue_depth", (("priority", "0"),)] == 3
    assert found["sessile_seen_total", ()] == 7
    assert found["sessile_build_info", (("role", "test"), ("version", "1"))] == 1


async def test_a_quantity_that_cannot_be_read_leaves_the_others() -> None:
    measures = Metrics()
    measures.gauge("broken", "raises", (), lambda: {(): 1 / 0})
    measures.commands.add()
    found = await scraped(measures)
    assert found["sessile_commands_total", ()] == 1
    assert not any(name == "sessile_broken" for name, _ in found)


def test_the_same_name_is_the_same_family_and_labels_are_bounded() -> None:
    measures = Metrics()
    limits = measures.counter("limits_hit", "by kind", "kind")
    assert measures.counter("limits_hit", "by kind", "kind") is limits
    with pytest.raises(AssertionError):
        measures.counter("limits_hit", "by kind")
    with pytest.raises(AssertionError):
        limits.add()
    for number in range(VALUES_MAX + 50):
        limits.add(str(number))
    assert len(limits.values) == VALUES_MAX + 1
    assert limits.values[OTHER,] == 50
    assert limits.total == VALUES_MAX + 50


def test_pace_measures_first_tokens_gaps_and_targets() -> None:
    measures, now = Metrics(), [0.0]
    pace = RunTiming(measures, lambda: now[0], whole=True)
    now[0] = 0.5
    pace.record_tokens(1)
    assert measures.num_decoding == 1
    now[0] = 0.7
    pace.record_tokens(2)
    pace.end()
    assert measures.ttft_s.sum == 0.5
    assert measures.itl_s.sum == pytest.approx(0.2)
    assert measures.tpot_s.sum == pytest.approx(0.1)
    assert measures.in_target.values["true",] == 1
    assert measures.num_decoding == 0

    measures.targets_s = lambda priority: (0.4 if priority == 2 else 2.0, 1.0)
    strict = RunTiming(measures, lambda: now[0], whole=True, priority=2)
    now[0] = 1.2
    strict.record_tokens(1)
    strict.end()
    assert measures.in_target.values["false",] == 1, "half a second is too late for its priority"

    again = RunTiming(measures, lambda: now[0], whole=False)  # goes on where another stopped: no first token of its own
    now[0] = 60.0
    again.record_tokens(1)
    again.end()
    RunTiming(measures, lambda: now[0], whole=True).end()  # never said anything
    assert measures.ttft_s.count == 2
    assert measures.in_target.total == 2
