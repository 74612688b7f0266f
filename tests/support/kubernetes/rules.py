"""What Kubernetes' controllers decide, as functions of what there is: rolling updates, disruptions, how many replicas.

After the documents of Deployment, StatefulSet, PodDisruptionBudget, HorizontalPodAutoscaler and KEDA's ScaledObject.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from tests.support.kubernetes.manifests import Manifest
from tests.support.kubernetes.pods import whole

TOLERANCE: Final = 0.1  # of a HorizontalPodAutoscaler: what deviates less is left alone


class PodState(NamedTuple):
    """What controllers see of a pod."""

    name: str
    revision: str
    ready: bool
    terminating: bool


class Step(NamedTuple):
    """How many pods a Deployment is to begin now, and which are to end."""

    begin: int
    end: tuple[str, ...]


def deployment_step(spec: Manifest, revision: str, pods: Sequence[PodState]) -> Step:
    """New ones up to `maxSurge` above, old ones down to `maxUnavailable` below, those that are not ready first."""
    count = spec.get("replicas", 1)
    rolling = spec.get("strategy", {}).get("rollingUpdate", {})
    surge = whole(rolling.get("maxSurge", "25%"), count, up=True)
    unavailable = whole(rolling.get("maxUnavailable", "25%"), count, up=False)
    there = [pod for pod in pods if not pod.terminating]
    new = [pod for pod in there if pod.revision == revision]
    old = [pod for pod in there if pod.revision != revision]
    begin = max(0, min(count - len(new), count + surge - len(there)))
    end = [pod.name for pod in sorted(new, key=lambda pod: pod.ready)[: max(0, len(new) - count)]]
    spare = sum(pod.ready for pod in there) - (count - unavailable)
    for pod in sorted(old, key=lambda pod: pod.ready):
        if not pod.ready:
            end.append(pod.name)
        elif spare > 0:
            spare -= 1
            end.append(pod.name)
    return Step(begin, tuple(end))


def stateful_step(name: str, spec: Manifest, revision: str, pods: Sequence[PodState]) -> Step:
    """All that are missing at once (`Parallel`), all that are too many at once. An update takes the highest ordinal of
    another revision, and waits for each to be ready. `begin` counts; their names are the missing ordinals."""
    if spec.get("podManagementPolicy") != "Parallel":
        raise NotImplementedError("this controller knows Parallel alone")
    wanted = [f"{name}-{ordinal}" for ordinal in range(spec.get("replicas", 1))]
    there = {pod.name: pod for pod in pods}
    end = [pod.name for pod in pods if pod.name not in wanted and not pod.terminating]
    missing = sum(each not in there for each in wanted)
    for each in reversed(wanted):
        pod = there.get(each)
        if pod is not None and not pod.terminating and pod.revision != revision:
            return Step(missing, (*end, each))
        if pod is None or pod.terminating or not pod.ready:
            break
    return Step(missing, tuple(end))


def disruptions_allowed(budget: Manifest, expected: int, pods: Sequence[PodState]) -> int:
    """Of pods that a PodDisruptionBudget's selector takes."""
    healthy = sum(pod.ready and not pod.terminating for pod in pods)
    unavailable = whole(budget["spec"]["maxUnavailable"], expected, up=True)
    return max(0, healthy - (expected - unavailable))


def desired(trigger: Manifest, value: float, current: int) -> int:
    """How many replicas a trigger of KEDA's needs: a HorizontalPodAutoscaler's rule for external metrics."""
    threshold = float(trigger["metadata"]["threshold"])
    if trigger.get("metricType", "AverageValue") == "Value":
        ratio = value / threshold
        return current if abs(ratio - 1) <= TOLERANCE else math.ceil(current * ratio)
    ratio = value / (threshold * current) if current else math.inf
    return current if abs(ratio - 1) <= TOLERANCE else math.ceil(value / threshold)


class Autoscaler:
    """One ScaledObject: what it needs over time, held back by windows and policies."""

    def __init__(self, scaled: Manifest) -> None:
        spec = scaled["spec"]
        self.least: int = spec["minReplicaCount"]
        self.most: int = spec["maxReplicaCount"]
        self._behavior: dict[str, Any] = spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
        self._wishes: list[tuple[float, int]] = []
        self._changes: list[tuple[float, int]] = []

    def decide(self, now: float, current: int, needs: Sequence[int]) -> int:
        """How many there are to be from now on."""
        need = min(max(max(needs), self.least), self.most)
        if not self._wishes:
            self._wishes.append((now, current))  # what is there at first counts as a need
        up, down = self._behavior["scaleUp"], self._behavior["scaleDown"]
        lowest = min((each for at, each in self._wishes if at > now - up["stabilizationWindowSeconds"]), default=need)
        highest = max(
            (each for at, each in self._wishes if at > now - down["stabilizationWindowSeconds"]), default=need
        )
        lowest, highest = min(lowest, need), max(highest, need)
        self._wishes.append((now, need))
        to = current
        if current < lowest:
            to = min(lowest, self._bound(up, now, current, up=True))
        elif current > highest:
            to = max(highest, self._bound(down, now, current, up=False))
        if to != current:
            self._changes.append((now, to - current))
        return to

    def _bound(self, rule: Manifest, now: float, current: int, *, up: bool) -> int:
        """Of the policies the one that changes most, as `selectPolicy` has it unless it is set."""
        bounds: list[int] = []
        for policy in rule["policies"]:
            since = now - policy["periodSeconds"]
            changed = sum(by for at, by in self._changes if at > since and (by > 0) is up)
            begun = current - changed
            if policy["type"] == "Pods":
                bounds.append(begun + policy["value"] if up else begun - policy["value"])
            else:
                part = 1 + policy["value"] / 100 if up else 1 - policy["value"] / 100
                bounds.append(math.ceil(begun * part) if up else math.floor(begun * part))
        return max(current, *bounds) if up else min(current, *bounds)
