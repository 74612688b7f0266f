"""Capacity plans: sizes of models, ideal times, measured ones, queues, one replica, the whole."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import msgspec
import pytest

from deploy.planning.calibration import (
    FIELDS,
    Calibration,
    CalibrationData,
    Coefficients,
    Residual,
    shipped_calibration,
)
from deploy.planning.gpus import GPUS
from deploy.planning.model_shape import BadModel, read_shape
from deploy.planning.models import find_shape, known_models
from deploy.planning.planner import CapacityPlan, PlanRequest, make_plan
from deploy.planning.queueing import mean_wait_s, residency, wait_quantile_s
from deploy.planning.replica import ReplicaLoad, Setup, Targets, TierSizes, sequence_slots, settle
from deploy.planning.roofline import (
    Parallelism,
    Precision,
    Terms,
    decode_terms,
    kv_shards,
    prefill_terms,
    weight_bytes_per_gpu,
)
from deploy.planning.workload import BadChatDemand, ChatDemand, from_distribution, from_trace

TERMS = Terms(**(dict.fromkeys(FIELDS[:-1], 0.0) | {"weights_s": 2.0}))


def row(backend: str, gpu: str, weights: float) -> Coefficients:
    return Coefficients(backend=backend, gpu=gpu, points=9, values={"weights_s": weights, "step": 0.5})


DATA = CalibrationData(
    source="test",
    coefficients=(row("", "", 1.0), row("vllm", "", 2.0), row("vllm", "h100", 3.0)),
    residuals=(Residual(backend="vllm", gpu="h100", model="m", precision="fp8", points=4, factor=2.0),),
)


@pytest.mark.parametrize(
    ("backend", "gpu", "model", "seconds"),
    [("vllm", "h100", "", 6.5), ("vllm", "l4", "", 4.5), ("sglang", "l4", "", 2.5), ("vllm", "h100", "m", 13.0)],
)
def test_the_nearest_coefficients_are_taken(backend: str, gpu: str, model: str, seconds: float) -> None:
    assert Calibration(DATA, backend=backend, gpu=gpu, model=model, precision="fp8").seconds(TERMS) == seconds


def test_what_times_rest_on_is_named() -> None:
    assert Calibration(DATA, backend="vllm", gpu="l4").basis.endswith("none of vllm on l4")


def test_the_shipped_ones_read_no_weights_faster_than_memory_gives_them() -> None:
    data = shipped_calibration()
    assert {each.backend for each in data.coefficients} == {"", "vllm", "sglang", "trtllm"}
    assert all(each.values["weights_s"] >= 1 for each in data.coefficients)
    assert all(value >= 0 for each in data.coefficients for value in each.values.values())
    assert all(0.3 < each.factor < 3 for each in msgspec.convert(data.residuals, tuple[Residual, ...]))


DENSE: dict[str, Any] = {
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 100,
    "intermediate_size": 128,
}


@pytest.mark.parametrize(
    ("name", "total", "active", "kv_bytes"),
    [
        ("llama-3.1-405b", 405.8e9, 405.8e9, 516_096),
        ("llama-3.1-8b", 8.03e9, 8.03e9, 131_072),
        ("deepseek-r1", 671e9, 37e9, 70_272),
        ("qwen3-235b-a22b", 235e9, 22e9, 192_512),
        ("gpt-oss-120b", 117e9, 5.1e9, 36_864),
    ],
)
def test_published_sizes_are_met(name: str, total: float, active: float, kv_bytes: int) -> None:
    shape = find_shape(name)
    assert shape.total_params == pytest.approx(total, rel=0.01)
    assert shape.active_params == pytest.approx(active, rel=0.07)
    long = shape.kv_bytes(200_001, 2) - shape.kv_bytes(200_000, 2)
    assert long == (kv_bytes if shape.window_layers == 0 else 36_864)


def test_every_known_model_is_read() -> None:
    assert {find_shape(name).name for name in known_models()} == {row["name"] for row in known_models().values()}


def test_a_window_bounds_what_its_layers_keep() -> None:
    windowed = read_shape(DENSE | {"sliding_window": 10}, "windowed")
    assert windowed.kv_bytes(10, 2) == windowed.kv_bytes(1000, 2) == read_shape(DENSE, "full").kv_bytes(10, 2)


def test_tied_embeddings_are_counted_once_and_read_at_every_step() -> None:
    tied, untied = read_shape(DENSE | {"tie_word_embeddings": True}, "tied"), read_shape(DENSE, "untied")
    assert untied.total_params - tied.total_params == 100 * 64
    assert tied.active_params == untied.active_params


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_size": None}, "no 'hidden_size'"),
        ({"hidden_size": -1}, "expected a positive whole number"),
        ({"num_hidden_layers": "two"}, "expected a positive whole number"),
        ({"num_hidden_layers": 100_000}, "expected at most 4096"),
        ({"layer_types": ["full_attention"]}, "names 1 layers"),
        ({"num_experts": 4, "num_experts_per_tok": 5}, "of 4 experts"),
        ({"hybrid_override_pattern": "M*"}, "not planned for yet"),
    ],
)
def test_what_cannot_be_planned_for_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(BadModel, match=message):
        read_shape(DENSE | change, "odd")


@pytest.mark.parametrize("key", ["num_key_value_heads", "head_dim", "max_position_embeddings"])
def test_what_is_zero_is_as_if_it_were_not_there(key: str) -> None:
    absent = {name: value for name, value in DENSE.items() if name != key}
    assert read_shape(DENSE | {key: 0}, "zero") == read_shape(absent, "zero")


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(BadModel, match=r"llama-3\.1-405b"):
        find_shape("no-such-model")


def test_a_file_its_folder_and_its_name_are_the_same_model(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(known_models()["llama-3.1-8b"]))
    by_file, by_folder = find_shape(str(tmp_path / "config.json")), find_shape(str(tmp_path))
    assert by_file == by_folder
    assert by_file.total_params == find_shape("Llama-3.1-8B").total_params


@pytest.mark.parametrize("text", ["{", "[]", "\ufffd", "[" * 100_000, " " * (5 * 2**20)])
def test_a_file_that_is_no_config_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(BadModel, match=r"config\.json"):
        find_shape(str(tmp_path))


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


def test_a_queue_waits_as_the_textbook_says() -> None:
    assert mean_wait_s(0.5, 1.0, 1.0) == pytest.approx(1.0)
    assert mean_wait_s(0.5, 1.0, 0.0) == pytest.approx(0.5)
    assert mean_wait_s(1.0, 1.0, 1.0) == math.inf, "it is overfull"
    assert wait_quantile_s(0.5, 1.0, 1.0, 0.95) == pytest.approx(math.log(0.5 / 0.05) / 0.5)
    assert wait_quantile_s(0.01, 1.0, 1.0, 0.95) == 0.0


EXPONENTIAL = [-math.log(1 - (index + 0.5) / 2000) for index in range(2000)]


@pytest.mark.parametrize(
    ("think_s", "held", "resident"),
    [
        *((EXPONENTIAL, held, held) for held in (0.1, 0.5, 0.9)),
        ([1.0] * 90 + [1000.0] * 10, 0.05, 0.9),  # most sleep, and who returns at once finds its KV
        ([1.0, 2.0], 0.0, 0.0),
        ([1.0, 2.0], 1.0, 1.0),
        ([5.0] * 4, 0.5, 0.0),  # least recently used, all alike: each is dropped just before its return
    ],
)
def test_who_finds_its_kv_again_follows_from_when_people_return(
    think_s: list[float], held: float, resident: float
) -> None:
    assert residency(think_s, held) == pytest.approx(resident, abs=0.01)


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


BF16 = Precision(weights=2.0, kv=2.0)
H200 = GPUS["h200"]


def test_a_single_answer_takes_what_reading_the_weights_takes() -> None:
    terms = decode_terms(find_shape("llama-3.1-405b"), H200, Parallelism(tensor=8), BF16, batch=1, context=1)
    assert terms.weights_s == pytest.approx(403.7e9 * 2 / 8 / 4.8e12, rel=0.01)


def test_many_answers_are_bound_by_arithmetic() -> None:
    shape, spread = find_shape("llama-3.1-8b"), Parallelism()
    few, many = (decode_terms(shape, H200, spread, BF16, batch=batch, context=1) for batch in (1, 4096))
    assert many.weights_s == pytest.approx(2 * shape.active_params * 4096 / 989e12, rel=0.01)
    assert few.weights_s < many.weights_s


def test_one_answer_reads_its_experts_and_many_read_all() -> None:
    shape = find_shape("deepseek-r1")
    spread = Parallelism(tensor=8)
    one, many = (decode_terms(shape, H200, spread, BF16, batch=batch, context=1) for batch in (1, 400))
    assert many.experts_s / one.experts_s == pytest.approx(256 / 8, rel=0.01)


def test_a_latent_lies_whole_on_each_gpu_and_heads_are_cut() -> None:
    spread = Parallelism(tensor=8)
    assert kv_shards(find_shape("deepseek-r1"), spread) == 1
    assert kv_shards(find_shape("llama-3.1-8b"), spread) == 8
    assert kv_shards(find_shape("qwen3-235b-a22b"), spread) == 4


def test_400b_in_16_bits_need_more_than_eight_h100() -> None:
    shape = find_shape("llama-3.1-405b")
    assert weight_bytes_per_gpu(shape, Parallelism(tensor=8), BF16) > GPUS["h100"].memory
    assert weight_bytes_per_gpu(shape, Parallelism(tensor=8), BF16) < H200.memory
    assert weight_bytes_per_gpu(shape, Parallelism(tensor=8, pipeline=2), BF16) < GPUS["h100"].memory


def test_a_long_prompt_costs_more_than_its_tokens() -> None:
    shape, spread = find_shape("llama-3.1-8b"), Parallelism()
    short, long = (prefill_terms(shape, H200, spread, BF16, tokens=n, context=0)[0] for n in (1000, 100_000))
    assert long > 150 * short


TURNS = '{"prompt_tokens": 10, "completion_tokens": 20}, {"think_s": 4, "prompt_tokens": 30, "completion_tokens": 40}'
TRACE = f'{{"turns": [{TURNS}]}}'.encode()


def spread(**changes: float) -> ChatDemand:
    given = {"sessions": 10, "opening": 100, "prompt": 50, "answer": 150, "turns": 5, "think_s": 30, "think_sigma": 1}
    return from_distribution(**(given | changes))  # type: ignore[arg-type]


def test_a_conversation_grows_by_its_turns() -> None:
    work = spread()
    assert (work.context, work.context_peak, work.private_context) == (500, 1100, 400)
    assert work.mean_think_s == pytest.approx(30 * 2.718281828**0.5, rel=0.05)
    assert set(spread(think_sigma=0).think_s) == {30.0}


def test_a_trace_says_the_same() -> None:
    work = from_trace([TRACE, b"\n"], sessions=3, opening=100)
    assert (work.prompt, work.answer, work.context, work.context_peak) == (20, 30, 115, 200)
    assert work.think_s == (0.0, 4.0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"sessions": 0}, "sessions: 0"), ({"think_s": float("nan")}, "think-s"), ({"think_sigma": 9}, "think-sigma")],
)
def test_numbers_out_of_bounds_are_refused(changes: dict[str, float], message: str) -> None:
    with pytest.raises(BadChatDemand, match=message):
        spread(**changes)


@pytest.mark.parametrize("line", [b"{", b'{"turns": [{"think_s": -1}]}', b'{"turns": 3}', b"\xff"])
def test_a_line_that_is_none_is_named(line: bytes) -> None:
    with pytest.raises(BadChatDemand, match="line 2"):
        from_trace([TRACE, line], sessions=1, opening=0)


def test_an_empty_trace_is_refused() -> None:
    with pytest.raises(BadChatDemand, match="no turns"):
        from_trace([], sessions=1, opening=0)
