"""Sessile from its rendered chart, on a test Kubernetes, with a real Valkey, PostgreSQL and, where wanted, Prometheus.

Each pod and each server has a network namespace of its own. Images are built ones where a layout is given, else this
checkout on this machine's system. Needs root, crun and iproute2: `make containers`.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final

from persistence.open_store import open_store
from testbed.chaos.cluster import key_of
from testbed.chaos.device import Device
from testbed.chaos.verdict import judge, log_of
from testbed.postgres_server import PostgresServer
from testbed.valkey_server import Server as Valkey
from tests.support.kubernetes.cluster import Kubernetes
from tests.support.kubernetes.containers import Image, built_image, host_image
from tests.support.kubernetes.kubelet import Machine
from tests.support.kubernetes.manifests import Manifest, over, render
from tests.support.kubernetes.network import SUBNET, Network, inside
from tests.support.kubernetes.prometheus import Prometheus

RELEASE: Final = "sessile"
NAMESPACE: Final = "chat"
GATEWAY: Final = "sessile-gateway"
POOL: Final = "sessile-main"
PROMETHEUS: Final = "http://prometheus.monitoring:9090"
SIMULATED: Final[dict[str, Any]] = {
    "peers": {"insecure": True},
    "secret": {"keys": {"masterKey": ""}},  # the verdict reads the journal
    "gateway": {"files": "limits", "settings": {"limits": "/etc/sessile/limits.toml"}},
    "pools": {
        "main": {
            "engine": "sim",
            "model": "sim",
            "replicas": 3,
            "slots": 64,
            "kv": {"diskMb": 64, "memoryMb": 64, "volumeSize": "1Gi"},
            "settings": {"sim_answer_tokens": 0},
        }
    },
}
"""Values for replicas with the simulated engine."""


class Deployed:
    """The cluster that a chart has made. It is a target of `chaos.load`."""

    def __init__(self, kubernetes: Kubernetes, dsn: str, prometheus: Prometheus | None) -> None:
        self.kubernetes = kubernetes
        self.prometheus = prometheus
        self.urls: list[str] = []
        self.port = 0
        self.key = ""
        self.store = open_store(dsn, folder=None)
        self.journal = self.store.journal
        self._values: Mapping[str, Any] = {}

    async def upgrade(self, values: Mapping[str, Any]) -> None:
        """`helm upgrade`, with values over those that it has."""
        self.kubernetes.apply(await self.rendered(values))

    async def rendered(self, values: Mapping[str, Any]) -> list[Manifest]:
        """What is applied to change these values. Helm's library holds this process up for most of a second, in
        whatever thread: who times clients in it renders before."""
        self._values = over(self._values, values)
        return await asyncio.to_thread(render, self._values, release=RELEASE, namespace=NAMESPACE)

    async def open(self, devices: int) -> None:
        """Waits for everything, makes a key as docs/deployment.md says, opens the gateways' Service."""
        await self.kubernetes.settles()
        await self.store.open()
        gateway = self.kubernetes.of(GATEWAY)[0]
        words = ("keys", "create", "--tenant", "local", "--role", "service", "--label", "first", "--json")
        status, output = await gateway.container.execute("/opt/sessile/sessile", *words)
        assert status == 0, output
        self.key = json.loads(output.splitlines()[-1])["key"]  # logs stand before it
        self.port = await self.kubernetes.door(GATEWAY, "http")
        self.urls = [f"ws://127.0.0.1:{self.port}/v1/ws"] * devices

    async def owner(self, session: str) -> str:
        """The pod that was granted a session last, by the journal's word."""
        head = await self.journal.head(key_of(session))
        assert head is not None
        return head.owner.rpartition("/")[0]

    async def findings(
        self, devices: Iterable[Device], sessions: Iterable[str], *, restored: bool = False
    ) -> list[str]:
        logs = {session: await log_of(self.journal, key_of(session)) for session in sessions}
        return judge(devices, logs, restored=restored)


def postgres_in(network: Network) -> tuple[PostgresServer, str]:
    """A server at an address of its own, and how pods reach it."""
    leaf, address = network.add("postgres")
    server = PostgresServer("-c", f"listen_addresses={address}")
    rules = Path(server.socket).parent / "data" / "pg_hba.conf"
    with rules.open("a") as file:
        file.write(f"host all all {SUBNET} trust\n")
    with inside(leaf):
        server.start()
    return server, f"postgresql://postgres@{address}/postgres?sslmode=disable"


def valkey_in(network: Network) -> tuple[Valkey, str]:
    leaf, address = network.add("valkey")
    server = Valkey("--bind", "127.0.0.1", address, "--protected-mode", "no", port=6379)
    with inside(leaf):
        server.start()
    return server, f"redis://{address}:6379"


def is_possible() -> str:
    """Why a chart cannot be run on this machine; empty: it can."""
    if os.geteuid():
        return "network namespaces need root"
    absent = [tool for tool in ("crun", "ip") if shutil.which(tool) is None]
    if absent:
        return f"{' and '.join(absent)} are not installed: `make containers`"
    if subprocess.run(["unshare", "--net", "true"], capture_output=True).returncode:
        return "this kernel gives no network namespaces"
    return ""


@asynccontextmanager
async def deployed(
    values: Mapping[str, Any],
    *,
    devices: int = 2,
    layout: Path | None = None,
    claims: Mapping[str, Path] | None = None,
    watched: bool = False,
    nodes: Sequence[str] = ("n1", "n2", "n3"),
) -> AsyncIterator[Deployed]:
    """`layout`: of a built image. `claims`: folders of claims that the values name. `watched`: with Prometheus."""
    folder = Path(tempfile.mkdtemp(prefix="sk-"))
    folder.chmod(0o755)
    network = Network()
    images: dict[str, Image] = {}

    def image(reference: str) -> Image:
        variant = reference.rpartition("-")[2]
        if variant not in images:
            place = folder / f"image-{variant}"
            images[variant] = host_image(place) if layout is None else built_image(layout, variant, place)
        return images[variant]

    async with AsyncExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        stack.callback(network.stop)
        network.start()
        postgres, journal = postgres_in(network)
        stack.callback(postgres.remove)
        valkey, directory = valkey_in(network)
        stack.callback(valkey.stop)
        machine = Machine(folder, network, image)
        machine.claims = dict(claims or {})
        machine.maps["limits"] = {"limits.toml": ""}  # one key speaks for all
        token = secrets.token_hex(32).encode()
        machine.secrets["sessile"] = {
            "directory": directory.encode(),
            "journal": journal.encode(),
            "peer-token": token,
            "master-key": secrets.token_hex(32).encode(),
        }
        kubernetes = Kubernetes(machine, nodes)
        prometheus = Prometheus(network, folder / "prometheus") if watched else None
        if prometheus is not None:
            prometheus.start()
            stack.callback(prometheus.stop)
            machine.hosts["prometheus.monitoring"] = prometheus.address
        await stack.enter_async_context(kubernetes)
        made = Deployed(kubernetes, postgres.dsn, prometheus)
        await made.upgrade(over(SIMULATED, values))
        stack.push_async_callback(made.store.close)
        await made.open(devices)
        yield made


def timeline(machine: Machine) -> str:
    """What has happened, for people."""
    begun = machine.events[0][0] if machine.events else 0.0
    return "\n".join(f"{at - begun:8.2f} s  {text}" for at, text in machine.events)
