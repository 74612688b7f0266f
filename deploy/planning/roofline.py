"""How long a step of an engine takes in ideal: what it must read, compute and send, of the GPU's published figures.

A roofline (Williams, Waterman, Patterson 2009): a matrix product takes as long as the slower of reading its weights and
its arithmetic. Experts: of E, each token picks k, so that a batch of B reads E·(1 − (1 − k/E)^B) of them. All-reduce on
n GPUs: 2·(n − 1)/n of the bytes over each link. Pure: the terms; `calibration` says how far real engines are from them.
"""

from __future__ import annotations

import math
from typing import Final

import msgspec

from deploy.planning.gpus import GpuKind
from deploy.planning.model_shape import ModelShape

WEIGHT_BYTES: Final = {"bf16": 2.0, "fp8": 1.0, "fp4": 0.5625, "int4": 0.5625}  # of four bits, with a scale every 16
ACTIVATION_BYTES: Final = 2.0


class Parallelism(msgspec.Struct, frozen=True, kw_only=True):
    """How one replica is spread: `tensor`-parallel attention groups, `data` of them, `pipeline` stages; `expert`:
    experts lie whole on GPUs, instead of each being cut."""

    tensor: int = 1
    pipeline: int = 1
    data: int = 1
    expert: int = 1

    @property
    def gpus(self) -> int:
        return self.tensor * self.data * self.pipeline


class Precision(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes of a parameter and of an element of KV."""

    weights: float
    kv: float


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """Ideal seconds of one step, and counts that cost something each."""

    weights_s: float  # matrix products outside experts: the roofline's slower side
    experts_s: float
    attention_s: float
    links_s: float
    layers: float
    linked_layers: float  # layers with an all-reduce or all-to-all
    moe_layers: float
    sequences: float  # that the host samples and detokenizes
    prefill_s: float  # arithmetic of prompts that share the step
    prefill_links_s: float


def decode_terms(
    shape: ModelShape, gpu: GpuKind, spread: Parallelism, precision: Precision, *, batch: float, context: float
) -> Terms:
    """Of one token for each of `batch` sequences (on all data-parallel groups together) that hold `context` tokens."""
    flops, width = gpu.flops(precision.weights), spread.tensor * spread.data
    per_group = max(batch / spread.data, 1.0)
    beside = (shape.attention_params + shape.dense_params + shape.head_params) / spread.tensor
    weights_s = max(beside * precision.weights / gpu.bandwidth, 2 * beside * per_group / flops)
    experts_s = 0.0
    if shape.experts:
        whole = shape.expert_params * shape.moe_layers
        read = shape.experts * (1 - (1 - shape.experts_per_token / shape.experts) ** max(batch, 1.0))
        routed = whole * shape.experts_per_token * max(batch, 1.0)
        experts_s = max(whole * read * precision.weights / gpu.bandwidth, 2 * routed / flops) / width
    read_bytes = per_group * shape.kv_read_bytes(context, precision.kv) / kv_shards(shape, spread)
    arithmetic = per_group * _attention_flops(shape, context) / spread.tensor
    return Terms(
        weights_s=weights_s,
        experts_s=experts_s,
        attention_s=max(read_bytes / gpu.bandwidth, arithmetic / gpu.bf16),
        links_s=_links_s(shape, gpu, spread, per_group),
        layers=float(shape.layers),
        linked_layers=float(shape.layers) if width > 1 else 0.0,
        moe_layers=float(shape.moe_layers),
        sequences=per_group,
        prefill_s=0.0,
        prefill_links_s=0.0,
    )


def prefill_terms(
    shape: ModelShape, gpu: GpuKind, spread: Parallelism, precision: Precision, *, tokens: float, context: float
) -> tuple[float, float]:
    """Ideal seconds of arithmetic, and on links, of so many new tokens of one prompt behind `context` that it has in
    its KV. Attention of the new tokens: half of a square, and a rectangle before it."""
    flops, width = gpu.flops(precision.weights), spread.tensor * spread.data
    mean_context = context + tokens / 2
    products = 2 * (shape.active_params - shape.head_params) * tokens / width
    attention = _attention_flops(shape, mean_context, prefill=True) * tokens / width
    return products / flops + attention / gpu.bf16, _links_s(shape, gpu, spread, tokens / spread.data)


def kv_shards(shape: ModelShape, spread: Parallelism) -> int:
    """On how many GPUs of a group a sequence's KV is cut: by its KV heads. MLA's latent lies on each of them whole."""
    return 1 if shape.latent else min(spread.tensor, shape.kv_heads)


def weight_bytes_per_gpu(shape: ModelShape, spread: Parallelism, precision: Precision) -> float:
    """Data-parallel groups hold attention and dense layers each; experts are spread over all of them. Embeddings stay
    in 16 bits."""
    beside = (shape.attention_params + shape.dense_params) * precision.weights / spread.tensor
    tables = (shape.embedding_params + shape.head_params) * max(precision.weights, 2.0) / spread.tensor
    experts = shape.expert_params * shape.experts * shape.moe_layers * precision.weights / (spread.tensor * spread.data)
    return (beside + experts) / spread.pipeline + tables


def kv_bytes_per_gpu(shape: ModelShape, spread: Parallelism, precision: Precision, tokens: int) -> float:
    """Of one sequence, on each GPU that holds a part of it."""
    return shape.kv_bytes(tokens, precision.kv) / kv_shards(shape, spread) / spread.pipeline


def _attention_flops(shape: ModelShape, context: float, *, prefill: bool = False) -> float:
    """Of one token: scores and sums, two operations each. MLA decodes on the latent itself (DeepSeek-V2, absorbed)."""
    read = min(context, shape.sparse_topk) if shape.sparse_topk else context
    seen = shape.full_layers * read + shape.window_layers * min(context, shape.window)
    size = shape.kv_elements if shape.latent and not prefill else shape.head_dim
    return 4 * shape.heads * size * seen


def _links_s(shape: ModelShape, gpu: GpuKind, spread: Parallelism, tokens: float) -> float:
    width = spread.tensor * spread.data
    if width == 1 and spread.pipeline == 1:
        return 0.0
    link = gpu.link if width <= gpu.per_node else gpu.network
    size = tokens * shape.hidden * ACTIVATION_BYTES
    total = 0.0
    if spread.tensor > 1:
        total += 2 * shape.layers * size * 2 * (spread.tensor - 1) / spread.tensor / link
    if spread.data > 1 and shape.moe_layers:  # tokens to their experts and back
        hops = min(shape.experts_per_token, width)
        total += 2 * shape.moe_layers * size / spread.tensor * hops * (width - 1) / width / link
    hop = gpu.link if spread.gpus <= gpu.per_node else gpu.network
    return total + (spread.pipeline - 1) * size / hop


def steps_until(tokens: float, chunk: float) -> int:
    """In how many steps a prompt is computed by chunks."""
    return max(1, math.ceil(tokens / chunk))
