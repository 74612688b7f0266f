"""What the test Kubernetes decides: against what Kubernetes' own documents say of each rule."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.kubernetes.manifests import of_kind, render
from tests.support.kubernetes.pods import UnknownField, check, environment, expand, files_of, whole
from tests.support.kubernetes.probes import Verdict, probe_of
from tests.support.kubernetes.rules import (
    Autoscaler,
    PodState,
    Step,
    deployment_step,
    desired,
    disruptions_allowed,
    stateful_step,
)

ROLLING: dict[str, Any] = {"replicas": 2, "strategy": {"rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}}
PARALLEL: dict[str, Any] = {"replicas": 3, "podManagementPolicy": "Parallel"}
CHART = {
    "peers": {"insecure": True},
    "pools": {"main": {"autoscaling": {"enabled": True, "min": 1, "max": 4}}},
    "monitoring": {"prometheusUrl": "http://prometheus:9090"},
}


def pod(name: str, revision: str = "new", *, ready: bool = True, terminating: bool = False) -> PodState:
    return PodState(name, revision, ready, terminating)


def test_a_deployment_is_replaced_with_one_more_and_never_one_less() -> None:
    old = [pod("a", "old"), pod("b", "old")]
    assert deployment_step(ROLLING, "new", []) == Step(2, ())
    assert deployment_step(ROLLING, "new", old) == Step(1, ())
    assert deployment_step(ROLLING, "new", [*old, pod("c", ready=False)]) == Step(0, ()), "it waits for the new one"
    assert deployment_step(ROLLING, "new", [*old, pod("c")]) == Step(0, ("a",))
    ending = pod("a", "old", terminating=True)
    assert deployment_step(ROLLING, "new", [ending, pod("b", "old"), pod("c")]) == Step(1, ())
    assert deployment_step(ROLLING, "new", [pod("b", "old"), pod("c"), pod("d")]) == Step(0, ("b",))
    assert deployment_step(ROLLING, "new", [pod("c"), pod("d")]) == Step(0, ())


def test_parts_are_rounded_as_kubernetes_does() -> None:
    assert [whole("25%", 3, up=True), whole("25%", 3, up=False), whole(2, 3, up=True)] == [1, 0, 2]


def test_a_statefulset_takes_one_after_the_other_from_the_highest_on() -> None:
    old = [pod(f"r-{number}", "old") for number in range(3)]
    assert stateful_step("r", PARALLEL, "new", []) == Step(3, ()), "all at once"
    assert stateful_step("r", PARALLEL, "new", old) == Step(0, ("r-2",))
    assert stateful_step("r", PARALLEL, "new", [*old[:2], pod("r-2", "old", terminating=True)]) == Step(0, ())
    assert stateful_step("r", PARALLEL, "new", old[:2]) == Step(1, ())
    assert stateful_step("r", PARALLEL, "new", [*old[:2], pod("r-2", ready=False)]) == Step(0, ())
    assert stateful_step("r", PARALLEL, "new", [*old[:2], pod("r-2")]) == Step(0, ("r-1",))
    fewer = PARALLEL | {"replicas": 1}
    assert stateful_step("r", fewer, "new", [pod(f"r-{number}") for number in range(3)]) == Step(0, ("r-1", "r-2"))


def test_a_budget_counts_those_that_are_not_ready() -> None:
    budget = {"spec": {"maxUnavailable": 1}}
    pods = [pod("a"), pod("b"), pod("c")]
    assert disruptions_allowed(budget, 3, pods) == 1
    assert disruptions_allowed(budget, 3, [*pods[:2], pod("c", ready=False)]) == 0
    assert disruptions_allowed(budget, 3, [*pods[:2], pod("c", terminating=True)]) == 0


def test_needs_follow_from_values_with_a_tolerance() -> None:
    average = {"metricType": "AverageValue", "metadata": {"threshold": "2"}}
    assert [desired(average, value, 3) for value in (0.0, 6.5, 6.7, 12.1)] == [0, 3, 4, 7]
    latency = {"metricType": "Value", "metadata": {"threshold": "2"}}
    assert [desired(latency, value, 3) for value in (0.0, 2.1, 3.0, 8.0)] == [0, 3, 5, 12]


def test_the_charts_own_rule_goes_up_at_once_and_down_slowly() -> None:
    (scaled,) = of_kind(render(CHART), "ScaledObject")
    scaler = Autoscaler(scaled)
    assert scaler.decide(0, 1, [4]) == 2, "at most twice as many a minute"
    assert scaler.decide(30, 2, [4]) == 2
    assert scaler.decide(61, 2, [9]) == 4, "and no more than the most"
    assert scaler.decide(100, 4, [1]) == 4, "it waits for a quiet window"
    assert scaler.decide(360, 4, [1]) == 4, "which begins with the last need"
    assert scaler.decide(361, 4, [1]) == 3
    assert scaler.decide(363, 3, [1]) == 3, "one at a time"
    assert scaler.decide(513, 3, [0]) == 2
    assert scaler.decide(663, 2, [0]) == 1
    assert scaler.decide(900, 1, [0]) == 1, "and no fewer than the least"
    begun = Autoscaler(scaled)
    assert [begun.decide(now, 3, [1]) for now in (0, 299, 301)] == [3, 3, 2], "what it found there is held, too"


def test_probes_are_believed_after_their_thresholds() -> None:
    (gateway,) = of_kind(render(CHART), "Deployment")
    (container,) = gateway["spec"]["template"]["spec"]["containers"]
    readiness = probe_of(container, "readinessProbe")
    assert readiness is not None and (readiness.path, readiness.port, readiness.period_s) == ("/readyz", 9464, 2)
    verdict = Verdict(readiness, now=False)
    assert verdict.take(True) and verdict.good
    assert not verdict.take(False) and verdict.good, "once is no failure"
    verdict.take(True)
    assert not verdict.take(False) and verdict.take(False) and not verdict.good
    with pytest.raises(NotImplementedError):
        probe_of({"livenessProbe": {"exec": {"command": ["true"]}}}, "livenessProbe")


def test_the_environment_is_kubernetes() -> None:
    assert expand("$(A)-$$(A)-$(B)", {"A": "1"}) == "1-$(A)-$(B)"
    container = {
        "env": [
            {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
            {"name": "ADDRESS", "value": "$(POD_IP):7400"},
            {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
        ]
    }
    given = environment(container, {"status.podIP": "198.18.0.9"}, {"s": {"k": b"hidden"}})
    assert given == {"POD_IP": "198.18.0.9", "ADDRESS": "198.18.0.9:7400", "TOKEN": "hidden"}
    volume = {
        "projected": {
            "defaultMode": 0o440,
            "sources": [{"secret": {"name": "s", "items": [{"key": "k", "path": "p"}]}}],
        }
    }
    assert files_of({"name": "v", **volume}, {"s": {"k": b"hidden"}}, {}) == {"p": (b"hidden", 0o440)}


def test_every_word_of_the_charts_pods_is_known() -> None:
    for each in render(CHART):
        if each["kind"] in ("Deployment", "StatefulSet"):
            check(each["spec"]["template"]["spec"])
    with pytest.raises(UnknownField, match="hostNetwork"):
        check({"containers": [], "hostNetwork": True})
