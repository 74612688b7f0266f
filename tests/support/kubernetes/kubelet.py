"""A kubelet for tests: one pod from its beginning to its end, as its specification says.

Init containers one after the other, then the container; startup, readiness and liveness probes with their periods and
thresholds; restarts with growing pauses; at the end preStop, SIGTERM, and SIGKILL when the grace is over. One container
a pod, besides its init containers: the chart has no more. Not done: limits of resources, seccomp, service accounts.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from socket import socket
from typing import Any, Final

from tests.support.kubernetes import pods
from tests.support.kubernetes.containers import Container, ContainerSpec, Image, Mount, runtime_config
from tests.support.kubernetes.manifests import Manifest
from tests.support.kubernetes.network import Network, inside
from tests.support.kubernetes.probes import SUCCESS, Probe, Verdict, http_status, probe_of

BACKOFF_MIN_S: Final = 10.0
BACKOFF_MAX_S: Final = 300.0
AFTER_PRESTOP_S: Final = 2.0  # what Kubernetes adds where preStop has used up the grace
CUT_TAIL: Final = 3_000


class Machine:
    """What the pods of a test cluster share: images, the network, secrets, names, volumes, and where it all lies."""

    def __init__(self, folder: Path, network: Network, images: Callable[[str], Image]) -> None:
        self.folder = folder
        self.network = network
        self.image = images
        self.secrets: dict[str, dict[str, bytes]] = {}
        self.maps: dict[str, dict[str, str]] = {}
        self.hosts: dict[str, str] = {}
        self.claims: dict[str, Path] = {}
        self.random = random.Random(1)
        self.events: list[tuple[float, str]] = []

    def note(self, text: str) -> None:
        self.events.append((time.monotonic(), text))


class Pod:
    """A pod: `run` in a task of its own, `delete` once. `changed` is called whenever its state has changed."""

    def __init__(
        self, name: str, template: Manifest, machine: Machine, *, node: str, claims: Mapping[str, Path], revision: str
    ) -> None:
        self.name = name
        self.node = node
        self.revision = revision
        self.labels: dict[str, str] = dict(template["metadata"].get("labels", {}))
        self.ready = False
        self.terminating = False
        self.gone = False
        self.restarts = 0
        self.address = ""
        self.exits: list[int] = []
        self.changed: Callable[[], None] = lambda: None
        self._spec: Manifest = template["spec"]
        self._machine = machine
        self._claims = dict(claims)
        self._folder = machine.folder / f"{machine.folder.name}-{name}-{machine.random.randrange(1 << 32):08x}"
        self._container: Container | None = None
        self._number = 0
        self._leaf: Path | None = None
        self._deleted = asyncio.Event()
        self._lost = False
        pods.check(self._spec)

    @property
    def container(self) -> Container:
        assert self._container is not None
        return self._container

    @property
    def log(self) -> str:
        path = self._machine.folder / f"{self.name}.log"
        return path.read_text() if path.exists() else ""

    def port(self, name: str) -> int:
        (main,) = self._spec["containers"]
        return int(next(each["containerPort"] for each in main["ports"] if each["name"] == name))

    def delete(self) -> None:
        """It is to end, as its specification says. Idempotent."""
        self.terminating = True
        self._deleted.set()
        self.changed()

    async def lose(self) -> None:
        """Its node is gone: everything is killed at once, and nothing starts it again."""
        self._lost = True
        if self._container is not None:
            await self._container.signal(signal.SIGKILL)

    # -- from its beginning to its end --------------------------------------------------------------------------------

    async def run(self) -> None:
        try:
            self._leaf, self.address = await asyncio.to_thread(self._machine.network.add, self.name)
            (main,) = self._spec["containers"]
            volumes = self._volumes()
            specs = {each["name"]: self._container_spec(each, volumes) for each in self._containers()}
            for each in self._spec.get("initContainers", ()):
                await self._initialise(specs[each["name"]])
            await self._keep_running(main, specs[main["name"]])
        finally:
            self.ready = False
            if self._container is not None:
                await self._container.kill()
            pods.empty(self._folder)
            await asyncio.to_thread(self._machine.network.remove, self.name)
            self.gone = True
            self.changed()

    def _containers(self) -> list[Manifest]:
        return [*self._spec.get("initContainers", ()), *self._spec["containers"]]

    def _volumes(self) -> dict[str, Path]:
        of = self._machine
        made = pods.fill(self._spec, self._folder, secrets=of.secrets, maps=of.maps, claim=lambda name: of.claims[name])
        return made | {name: pods.claimed(place, self._spec) for name, place in self._claims.items()}

    def _container_spec(self, container: Manifest, volumes: Mapping[str, Path]) -> ContainerSpec:
        fields = {"metadata.name": self.name, "status.podIP": self.address}
        env = pods.environment(container, fields, self._machine.secrets)
        image = self._machine.image(container["image"])
        return pods.container_spec(container, self._spec, image, env, volumes)

    async def _start(self, spec: ContainerSpec, image: str) -> Container:
        self._number += 1
        folder = self._folder / f"{spec.name}-{self._number}"
        names = self._folder / "hosts"
        known = "".join(f"{address} {name}\n" for name, address in self._machine.hosts.items())
        names.write_text(f"127.0.0.1 localhost\n{known}")
        own = self._machine.image(image)
        shown = spec._replace(mounts=(*spec.mounts, Mount(names, "/etc/hosts")))
        container = self._container = Container(
            f"{folder.parent.name}-{folder.name}", folder, self._machine.folder / f"{self.name}.log"
        )
        await container.start(runtime_config(own, shown, hostname=self.name, network=self._leaf))
        return container

    async def _initialise(self, spec: ContainerSpec) -> None:
        (image,) = [each["image"] for each in self._spec["initContainers"] if each["name"] == spec.name]
        pause_s = 0.0
        while not self.terminating:
            container = await self._start(spec, image)
            status = await container.wait()
            await container.kill()
            if status == 0:
                return
            self._machine.note(f"{self.name}: {spec.name} ended with {status}")
            pause_s = self._longer(pause_s)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._deleted.wait(), pause_s)

    async def _keep_running(self, main: Manifest, spec: ContainerSpec) -> None:
        pause_s = 0.0
        while not self.terminating and not self._lost:
            container = await self._start(spec, main["image"])
            ending = asyncio.create_task(container.wait())
            probing = asyncio.create_task(self._probe(main))
            deleted = asyncio.create_task(self._deleted.wait())
            try:
                waiting: list[asyncio.Future[Any]] = [ending, probing, deleted]
                await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                if probing.done():
                    await probing
                probing.cancel()
                self.ready = False
                if not ending.done():
                    why = "is deleted" if self.terminating else "is not alive"
                    self._machine.note(f"{self.name} {why}")
                    self.changed()
                    await self._stop(main, container, ending)
            finally:
                for task in (probing, deleted):
                    task.cancel()
                await asyncio.gather(probing, deleted, return_exceptions=True)
                if not ending.done():
                    await container.kill()
                self.exits.append(await ending)
                self.ready = False
                self.changed()
            self._machine.note(f"{self.name} ended with {self.exits[-1]}")
            await container.kill()
            if self.terminating or self._lost:
                break
            self.restarts += 1
            if pause_s:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._deleted.wait(), pause_s)
            pause_s = self._longer(pause_s)
        if self._lost:
            await self._deleted.wait()

    @staticmethod
    def _longer(pause_s: float) -> float:
        return min(max(pause_s * 2, BACKOFF_MIN_S), BACKOFF_MAX_S)

    async def _stop(self, main: Manifest, container: Container, ending: asyncio.Task[int]) -> None:
        """preStop, SIGTERM, and SIGKILL when the grace is over, which covers all of it."""
        until = time.monotonic() + self._spec.get("terminationGracePeriodSeconds", pods.GRACE_S)
        hook: dict[str, Any] = main.get("lifecycle", {}).get("preStop", {})
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(asyncio.get_running_loop().time() + until - time.monotonic()):
                if "sleep" in hook:
                    await asyncio.wait((ending,), timeout=hook["sleep"]["seconds"])
                elif "exec" in hook:
                    status, output = await container.execute(*hook["exec"]["command"], limit_s=3_600)
                    self._machine.note(f"{self.name}: preStop ended with {status}: {output.strip()[-CUT_TAIL:]}")
                elif hook:
                    raise pods.UnknownField(f"this kubelet does not know a preStop of {', '.join(hook)}")
        await container.signal(signal.SIGTERM)
        await asyncio.wait((ending,), timeout=max(until - time.monotonic(), AFTER_PRESTOP_S))
        if not ending.done():
            self._machine.note(f"{self.name} was killed: its grace was over")
            await container.kill()

    # -- probes -------------------------------------------------------------------------------------------------------

    async def _probe(self, main: Manifest) -> None:
        """Returns when the container is to be restarted."""
        startup = probe_of(main, "startupProbe")
        if startup is not None and not await self._answers(startup, now=False, until=True):
            return
        readiness, liveness = probe_of(main, "readinessProbe"), probe_of(main, "livenessProbe")
        following: asyncio.Task[None] | None = None
        if readiness is None:
            self._now_ready(True)
        else:
            following = asyncio.create_task(self._follow(readiness))
        try:
            if liveness is None:
                await asyncio.Event().wait()
            else:
                await self._answers(liveness, now=True, until=False)
        finally:
            if following is not None:
                following.cancel()
                await asyncio.gather(following, return_exceptions=True)

    async def _answers(self, probe: Probe, *, now: bool, until: bool) -> bool:
        """Looks until it is (`until`) good, or is not; a probe that is confirmed to be bad ends it, too."""
        verdict = Verdict(probe, now=now)
        await asyncio.sleep(probe.delay_s)
        while True:
            if verdict.take(await self._status(probe)) and (verdict.good is until or not verdict.good):
                return verdict.good
            await asyncio.sleep(probe.period_s)

    async def _follow(self, probe: Probe) -> None:
        verdict = Verdict(probe, now=False)
        await asyncio.sleep(probe.delay_s)
        while True:
            verdict.take(await self._status(probe))
            self._now_ready(verdict.good)
            await asyncio.sleep(probe.period_s)

    async def _status(self, probe: Probe) -> bool:
        return await http_status(self._own_socket, self.address, probe.port, probe.path, probe.timeout_s) in SUCCESS

    def _own_socket(self) -> socket:
        """A kubelet is on its pods' node: what is cut off between nodes is not cut off from it."""
        assert self._leaf is not None
        with inside(self._leaf):
            made = socket()
        made.setblocking(False)
        return made

    def _now_ready(self, ready: bool) -> None:
        if self.ready is not ready:
            self.ready = ready
            self._machine.note(f"{self.name} is {'' if ready else 'not '}ready")
            self.changed()
