"""`Metrics` as Prometheus reads them. Names, labels and text are made here, at a scrape, and nowhere else.

prometheus-client writes the exposition format; its own counters, with their locks and labels, are not used. It is
imported at the first scrape, in a thread, because that takes a quarter of a second.

Source: the Prometheus exposition formats; docs/metrics.md lists what comes out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from importlib import import_module
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final

import structlog

from sessions.metrics import Counter, Gauge, Histograms, Metrics

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.metrics_core import Metric

PREFIX: Final = "sessile_"

log = structlog.get_logger(__name__)


class MetricsExposition:
    """The metrics of one process in Prometheus' format. Metrics that are added to `measures` later are shown too."""

    def __init__(self, measures: Metrics, *, version: str, role: str) -> None:
        self._measures = measures
        self.version = version
        self._about = {"version": version, "role": role}
        self._registry: CollectorRegistry | None = None
        self._client: Any = None

    async def text(self) -> tuple[bytes, str]:
        """Returns (body, media type) of the metrics."""
        if self._client is None:
            self._client = await asyncio.to_thread(import_module, "prometheus_client")
        if self._registry is None:
            self._registry = self._client.CollectorRegistry()
            self._client.ProcessCollector(registry=self._registry)
            self._client.Info(PREFIX + "build", "What runs here.", registry=self._registry).info(self._about)
            self._registry.register(self)
        return self._client.generate_latest(self._registry), self._client.CONTENT_TYPE_LATEST

    def collect(self) -> Iterator[Metric]:
        """Yields all metrics; implements prometheus-client's collector."""
        from prometheus_client.metrics_core import (
            CounterMetricFamily,
            GaugeMetricFamily,
            HistogramMetricFamily,
        )

        for family in list(self._measures.families.values()):
            name = PREFIX + family.name
            shown: CounterMetricFamily | GaugeMetricFamily
            match family:
                case Counter():
                    shown = CounterMetricFamily(name, family.about, labels=family.labels)
                    for labels, value in family.values.items():
                        shown.add_metric(labels, value)
                    yield shown
                case Gauge():
                    kind = CounterMetricFamily if family.grows else GaugeMetricFamily
                    shown = kind(name, family.about, labels=family.labels)
                    try:
                        for labels, value in family.read().items():
                            shown.add_metric(labels, value)
                    except Exception:  # one quantity that cannot be read does not take the rest along
                        log.exception("metric_read_failed", metric=name)
                    yield shown
                case Histograms():
                    spread = HistogramMetricFamily(name, family.about, labels=family.labels)
                    for labels, histogram in family.values.items():
                        bounds = [*(repr(float(bound)) for bound in family.bounds), "+Inf"]
                        cumulative = list(accumulate(histogram.counts))
                        spread.add_metric(labels, list(zip(bounds, cumulative, strict=True)), histogram.sum)
                    yield spread
