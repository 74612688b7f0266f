"""A Kubernetes for tests: applies rendered manifests, and keeps what they say.

Deployments, StatefulSets, Services, PodDisruptionBudgets and ConfigMaps; nodes that can be drained, cut off and killed.
Everything else that the chart makes is kept in `objects`. A Service is reached at a port of 127.0.0.1: each connection
goes to a pod that is ready and is not to end, at random; where that one does not answer within a second, to the next.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
from collections.abc import Callable, Sequence
from typing import Final

from tests.support.kubernetes.kubelet import Machine, Pod
from tests.support.kubernetes.manifests import Manifest, of_kind
from tests.support.kubernetes.rules import PodState, Step, deployment_step, disruptions_allowed, stateful_step

WORKLOADS: Final = ("Deployment", "StatefulSet")
CONNECT_S: Final = 1.0
PATIENCE_S: Final = 120.0


class EvictionRefused(Exception):
    """A PodDisruptionBudget allows none now."""


class Workload:
    """A Deployment or a StatefulSet as it is to be now."""

    def __init__(self, manifest: Manifest, count: int | None) -> None:
        self.name: str = manifest["metadata"]["name"]
        self.kind: str = manifest["kind"]
        self.spec: Manifest = manifest["spec"] | ({} if count is None else {"replicas": count})
        self.template: Manifest = manifest["spec"]["template"]
        text = json.dumps(self.template, sort_keys=True)
        self.revision = hashlib.sha256(text.encode()).hexdigest()[:10]

    @property
    def count(self) -> int:
        return int(self.spec.get("replicas", 1))

    def step(self, pods: Sequence[PodState]) -> Step:
        if self.kind == "Deployment":
            return deployment_step(self.spec, self.revision, pods)
        return stateful_step(self.name, self.spec, self.revision, pods)


class Kubernetes:
    """Use as a context; `apply` as often as you like."""

    def __init__(self, machine: Machine, nodes: Sequence[str] = ("n1", "n2", "n3")) -> None:
        self.machine = machine
        self.objects: list[Manifest] = []
        self.pods: dict[str, Pod] = {}
        self.nodes = list(nodes)
        self.unschedulable: set[str] = set()
        self._workloads: dict[str, Workload] = {}
        self._running: dict[str, asyncio.Task[None]] = {}
        self._changed = asyncio.Event()
        self._waiters: list[tuple[Callable[[], bool], asyncio.Future[None]]] = []
        self._doors: dict[str, asyncio.Server] = {}
        self._forwards: set[asyncio.Task[None]] = set()
        self._controlling: asyncio.Task[None] | None = None
        self._failure: Exception | None = None

    async def __aenter__(self) -> Kubernetes:
        self._controlling = asyncio.create_task(self._control())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._controlling is not None:
            self._controlling.cancel()
            await asyncio.gather(self._controlling, return_exceptions=True)
        for door in self._doors.values():
            door.close()
        for forward in [*self._forwards, *self._running.values()]:
            forward.cancel()
        await asyncio.gather(*self._forwards, *self._running.values(), return_exceptions=True)

    # -- what a person does -------------------------------------------------------------------------------------------

    def apply(self, manifests: Sequence[Manifest]) -> None:
        """As `helm upgrade` would. A workload without `replicas` keeps as many as it has: something scales it."""
        self.objects = list(manifests)
        for each in of_kind(manifests, "ConfigMap"):
            self.machine.maps[each["metadata"]["name"]] = each["data"]
        for kind in WORKLOADS:
            for each in of_kind(manifests, kind):
                name, before = each["metadata"]["name"], self._workloads.get(each["metadata"]["name"])
                keeps = "replicas" not in each["spec"] and before is not None
                self._workloads[name] = Workload(each, before.count if keeps and before is not None else None)
        self._wake()

    def scale(self, name: str, count: int) -> None:
        """As `kubectl scale` does, and an autoscaler."""
        self._workloads[name].spec["replicas"] = count
        self.machine.note(f"{name} is to have {count}")
        self._wake()

    def count(self, name: str) -> int:
        return self._workloads[name].count

    def of(self, name: str) -> list[Pod]:
        """A workload's pods."""
        return [pod for pod in self.pods.values() if self._owner(pod) == name]

    def is_settled(self) -> bool:
        """As many as there are to be, of the revision that they are to have, all ready."""
        return all(
            len(pods := self.of(each.name)) == each.count
            and all(pod.ready and not pod.terminating and pod.revision == each.revision for pod in pods)
            for each in self._workloads.values()
        )

    async def settles(self, limit_s: float = PATIENCE_S) -> None:
        await self.until(self.is_settled, limit_s)

    async def until(self, condition: Callable[[], bool], limit_s: float = PATIENCE_S) -> None:
        """Waits for something that becomes true when a pod's state changes."""
        if condition():
            return
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append((condition, place))
        try:
            async with asyncio.timeout(limit_s):
                await place
        except TimeoutError:
            shown = {name: (pod.ready, pod.terminating, pod.restarts) for name, pod in self.pods.items()}
            logs = "\n".join(f"{name}: {pod.log[-1_500:]}" for name, pod in self.pods.items() if not pod.ready)
            raise AssertionError(
                f"not within {limit_s:.0f} s: (ready, terminating, restarts) {shown}\n{logs}"
            ) from None

    def evict(self, name: str) -> None:
        """Asks for a pod's end, as a drain does. Raises EvictionRefused."""
        pod = self.pods[name]
        for budget in of_kind(self.objects, "PodDisruptionBudget"):
            selector = budget["spec"]["selector"]["matchLabels"]
            if not selector.items() <= pod.labels.items():
                continue
            taken = [each for each in self.pods.values() if selector.items() <= each.labels.items()]
            expected = sum(self._workloads[owner].count for owner in {self._owner(each) for each in taken})
            if disruptions_allowed(budget, expected, [_state(each) for each in taken]) < 1:
                raise EvictionRefused(f"{name}: {budget['metadata']['name']} allows no disruption now")
        pod.delete()

    async def drain(self, node: str) -> int:
        """As `kubectl drain`: pods are evicted as their budgets allow; returns how often one was refused."""
        self.unschedulable.add(node)
        refused = 0
        while left := [pod for pod in self.pods.values() if pod.node == node and not pod.terminating]:
            for pod in left:
                try:
                    self.evict(pod.name)
                except EvictionRefused:
                    refused += 1
            state = self.state()
            await self.until(lambda before=state: self.state() != before)  # type: ignore[misc]
        return refused

    def state(self) -> list[PodState]:
        return [_state(pod) for pod in self.pods.values()]

    def on(self, node: str) -> list[Pod]:
        return [pod for pod in self.pods.values() if pod.node == node]

    def cut(self, node: str) -> None:
        """The node's pods go on, and reach nobody."""
        for pod in self.on(node):
            self.machine.network.cut(pod.name)

    def heal(self, node: str) -> None:
        for pod in self.on(node):
            self.machine.network.heal(pod.name)

    async def kill(self, node: str) -> None:
        """The node is gone with its pods, and nobody hears of it."""
        self.unschedulable.add(node)
        lost = self.on(node)
        for pod in lost:
            self.machine.network.cut(pod.name)
        await asyncio.gather(*(pod.lose() for pod in lost))

    async def door(self, service: str, port: str) -> int:
        """A port of 127.0.0.1 where a Service's clients come in."""
        (manifest,) = [each for each in of_kind(self.objects, "Service") if each["metadata"]["name"] == service]
        target = next(each["targetPort"] for each in manifest["spec"]["ports"] if each["name"] == port)

        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            forward = asyncio.create_task(self._forward(manifest["spec"]["selector"], target, reader, writer))
            self._forwards.add(forward)
            forward.add_done_callback(self._forwards.discard)

        server = self._doors[f"{service}:{port}"] = await asyncio.start_server(accept, "127.0.0.1", 0)
        number: int = server.sockets[0].getsockname()[1]
        return number

    def endpoints(self, selector: Manifest) -> list[Pod]:
        return [
            pod
            for pod in self.pods.values()
            if pod.ready and not pod.terminating and selector.items() <= pod.labels.items()
        ]

    # -- controllers --------------------------------------------------------------------------------------------------

    def _owner(self, pod: Pod) -> str:
        return pod.name.rpartition("-")[0]

    def _wake(self) -> None:
        self._changed.set()
        self._check()

    def _check(self) -> None:
        for condition, place in list(self._waiters):
            if place.done():
                self._waiters.remove((condition, place))
            elif self._failure is not None:
                place.set_exception(self._failure)
            elif condition():
                place.set_result(None)

    async def _control(self) -> None:
        while self._failure is None:
            await self._changed.wait()
            self._changed.clear()
            for name in [name for name, pod in self.pods.items() if pod.gone]:
                del self.pods[name]
                await asyncio.gather(self._running.pop(name), return_exceptions=True)
            for each in self._workloads.values():
                self._reconcile(each)
            self._check()

    def _reconcile(self, workload: Workload) -> None:
        pods = self.of(workload.name)
        step = workload.step([_state(pod) for pod in pods])
        for name in step.end:
            self.pods[name].delete()
        if workload.kind == "StatefulSet":
            names = [f"{workload.name}-{number}" for number in range(workload.count)]
            names = [name for name in names if name not in self.pods][: step.begin]
        else:
            names = [f"{workload.name}-{self.machine.random.randrange(1 << 40):010x}" for _ in range(step.begin)]
        for name in names:
            self._begin(name, workload)

    def _begin(self, name: str, workload: Workload) -> None:
        claims = {
            claim["metadata"]["name"]: self.machine.folder / "volumes" / f"{claim['metadata']['name']}-{name}"
            for claim in workload.spec.get("volumeClaimTemplates", ())
        }
        usable = [node for node in self.nodes if node not in self.unschedulable]
        node = min(usable, key=lambda each: (sum(p.node == each for p in self.of(workload.name)), len(self.on(each))))
        pod = Pod(name, workload.template, self.machine, node=node, claims=claims, revision=workload.revision)
        pod.changed = self._wake
        self.pods[name] = pod
        self._running[name] = asyncio.create_task(self._run(pod))
        self.machine.note(f"{name} begins on {node}")

    async def _run(self, pod: Pod) -> None:
        try:
            await pod.run()
        except Exception as error:  # noqa: BLE001
            self._failure = error  # of the manifests, or of this kubelet: nothing that a restart mends
            self._check()

    # -- services -----------------------------------------------------------------------------------------------------

    async def _forward(
        self, selector: Manifest, target: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        pods = self.endpoints(selector)
        self.machine.random.shuffle(pods)
        for pod in pods:
            try:
                async with asyncio.timeout(CONNECT_S):
                    there = self.machine.network.socket()
                    try:
                        await asyncio.get_running_loop().sock_connect(there, (pod.address, pod.port(target)))
                    except BaseException:
                        there.close()
                        raise
            except (OSError, TimeoutError):
                continue
            other_reader, other_writer = await asyncio.open_connection(sock=there)
            await asyncio.gather(_pump(reader, other_writer), _pump(other_reader, writer))
            return
        writer.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    writer.close()


def _state(pod: Pod) -> PodState:
    return PodState(pod.name, pod.revision, pod.ready, pod.terminating)
