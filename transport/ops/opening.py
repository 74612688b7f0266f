"""Opens what tells of a process: its metrics, its traces to a collector, its health on a port of its own."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Final, Protocol

from sessions.metrics import Metrics
from transport.ops.prometheus import MetricsExposition

READY_METRICS: Final = "Metrics are ready: "


class TelemetrySettings(Protocol):
    @property
    def otlp(self) -> str: ...
    @property
    def metrics_host(self) -> str: ...
    @property
    def metrics_port(self) -> int: ...


@contextlib.asynccontextmanager
async def open_metrics(settings: TelemetrySettings, role: str, name: str, version: str) -> AsyncIterator[Metrics]:
    """Makes the process's metrics, with traces to a collector if one is set, for the time of the block. Raises
    BadInput."""
    if not settings.otlp:
        yield Metrics()
        return
    from transport.ops.otlp import otlp  # its packages are installed only for traces

    tracer = otlp(settings.otlp, role=role, name=name, version=version)
    try:
        yield Metrics(tracer)
    finally:
        await asyncio.to_thread(tracer.close)


@contextlib.asynccontextmanager
async def open_telemetry(
    settings: TelemetrySettings, measures: Metrics, role: str, version: str, readiness: Callable[[], str | None]
) -> AsyncIterator[MetricsExposition]:
    """Serves the metrics and the process's health on a port of their own, if one is set, for the time of the block.
    Raises BadInput, Unavailable."""
    exposition = MetricsExposition(measures, version=version, role=role)
    async with contextlib.AsyncExitStack() as stack:
        if settings.metrics_port >= 0:
            from transport.ops.metrics_server import MetricsServer

            host, port = settings.metrics_host, settings.metrics_port
            server = MetricsServer(exposition, host=host, port=port, readiness=readiness)
            await server.start()
            stack.push_async_callback(server.stop)
            print(f"{READY_METRICS}{server.url}/metrics", flush=True)
        yield exposition
