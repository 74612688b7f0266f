"""How many GPUs a workload needs, of which kind, and how each replica is spread over them.

Every way to spread the model that fits is loaded with sessions until a target is missed; the cheapest one that serves
all sessions wins, fewer GPUs before more. The rest stay in the plan with what limits them. Start with `make_plan`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

import msgspec

from deploy.planning.calibration import Calibration, CalibrationData
from deploy.planning.gpus import GpuKind
from deploy.planning.model_shape import ModelShape
from deploy.planning.replica import HitRates, ReplicaLoad, Setup, Targets, TierSizes, room_bytes, sequence_slots, settle
from deploy.planning.roofline import WEIGHT_BYTES, Parallelism, Precision, weight_bytes_per_gpu
from deploy.planning.workload import ChatDemand

HOURS_MONTH: Final = 730.0
TENSOR: Final = (1, 2, 4, 8)
PIPELINE: Final = (1, 2, 4)
DATA: Final = (1, 2, 4, 8, 16)
GPUS_MAX: Final = 32  # of one replica
CURVE: Final = (0.1, 0.25, 0.5, 0.75, 0.9, 1.0, 1.15, 1.3)


class PlanRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be served, with what, and how well."""

    shape: ModelShape
    gpus: tuple[GpuKind, ...]
    precision: str
    kv_bytes: float
    backend: str
    workload: ChatDemand
    targets: Targets
    tiers: TierSizes
    spare: int = 1  # replicas beyond those needed, so that one may fail

    @property
    def stored(self) -> Precision:
        return Precision(weights=WEIGHT_BYTES[self.precision], kv=self.kv_bytes)


class TierRoom(msgspec.Struct, frozen=True, kw_only=True):
    """What a tier of the whole cluster holds."""

    tier: str
    size_gb: float
    sessions: float
    hit_rate: float


class PlanOption(msgspec.Struct, frozen=True, kw_only=True):
    """One way to serve it all, or why it cannot."""

    gpu: str
    tensor: int
    pipeline: int
    data: int
    expert: int
    replicas: int
    gpus: int
    sessions_per_replica: int  # at most, within the targets
    cost_month: float
    cost_per_million_answer: float
    cost_per_million_all: float
    weights_gb: float  # on each GPU
    limit: str  # what the next session would miss
    why: str
    basis: str  # what the times rest on
    load: ReplicaLoad | None = None
    tiers: tuple[TierRoom, ...] = ()
    curve: tuple[ReplicaLoad, ...] = ()

    @property
    def fits(self) -> bool:
        return self.replicas > 0

    @property
    def layout(self) -> str:
        parts = [f"TP{self.tensor}"]
        parts += [f"PP{self.pipeline}"] if self.pipeline > 1 else []
        parts += [f"DP{self.data}"] if self.data > 1 else []
        return " ".join(parts + ([f"EP{self.expert}"] if self.expert > 1 else []))


class CapacityPlan(msgspec.Struct, frozen=True, kw_only=True):
    """`options`: those that serve it, the cheapest first, then the rest."""

    model: str
    parameters: int
    active_parameters: int
    attention: str
    precision: str
    backend: str
    kv_bytes_token: float
    kv_session_gb: float
    sessions: int
    options: tuple[PlanOption, ...]
    notes: tuple[str, ...] = ()

    @property
    def best(self) -> PlanOption | None:
        return self.options[0] if self.options and self.options[0].fits else None


def make_plan(request: PlanRequest, data: CalibrationData) -> CapacityPlan:
    shape, work = request.shape, request.workload
    options = [_option(request, data, gpu, spread) for gpu in request.gpus for spread in spreads(shape, gpu)]
    options.sort(key=lambda each: (not each.fits, each.cost_month if each.fits else each.weights_gb, each.gpus))
    best = options[0] if options and options[0].fits else None
    if best is not None:
        options[0] = _with_curve(request, data, best)
    return CapacityPlan(
        model=shape.name,
        parameters=shape.total_params,
        active_parameters=shape.active_params,
        attention=shape.attention_kind,
        precision=request.precision,
        backend=request.backend,
        kv_bytes_token=shape.kv_bytes(work.context_peak, request.kv_bytes) / work.context_peak,
        kv_session_gb=shape.kv_bytes(math.ceil(work.context), request.kv_bytes) / 1e9,
        sessions=work.sessions,
        options=tuple(options),
        notes=_notes(request, best),
    )


def spreads(shape: ModelShape, gpu: GpuKind) -> Iterator[Parallelism]:
    """The ways to spread a replica that engines take: heads divide among GPUs, data-parallel attention has experts."""
    for tensor in TENSOR:
        if shape.heads % tensor or tensor > gpu.per_node:
            continue
        for pipeline in PIPELINE:
            if tensor * pipeline <= GPUS_MAX and pipeline <= shape.layers:
                yield Parallelism(tensor=tensor, pipeline=pipeline)
    if shape.experts:
        for data in DATA[1:]:
            if shape.experts % data == 0:
                yield Parallelism(tensor=1, data=data, expert=data)


def _option(request: PlanRequest, data: CalibrationData, gpu: GpuKind, spread: Parallelism) -> PlanOption:
    setup = _setup(request, data, gpu, spread)
    work, room = request.workload, room_bytes(setup)
    weights_gb = weight_bytes_per_gpu(request.shape, spread, request.stored) / 1e9
    empty = _empty(gpu, spread, weights_gb, setup.calibration.basis)
    if room <= 0:
        why = f"weights take {weights_gb:.0f} GB of each GPU's {gpu.memory / 1e9:.0f}"
        return msgspec.structs.replace(empty, limit="weights", why=why)
    if sequence_slots(setup, work.context_peak) < 1:
        why = f"{room / 1e9:.1f} GB are left for KV: not one conversation of {work.context_peak:,} tokens"
        return msgspec.structs.replace(empty, limit="KV memory", why=why)
    most, over = _most_sessions(setup, work, request.targets)
    if most < 1:
        return msgspec.structs.replace(empty, limit=over.limit, why=_why(over, request.targets, alone=True))
    needed = math.ceil(work.sessions / most)
    load = settle(setup, work, work.sessions / needed, request.targets)
    replicas = needed + request.spare
    gpus = replicas * spread.gpus
    hourly = gpus * gpu.hour
    turns_hour = load.turns_s * needed * 3600
    all_tokens = work.answer + work.prompt + work.context
    return msgspec.structs.replace(
        empty,
        replicas=replicas,
        gpus=gpus,
        sessions_per_replica=int(most),
        cost_month=hourly * HOURS_MONTH,
        cost_per_million_answer=hourly / (turns_hour * work.answer) * 1e6,
        cost_per_million_all=hourly / (turns_hour * all_tokens) * 1e6,
        limit=over.limit,
        why=_why(over, request.targets),
        load=load,
        tiers=_tiers(setup, work, load, replicas),
    )


def _setup(request: PlanRequest, data: CalibrationData, gpu: GpuKind, spread: Parallelism) -> Setup:
    calibration = Calibration(
        data, backend=request.backend, gpu=gpu.name, model=request.shape.name, precision=request.precision
    )
    return Setup(
        shape=request.shape,
        gpu=gpu,
        spread=spread,
        precision=request.stored,
        calibration=calibration,
        tiers=request.tiers,
    )


def _empty(gpu: GpuKind, spread: Parallelism, weights_gb: float, basis: str) -> PlanOption:
    return PlanOption(
        gpu=gpu.name,
        tensor=spread.tensor,
        pipeline=spread.pipeline,
        data=spread.data,
        expert=spread.expert,
        replicas=0,
        gpus=spread.gpus,
        sessions_per_replica=0,
        cost_month=0.0,
        cost_per_million_answer=0.0,
        cost_per_million_all=0.0,
        weights_gb=weights_gb,
        limit="",
        why="",
        basis=basis,
    )


def _most_sessions(setup: Setup, work: ChatDemand, targets: Targets) -> tuple[float, ReplicaLoad]:
    """The most that keep the targets, and what a few more miss."""
    low, high = 0.0, 1.0
    load = settle(setup, work, high, targets)
    while not load.limit:
        low, high = high, high * 2
        if high > 4 * max(work.sessions, 1):  # more than all of them
            return low, load
        load = settle(setup, work, high, targets)
    for _ in range(14):
        if high - low <= max(0.005 * high, 0.5):
            break
        middle = (low + high) / 2
        tried = settle(setup, work, middle, targets)
        if tried.limit:
            high, load = middle, tried
        else:
            low = middle
    return low, load


def _why(load: ReplicaLoad, targets: Targets, *, alone: bool = False) -> str:
    """In a sentence what stands against more sessions on a replica."""
    beside = "even alone" if alone else f"beyond {load.sessions:,.0f} sessions"
    slowest = max(load.parts_ms, key=lambda name: load.parts_ms[name])
    match load.limit:
        case "TPOT":
            return f"{beside} a token takes {load.tpot_ms:.0f} ms (target {targets.tpot_ms:g}), most of it {slowest}"
        case "TTFT":
            return f"{beside} the first token takes {load.ttft_p95_ms:,.0f} ms at p95 (target {targets.ttft_ms:g})"
        case "KV memory":
            return f"{beside} the {load.running:,.0f} answers at once need more KV than the GPUs hold"
        case "prompts":
            return f"{beside} prompts alone take all of the time; {load.hits.computed:.0%} of turns are computed anew"
        case _:
            return "one replica serves all sessions within the targets"


def _tiers(setup: Setup, work: ChatDemand, load: ReplicaLoad, replicas: int) -> tuple[TierRoom, ...]:
    each = setup.shape.kv_bytes(math.ceil(work.context + work.prompt + work.answer / 2), setup.precision.kv)
    nodes = setup.spread.gpus / setup.gpu.per_node
    hits: HitRates = load.hits
    sizes = (
        ("gpu", sequence_slots(setup, work.context + work.prompt + work.answer / 2) * each, hits.gpu),
        ("host", setup.tiers.host * nodes, hits.host),
        ("disk", setup.tiers.disk * nodes, hits.disk),
    )
    return tuple(
        TierRoom(tier=tier, size_gb=size * replicas / 1e9, sessions=size * replicas / each, hit_rate=rate)
        for tier, size, rate in sizes
    )


def _with_curve(request: PlanRequest, data: CalibrationData, best: PlanOption) -> PlanOption:
    gpu = next(each for each in request.gpus if each.name == best.gpu)
    spread = Parallelism(tensor=best.tensor, pipeline=best.pipeline, data=best.data, expert=best.expert)
    setup = _setup(request, data, gpu, spread)
    curve = tuple(
        settle(setup, request.workload, best.sessions_per_replica * share, request.targets) for share in CURVE
    )
    return msgspec.structs.replace(best, curve=curve)


def _notes(request: PlanRequest, best: PlanOption | None) -> tuple[str, ...]:
    notes = []
    if request.workload.context_peak > request.shape.context_max:
        notes.append(
            f"conversations grow to {request.workload.context_peak:,} tokens, the model's window is"
            f" {request.shape.context_max:,}: what outgrows it is left out of the context"
        )
    if request.stored.weights < request.shape.native_bytes:
        notes.append(f"weights are published wider than {request.precision}: a quantized checkpoint is needed")
    if best is None:
        notes.append("nothing serves this: another GPU, a narrower precision, shorter conversations or wider targets")
    elif best.tensor * best.pipeline * best.data > next(g.per_node for g in request.gpus if g.name == best.gpu):
        notes.append("a replica is larger than a node: vLLM's multi-node executor, one LeaderWorkerSet a replica")
    return tuple(notes)
