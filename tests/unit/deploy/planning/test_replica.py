"""One replica under load: what settles, and what is missed first."""

from __future__ import annotations

import pytest

from deploy.planning.calibration import Calibration, shipped_calibration
from deploy.planning.gpus import GPUS
from deploy.planning.models import find_shape
from deploy.planning.replica import ReplicaLoad, Setup, Targets, TierSizes, sequence_slots, settle
from deploy.planning.roofline import Parallelism, Precision
from deploy.planning.workload import from_distribution

SETUP = Setup(
    shape=find_shape("llama-3.1-8b"),
    gpu=GPUS["h100"],
    spread=Parallelism(),
    precision=Precision(weights=2.0, kv=2.0),
    calibration=Calibration(shipped_calibration(), backend="vllm", gpu="h100"),
    tiers=TierSizes(),
)
DEMAND = from_distribution(sessions=1, opening=500, prompt=150, answer=300, turns=10, think_s=30, think_sigma=1)


def loaded(sessions: float, targets: Targets | None = None) -> ReplicaLoad:
    return settle(SETUP, DEMAND, sessions, targets or Targets())


def test_as_many_run_as_begin_times_how_long_each_is_written() -> None:
    load = loaded(200)
    assert load.running == pytest.approx(load.turns_s * 300 * load.tpot_ms / 1000, rel=0.05)


def test_more_sessions_are_slower_and_find_less() -> None:
    few, many = loaded(20), loaded(400)
    assert few.tpot_ms < many.tpot_ms and few.ttft_p95_ms < many.ttft_p95_ms
    assert few.hits.gpu > many.hits.gpu


def test_what_is_missed_first_is_named() -> None:
    assert loaded(50).limit == ""
    assert loaded(50, Targets(tpot_ms=1)).limit == "TPOT"
    assert loaded(50, Targets(ttft_ms=1)).limit == "TTFT"
    assert loaded(1_000_000).limit in ("KV memory", "prompts")


def test_slots_are_what_memory_has_room_for() -> None:
    assert sequence_slots(SETUP, 1000) == pytest.approx(2 * sequence_slots(SETUP, 2000))
