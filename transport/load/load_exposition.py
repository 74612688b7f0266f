"""Shows a load that runs for long to Prometheus: what users of a watched deployment feel, from outside."""

from __future__ import annotations

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from transport.load.measurements import Measurements, RequestResult

TTFT_BUCKETS = (0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1, 1.5, 2, 3, 5, 10, 30)
TPOT_BUCKETS = (0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.5, 1)


class LoadExposition:
    """Counts results as they come. `outcome` is `good`, `slow`, `failed` or `turned_away`."""

    def __init__(self, measurements: Measurements) -> None:
        self._measurements = measurements
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "sessile_load_requests", "Requests that ended.", ["kind", "outcome"], registry=self._registry
        )
        self._tokens = Counter("sessile_load_tokens", "Tokens that came.", ["kind"], registry=self._registry)
        self._ttft = Histogram(
            "sessile_load_time_to_first_token_seconds",
            "From sending a request to its first text.",
            ["kind"],
            buckets=TTFT_BUCKETS,
            registry=self._registry,
        )
        self._tpot = Histogram(
            "sessile_load_time_per_output_token_seconds",
            "Mean time for each later token of an answer.",
            ["kind"],
            buckets=TPOT_BUCKETS,
            registry=self._registry,
        )
        in_flight = Gauge("sessile_load_requests_in_flight", "Requests under way.", registry=self._registry)
        in_flight.set_function(lambda: measurements.in_flight)

    def observe(self, result: RequestResult) -> None:
        if self._measurements.is_good(result):
            outcome = "good"
        else:
            outcome = "turned_away" if result.turned_away else "failed" if result.error else "slow"
        self._requests.labels(result.kind, outcome).inc()
        self._tokens.labels(result.kind).inc(result.tokens)
        if result.ttft_s is not None:
            self._ttft.labels(result.kind).observe(result.ttft_s)
        if result.tpot_s is not None:
            self._tpot.labels(result.kind).observe(result.tpot_s)

    async def text(self) -> tuple[bytes, str]:
        """(body, media type)."""
        return generate_latest(self._registry), CONTENT_TYPE_LATEST
