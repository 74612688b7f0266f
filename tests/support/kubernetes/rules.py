"""What Kubernetes' controllers decide, as functions of what there is: rolling updates, disruptions, how many replicas.

After the documents of Deployment, StatefulSet, PodDisruptionBudget, HorizontalPodAutoscaler and KEDA's ScaledObject.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

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
