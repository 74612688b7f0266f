"""Plans: what fits, what limits, and what they follow."""

from __future__ import annotations

from typing import Any

from deploy.planning.calibration import shipped_calibration
from deploy.planning.gpus import GPUS
from deploy.planning.models import find_shape
from deploy.planning.planner import CapacityPlan, PlanRequest, make_plan
from deploy.planning.replica import Targets, TierSizes
from deploy.planning.workload import from_distribution


def planned(model: str = "llama-3.1-8b", gpu: str = "h100", sessions: int = 500, **changes: Any) -> CapacityPlan:
    work = from_distribution(
        sessions=sessions, opening=500, prompt=150, answer=300, turns=10, think_s=30, think_sigma=1
    )
    given: dict[str, Any] = {
        "shape": find_shape(model),
        "gpus": (GPUS[gpu],),
        "precision": "bf16",
        "kv_bytes": 2.0,
        "backend": "vllm",
        "workload": work,
        "targets": Targets(),
        "tiers": TierSizes(),
        "spare": 0,
    }
    return make_plan(PlanRequest(**(given | changes)), shipped_calibration())


def test_400b_in_16_bits_fit_no_node_of_h100_and_one_of_h200() -> None:
    h100, h200 = planned("llama-3.1-405b", "h100"), planned("llama-3.1-405b", "h200")
    assert {each.limit for each in h100.options if each.tensor * each.pipeline <= 8} == {"weights"}
    assert any(each.fits and each.gpus // each.replicas == 8 for each in h200.options)


def test_the_answer_keeps_its_targets_and_its_room() -> None:
    best = planned().best
    assert best is not None and best.load is not None
    assert best.load.tpot_ms <= 60 and best.load.ttft_p95_ms <= 2000 and best.load.kv_used <= 1
    assert best.sessions_per_replica * best.replicas >= 500


def test_more_sessions_cost_no_less_and_tighter_targets_too() -> None:
    costs = [plan.best.cost_month for plan in (planned(), planned(sessions=20_000)) if plan.best]
    assert costs[0] < costs[1]
    tight = planned(sessions=20_000, targets=Targets(tpot_ms=12)).best
    assert tight is not None and tight.cost_month > costs[1]


def test_a_target_that_nothing_keeps_is_named() -> None:
    plan = planned("llama-3.1-405b", "h200", targets=Targets(tpot_ms=1))
    assert plan.best is None
    assert {each.limit for each in plan.options} == {"TPOT", "weights"}
    assert "nothing serves this" in plan.notes[-1]


def test_host_memory_keeps_more_sessions() -> None:
    without, beside = (
        planned(gpu="l4", sessions=2000, precision="fp8", tiers=TierSizes(host=size)).best for size in (0.0, 2e12)
    )
    assert without is not None and without.load is not None and beside is not None and beside.load is not None
    assert beside.load.hits.computed < without.load.hits.computed
    assert sum((beside.load.hits.gpu, beside.load.hits.host, beside.load.hits.disk, beside.load.hits.computed)) == 1


def test_a_spare_replica_is_paid_for() -> None:
    alone, spared = planned().best, planned(spare=1).best
    assert alone is not None and spared is not None
    assert spared.replicas >= 2 and spared.cost_month > alone.cost_month
