"""Debian's Prometheus in a namespace of its own, as its operator would set it up: every pod's /metrics, by its name."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from tests.support.kubernetes.network import Network, inside
from tests.support.kubernetes.probes import http_get

ROOT: Final = Path(__file__).resolve().parents[3]
UNPACKED: Final = ROOT / ".cache" / "prometheus" / "usr" / "bin" / "prometheus"
PORT: Final = 9090
PATIENCE_S: Final = 60.0


def prometheus_program() -> str | None:
    """Where it is: unpacked by `make containers`, or installed."""
    return str(UNPACKED) if UNPACKED.exists() else shutil.which("prometheus")


class Prometheus:
    """A server that scrapes what `watch` names."""

    def __init__(self, network: Network, folder: Path, *, interval_s: int = 1) -> None:
        self._network = network
        self._folder = folder
        self._interval_s = interval_s
        self._process: subprocess.Popen[bytes] | None = None
        self._leaf, self.address = network.add("prometheus")

    def start(self) -> None:
        program = prometheus_program()
        assert program is not None, "no Prometheus: run `make containers`"
        self._folder.mkdir()
        self.watch({}, namespace="")
        job = {"job_name": "sessile", "file_sd_configs": [{"files": [str(self._folder / "pods.json")]}]}
        config = {"global": {"scrape_interval": f"{self._interval_s}s"}, "scrape_configs": [job]}
        (self._folder / "prometheus.yml").write_text(json.dumps(config))
        with inside(self._leaf), (self._folder / "log").open("wb") as log:
            self._process = subprocess.Popen(
                [
                    *(program, f"--config.file={self._folder / 'prometheus.yml'}"),
                    *(f"--storage.tsdb.path={self._folder / 'data'}", f"--web.listen-address=0.0.0.0:{PORT}"),
                ],
                stdout=log,
                stderr=log,
            )

    def watch(self, pods: Mapping[str, str], *, namespace: str) -> None:
        """Addresses by pod, with the labels that the operator puts on."""
        targets = [
            {"targets": [f"{address}:9464"], "labels": {"pod": pod, "namespace": namespace}}
            for pod, address in pods.items()
        ]
        new = self._folder / "pods.new"
        new.write_text(json.dumps(targets))
        new.replace(self._folder / "pods.json")

    async def ready(self) -> None:
        """Waits until it answers."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                try:
                    status, _ = await http_get(self._network.socket, self.address, PORT, "/-/ready")
                except OSError:
                    status = 0
                if status == 200:
                    return
                await asyncio.sleep(0.1)

    async def value(self, query: str) -> float | None:
        """An instant query's only value; None where it has none, as KEDA reads it."""
        path = f"/api/v1/query?query={quote(query)}"
        status, body = await http_get(self._network.socket, self.address, PORT, path)
        answer: dict[str, Any] = json.loads(body)
        assert status == 200 and answer["status"] == "success", f"{query}: {body.decode()}"
        found: Sequence[Any] = answer["data"]["result"]
        assert len(found) <= 1, f"{query}: KEDA takes one value, and these are {len(found)}"
        return float(found[0]["value"][1]) if found else None

    def stop(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            self._process = None
