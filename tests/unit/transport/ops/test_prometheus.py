"""What Prometheus reads: every family as it was counted, nothing by users or sessions."""

from __future__ import annotations

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


async def test_a_quantity_that_cannot_be_read_leaves_the_others() -> None:
    measures = Metrics()
    measures.gauge("broken", "raises", (), lambda: {(): 1 / 0})
    measures.commands.add()
    found = await scraped(measures)
    assert found["sessile_commands_total", ()] == 1
    assert not any(name == "sessile_broken" for name, _ in found)
