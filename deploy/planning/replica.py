"""One replica under its share of the sessions: where it settles, and what of the targets it misses.

A fixed point: faster answers bring the next question sooner, more answers at once make each slower. Of a turn, what the
KV tiers still hold is restored and the rest computed; prompts share the steps of the answers that run (chunked
prefill), so that an answer's token takes `decode / (1 - share of time that prompts take)`.
"""

from __future__ import annotations

import math
from typing import Final

import msgspec

from deploy.planning.calibration import Calibration
from deploy.planning.gpus import GpuKind
from deploy.planning.model_shape import ModelShape
from deploy.planning.queueing import mean_wait_s, residency, wait_quantile_s
from deploy.planning.roofline import (
    Parallelism,
    Precision,
    decode_terms,
    kv_bytes_per_gpu,
    kv_shards,
    prefill_terms,
    steps_until,
    weight_bytes_per_gpu,
)
from deploy.planning.workload import ChatDemand

RESERVED_BYTES: Final = 4 * 2**30  # activations, graphs, communication buffers of a GPU
USABLE: Final = 0.95  # of its memory: what an engine is given
CHUNK_TOKENS: Final = 2048  # of a prompt in one step
PCIE_BYTES_S: Final = 25e9  # host memory to a GPU, measured speeds of PCIe 4 ×16
DISK_BYTES_S: Final = 3e9  # of a node
VARIATION: Final = 1.0  # of prompts' times, squared: as if exponential
ROUNDS: Final = 40


class Targets(msgspec.Struct, frozen=True, kw_only=True):
    """0: none."""

    ttft_ms: float = 2000.0  # at p95
    tpot_ms: float = 60.0


class TierSizes(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes of a node with all of its GPUs."""

    host: float = 0.0
    disk: float = 0.0


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """What a replica is."""

    shape: ModelShape
    gpu: GpuKind
    spread: Parallelism
    precision: Precision
    calibration: Calibration
    tiers: TierSizes


class HitRates(msgspec.Struct, frozen=True, kw_only=True):
    """Where a returning session's KV is found: shares of all turns."""

    gpu: float
    host: float
    disk: float
    computed: float


class ReplicaLoad(msgspec.Struct, frozen=True, kw_only=True):
    """Where a replica settles with so many sessions."""

    sessions: float
    turns_s: float
    running: float  # answers at once
    tpot_ms: float
    ttft_p50_ms: float
    ttft_p95_ms: float
    hits: HitRates
    busy: float  # share of time that prompts take
    kv_used: float  # share of the room that running answers need
    parts_ms: dict[str, float]  # of a token, by term
    limit: str  # what is missed; "": nothing


def room_bytes(setup: Setup) -> float:
    """For KV on each GPU; below 0 where not even the weights fit."""
    return setup.gpu.memory * USABLE - RESERVED_BYTES - weight_bytes_per_gpu(setup.shape, setup.spread, setup.precision)


def sequence_slots(setup: Setup, tokens: float) -> float:
    """Sequences of so many tokens that a replica's GPUs hold at once."""
    each = kv_bytes_per_gpu(setup.shape, setup.spread, setup.precision, math.ceil(tokens))
    return max(room_bytes(setup), 0.0) / each * setup.spread.data


def settle(setup: Setup, work: ChatDemand, sessions: float, targets: Targets) -> ReplicaLoad:
    """Bisects on how many answers run at once: more of them need more turns a second than come, or fewer."""
    low, high = 0.0, max(sessions, 1e-6)
    for _ in range(ROUNDS):
        running = (low + high) / 2
        load = _load(setup, work, sessions, running, targets)
        # By Little's law so many run at once as begin, times how long each is written.
        if math.isinf(load.tpot_ms) or running >= load.turns_s * work.answer * load.tpot_ms / 1000:
            high = running
        else:
            low = running
        if high - low < 1e-3 * high:
            break
    return _load(setup, work, sessions, low if low > 0 else high, targets)


def _load(setup: Setup, work: ChatDemand, sessions: float, running: float, targets: Targets) -> ReplicaLoad:
    shape, spread = setup.shape, setup.spread
    tokens = work.context + work.prompt + work.answer / 2
    hits = _hit_rates(setup, work, sessions, running)
    batch = max(running, 1.0) / spread.pipeline  # a stage works on one share while the next stages have the others
    terms = decode_terms(shape, setup.gpu, spread, setup.precision, batch=batch, context=tokens)
    parts = setup.calibration.parts(terms)
    decode_s = math.fsum(parts.values())
    prompt_s, restore_s = _prompt_seconds(setup, work, hits)
    # Sessions go round: think, wait, read, write.
    think_s = work.mean_think_s
    cycle_s = think_s + restore_s + prompt_s + work.answer * decode_s
    turns_s = sessions / max(cycle_s, 1e-6)
    for _ in range(ROUNDS):
        busy = turns_s * prompt_s / spread.pipeline
        stretched = decode_s / (1 - busy) if busy < 0.98 else decode_s / 0.02
        wait_s = mean_wait_s(min(turns_s, 0.98 / max(prompt_s, 1e-9)), prompt_s / spread.pipeline, VARIATION)
        new = sessions / max(think_s + restore_s + wait_s + prompt_s + work.answer * stretched, 1e-6)
        if abs(new - turns_s) < 1e-4 * turns_s:
            break
        turns_s = (turns_s + new) / 2
    busy = turns_s * prompt_s / spread.pipeline
    tpot_s = decode_s / (1 - busy) if busy < 0.98 else math.inf
    service_s = prompt_s / spread.pipeline
    chunks = steps_until(work.prompt + hits.computed * work.private_context, CHUNK_TOKENS * spread.data)
    first_s = prompt_s + restore_s + (chunks + 0.5) * decode_s  # each chunk shares its step with the answers
    p50 = first_s + wait_quantile_s(turns_s, service_s, VARIATION, 0.5)
    # At p95 a session is met whose KV is nowhere, if one in twenty is like that.
    worst = first_s if hits.computed < 0.05 else first_s - prompt_s + _full_prompt_s(setup, work)
    p95 = worst + wait_quantile_s(turns_s, service_s, VARIATION, 0.95)
    used = running / max(sequence_slots(setup, tokens), 1e-9)
    load = ReplicaLoad(
        sessions=sessions,
        turns_s=turns_s,
        running=running,
        tpot_ms=tpot_s * 1000,
        ttft_p50_ms=p50 * 1000,
        ttft_p95_ms=p95 * 1000,
        hits=hits,
        busy=min(busy, 1.0),
        kv_used=used,
        parts_ms={name: value * 1000 for name, value in parts.items()} | {"prompts": (tpot_s - decode_s) * 1000},
        limit="",
    )
    return msgspec.structs.replace(load, limit=_missed(load, targets))


def _missed(load: ReplicaLoad, targets: Targets) -> str:
    if load.kv_used > 1:
        return "KV memory"
    if load.busy >= 0.98:
        return "prompts"
    if targets.tpot_ms and load.tpot_ms > targets.tpot_ms:
        return "TPOT"
    if targets.ttft_ms and load.ttft_p95_ms > targets.ttft_ms:
        return "TTFT"
    return ""


def _hit_rates(setup: Setup, work: ChatDemand, sessions: float, running: float) -> HitRates:
    """Running answers take their room first; what is left keeps idle sessions, then host memory, then disk."""
    each = setup.shape.kv_bytes(math.ceil(work.context + work.prompt + work.answer / 2), setup.precision.kv)
    idle = max(sessions - running, 1e-9)
    copies = setup.spread.tensor / kv_shards(setup.shape, setup.spread)  # a latent lies on each GPU of its group
    whole = max(room_bytes(setup), 0.0) * setup.spread.gpus / max(copies, 1.0)
    nodes = setup.spread.gpus / setup.gpu.per_node
    on_gpu = max(whole - running * each, 0.0) / each / idle
    on_host = on_gpu + setup.tiers.host * nodes / each / idle
    on_disk = on_host + setup.tiers.disk * nodes / each / idle
    gpu, host, disk = (residency(work.think_s, held) for held in (on_gpu, on_host, on_disk))
    return HitRates(gpu=gpu, host=host - gpu, disk=disk - host, computed=1 - disk)


def _prompt_seconds(setup: Setup, work: ChatDemand, hits: HitRates) -> tuple[float, float]:
    """To compute of the mean turn, and to restore. What all sessions begin with is there already."""
    fresh = _prefill_s(setup, work.prompt, work.context)
    whole = _full_prompt_s(setup, work)
    size = setup.shape.kv_bytes(math.ceil(work.private_context), setup.precision.kv)
    width = setup.spread.tensor * setup.spread.pipeline  # a sequence's GPUs read their parts beside each other
    restore = hits.host * size / (PCIE_BYTES_S * width) + hits.disk * size / DISK_BYTES_S
    return (1 - hits.computed) * fresh + hits.computed * whole, restore


def _full_prompt_s(setup: Setup, work: ChatDemand) -> float:
    return _prefill_s(setup, work.prompt + work.private_context, work.context - work.private_context)


def _prefill_s(setup: Setup, tokens: float, context: float) -> float:
    ideal = prefill_terms(setup.shape, setup.gpu, setup.spread, setup.precision, tokens=tokens, context=context)
    return setup.calibration.prefill_seconds(ideal)
