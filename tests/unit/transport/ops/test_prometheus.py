"""What Prometheus reads: every family as it was counted, nothing by users or sessions."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from sessions.metrics import Metrics
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
