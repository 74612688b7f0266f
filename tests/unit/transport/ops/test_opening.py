"""A process's metrics and health: on a port of their own where one is set, and gone with the block."""

from __future__ import annotations

import socket
from types import SimpleNamespace

import httpx
import pytest

from transport.ops.opening import READY_METRICS, open_metrics, open_telemetry


def settings(metrics_port: int) -> SimpleNamespace:
    return SimpleNamespace(otlp="", metrics_host="127.0.0.1", metrics_port=metrics_port)


async def test_metrics_and_health_stand_on_the_port_while_the_block_runs(capsys: pytest.CaptureFixture[str]) -> None:
    away: list[str | None] = ["starting"]
    async with (
        open_metrics(settings(0), "replica", "r1", "1.0") as measures,
        open_telemetry(settings(0), measures, "replica", "1.0", lambda: away[0]) as exposition,
        httpx.AsyncClient(timeout=60) as http,
    ):
        url = capsys.readouterr().out.removeprefix(READY_METRICS).strip()
        shown = (await http.get(url)).text
        assert 'role="replica"' in shown and 'version="1.0"' in shown and exposition is not None
        assert (await http.get(url.replace("/metrics", "/readyz"))).status_code == 503
        away[0] = None
        assert (await http.get(url.replace("/metrics", "/readyz"))).status_code == 200
    with socket.socket() as probe, pytest.raises(ConnectionRefusedError):
        probe.connect(("127.0.0.1", int(url.rsplit(":", 1)[1].split("/")[0])))


async def test_without_a_port_nothing_listens_and_nothing_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    async with (
        open_metrics(settings(-1), "serve", "local", "1.0") as measures,
        open_telemetry(settings(-1), measures, "serve", "1.0", lambda: None),
    ):
        assert capsys.readouterr().out == ""
