"""KEDA for tests: evaluates the queries of the chart's ScaledObjects at a real Prometheus, and scales by the answers.

What the queries give is handed to `rules.Autoscaler`, once each `pollingInterval`. A query without an answer is
no need where `ignoreNullValues` lets it be; else it is a failure, and after `fallback.failureThreshold` in a row the
number of `fallback` holds.
"""

from __future__ import annotations

import asyncio
import time
from typing import NamedTuple

from tests.support.kubernetes.cluster import Kubernetes
from tests.support.kubernetes.deployed import NAMESPACE, Deployed
from tests.support.kubernetes.manifests import Manifest, of_kind
from tests.support.kubernetes.prometheus import Prometheus
from tests.support.kubernetes.rules import Autoscaler, desired


class Reading(NamedTuple):
    """What one round has seen and done."""

    at: float
    num_pods: int
    values: dict[str, float | None]
    to: int


class Keda:
    """Use as a context. `readings` has every round."""

    def __init__(self, cluster: Deployed, *, every_s: float = 0.0) -> None:
        assert cluster.prometheus is not None, "the cluster must be watched"
        (self._scaled,) = of_kind(cluster.kubernetes.objects, "ScaledObject")
        self.readings: list[Reading] = []
        self.target: str = self._scaled["spec"]["scaleTargetRef"]["name"]
        self._kubernetes: Kubernetes = cluster.kubernetes
        self._prometheus: Prometheus = cluster.prometheus
        self._every_s = every_s or float(self._scaled["spec"]["pollingInterval"])
        self._autoscaler = Autoscaler(self._scaled)
        self._failures = 0
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Keda:
        await self._prometheus.ready()
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            pods = {pod.name: pod.address for pod in self._kubernetes.of(self.target) if pod.address}
            self._prometheus.watch(pods, namespace=NAMESPACE)
            await asyncio.sleep(self._every_s)
            await self.round()

    async def round(self) -> None:
        triggers: list[Manifest] = self._scaled["spec"]["triggers"]
        values = {each["name"]: await self._prometheus.value(each["metadata"]["query"]) for each in triggers}
        current, now = self._kubernetes.count(self.target), time.monotonic()
        known = [
            (each, values[each["name"]] or 0.0)
            for each in triggers
            if values[each["name"]] is not None or each["metadata"].get("ignoreNullValues", "true") == "true"
        ]
        fallback = self._scaled["spec"]["fallback"]
        self._failures = 0 if len(known) == len(triggers) else self._failures + 1
        if self._failures >= fallback["failureThreshold"]:
            to = fallback["replicas"]
        elif known:
            to = self._autoscaler.decide(now, current, [desired(each, value, current) for each, value in known])
        else:
            to = current
        self.readings.append(Reading(now, current, values, to))
        if to != current:
            self._kubernetes.scale(self.target, to)
