"""Reads what decides a model's speed and memory out of a `config.json`: layers, attention, experts, parameters.

Sources: Vaswani et al. 2017 (attention), Ainslie et al. 2023 (GQA), DeepSeek-V2 2024 (MLA: one latent and one rotary
key a token), Beltagy et al. 2020 (sliding windows), Yang et al. 2024 (gated delta rule: a state of fixed size), Shazeer
2017 (experts). Counts leave norms and biases out: below 0.1% of the parameters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

LAYERS_MAX: Final = 4_096  # of any model; a list is made of so many
WINDOWED: Final = frozenset({"sliding_attention", "chunked_attention"})
RECURRENT: Final = frozenset({"linear_attention", "mamba", "recurrent"})
# Layers that are not counted here: mixed Mamba, compressed attention, experts in every other layer.
UNREADABLE: Final = frozenset(
    {
        "block_configs",
        "compress_ratios",
        "hybrid_layer_pattern",
        "hybrid_override_pattern",
        "interleave_moe_layer_step",
        "layers_block_type",
    }
)


class BadModel(ValueError):
    """A config.json that the planner cannot plan for; its text says why."""


class ModelShape(msgspec.Struct, frozen=True, kw_only=True):
    """Parameters are counts and not bytes; a token's KV is in elements a layer."""

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    attention_params: int  # of all layers
    dense_params: int  # feed-forward outside experts, shared experts included
    expert_params: int  # of one expert in one layer
    moe_layers: int
    experts: int
    experts_per_token: int
    embedding_params: int
    head_params: int  # the output projection: read at every step
    kv_elements: int  # of one token in one layer that keeps all tokens
    full_layers: int
    window_layers: int
    window: int
    state_elements: int  # of one sequence, whatever its length
    latent: bool  # MLA: one KV for all heads, hence on every GPU of a tensor-parallel group
    sparse_topk: int  # tokens read by sparse attention; 0: all
    context_max: int
    native_bytes: float = 2.0  # of one parameter as published

    @property
    def total_params(self) -> int:
        return self._beside_experts + self.expert_params * self.experts * self.moe_layers

    @property
    def active_params(self) -> int:
        """That take part in one token, without the lookup of its embedding."""
        routed = self.expert_params * self.experts_per_token * self.moe_layers
        return self.attention_params + self.dense_params + self.head_params + routed

    @property
    def _beside_experts(self) -> int:
        tied = self.head_params == 0
        embedding = self.embedding_params if not tied else self.vocab * self.hidden
        return self.attention_params + self.dense_params + embedding + self.head_params

    @property
    def attention_kind(self) -> str:
        base = "MLA" if self.latent else "MHA" if self.kv_heads == self.heads else "GQA"
        parts = [base]
        if self.sparse_topk:
            parts.append(f"sparse (top {self.sparse_topk})")
        if self.window_layers:
            parts.append(f"{self.window_layers} of {self.layers} layers with a window of {self.window}")
        if self.state_elements:
            parts.append(f"{self.layers - self.full_layers - self.window_layers} layers recurrent")
        return ", ".join(parts)

    def kv_bytes(self, tokens: int, element_bytes: float) -> float:
        """What one sequence of so many tokens keeps, on all GPUs together, once."""
        windowed = self.window_layers * min(tokens, self.window)
        return (self.full_layers * tokens + windowed) * self.kv_elements * element_bytes + self.state_elements * 2.0

    def kv_read_bytes(self, tokens: float, element_bytes: float) -> float:
        """What one decoded token reads of it."""
        read = min(tokens, self.sparse_topk) if self.sparse_topk else tokens
        windowed = self.window_layers * min(tokens, self.window)
        return (self.full_layers * read + windowed) * self.kv_elements * element_bytes + self.state_elements * 4.0


def read_shape(config: Mapping[str, Any], name: str) -> ModelShape:
    """Raises BadModel with a sentence where a key is missing or the architecture is not one of those above."""
    text = config.get("text_config")
    inner: Mapping[str, Any] = text if isinstance(text, Mapping) else config
    if odd := sorted(UNREADABLE & inner.keys()):
        raise BadModel(f"{name}: layers of the kind that {odd[0]!r} names are not planned for yet")
    number = _Numbers(inner, name)
    layers, hidden, heads = (number("num_hidden_layers"), number("hidden_size"), number("num_attention_heads"))
    if layers > LAYERS_MAX:
        raise BadModel(f"{name}: 'num_hidden_layers' is {layers}, expected at most {LAYERS_MAX}")
    kv_heads = number("num_key_value_heads", 0) or heads
    head_dim = number("head_dim", 0) or max(hidden // heads, 1)
    vocab, feed_forward = number("vocab_size"), number("intermediate_size", number("moe_intermediate_size", 0))
    if not feed_forward:
        raise BadModel(f"{name}: its config.json has no 'intermediate_size': is it one of a language model?")
    kinds = _layer_kinds(inner, layers, name)
    recurrent = sum(kind in RECURRENT for kind in kinds)
    windowed = sum(kind in WINDOWED for kind in kinds)
    latent = "kv_lora_rank" in inner
    if latent:
        attention, kv = _latent_attention(number, hidden, heads)
    else:
        gates = 1 + bool(inner.get("attn_output_gate"))
        attention = hidden * heads * head_dim * (1 + gates) + 2 * hidden * kv_heads * head_dim
        kv = 2 * kv_heads * head_dim
    states, recurrent_params = _recurrent(number, hidden) if recurrent else (0, 0)
    experts = number("num_experts", number("n_routed_experts", number("num_local_experts", 0)))
    per_token = number("num_experts_per_tok", number("experts_per_token", number("top_k_experts", 0))) if experts else 0
    if experts and not 0 < per_token <= experts:
        raise BadModel(f"{name}: num_experts_per_tok is {per_token}, of {experts} experts")
    dense_layers = min(number("first_k_dense_replace", 0), layers) if experts else layers
    moe_layers = layers - dense_layers
    width = number("moe_intermediate_size", feed_forward) if experts else 0
    shared = number("n_shared_experts", 0) * width or number("shared_expert_intermediate_size", 0)
    tied = bool(config.get("tie_word_embeddings", inner.get("tie_word_embeddings", False)))
    return ModelShape(
        name=name,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        vocab=vocab,
        attention_params=attention * (layers - recurrent) + recurrent_params * recurrent,
        dense_params=3 * hidden * (feed_forward * dense_layers + shared * moe_layers) + hidden * experts * moe_layers,
        expert_params=3 * hidden * width,
        moe_layers=moe_layers,
        experts=experts,
        experts_per_token=per_token,
        embedding_params=0 if tied else vocab * hidden,
        head_params=vocab * hidden,
        kv_elements=kv,
        full_layers=layers - recurrent - windowed,
        window_layers=windowed,
        window=number("sliding_window", number("attention_chunk_size", 4096)) if windowed else 0,
        state_elements=states * recurrent,
        latent=latent,
        sparse_topk=number("index_topk", 0),
        context_max=number("max_position_embeddings", 0) or 131_072,
        native_bytes=_native_bytes(config, inner),
    )


class _Numbers:
    """Positive whole numbers of a config, by name."""

    def __init__(self, config: Mapping[str, Any], name: str) -> None:
        self._config = config
        self._name = name

    def __call__(self, key: str, default: int | None = None) -> int:
        value = self._config.get(key)
        if value is None and default is not None:
            return default
        if value is None:
            raise BadModel(f"{self._name}: its config.json has no {key!r}: is it one of a language model?")
        if (
            isinstance(value, bool)
            or not isinstance(value, int)
            or not 0 <= value < 2**40
            or (value == 0 and default is None)
        ):
            raise BadModel(f"{self._name}: {key!r} is {value!r}, expected a positive whole number")
        return value


def _layer_kinds(config: Mapping[str, Any], layers: int, name: str) -> Sequence[str]:
    kinds = config.get("layer_types")
    if isinstance(kinds, Sequence) and not isinstance(kinds, str):
        if len(kinds) != layers:
            raise BadModel(f"{name}: 'layer_types' names {len(kinds)} layers, 'num_hidden_layers' {layers}")
        return [str(kind) for kind in kinds]
    every = config.get("full_attention_interval")
    if isinstance(every, int) and every > 0:
        return ["full_attention" if index % every == every - 1 else "linear_attention" for index in range(layers)]
    pattern = config.get("sliding_window_pattern")
    if isinstance(pattern, int) and pattern > 0 and config.get("sliding_window"):
        return ["full_attention" if index % pattern == pattern - 1 else "sliding_attention" for index in range(layers)]
    all_windowed = config.get("sliding_window") and config.get("use_sliding_window", True)
    return ["sliding_attention" if all_windowed else "full_attention"] * layers


def _latent_attention(number: _Numbers, hidden: int, heads: int) -> tuple[int, int]:
    """Parameters and KV elements of a layer of multi-head latent attention."""
    rank, rope = number("kv_lora_rank"), number("qk_rope_head_dim")
    nope, value = number("qk_nope_head_dim"), number("v_head_dim")
    query = number("q_lora_rank", 0)
    queries = query * (hidden + heads * (nope + rope)) if query else hidden * heads * (nope + rope)
    indexer = number("index_n_heads", 0) * number("index_head_dim", 0) * (query or hidden)
    up = rank * heads * (nope + value)
    return queries + indexer + hidden * (rank + rope) + up + heads * value * hidden, rank + rope


def _recurrent(number: _Numbers, hidden: int) -> tuple[int, int]:
    """State elements and parameters of a gated linear-attention layer."""
    keys, values = number("linear_num_key_heads"), number("linear_num_value_heads")
    key_dim, value_dim = number("linear_key_head_dim"), number("linear_value_head_dim")
    params = hidden * (2 * keys * key_dim + 2 * values * value_dim) + values * value_dim * hidden
    return values * key_dim * value_dim, params


def _native_bytes(config: Mapping[str, Any], inner: Mapping[str, Any]) -> float:
    method = config.get("quantization_config") or inner.get("quantization_config")
    if isinstance(method, Mapping):
        name = str(method.get("quant_method") or method.get("quant_algo") or "").lower()
        if "fp8" in name:
            return 1.0
        if any(part in name for part in ("fp4", "int4", "awq", "gptq", "mxfp4")):
            return 0.5625
    return 4.0 if inner.get("torch_dtype", inner.get("dtype")) == "float32" else 2.0
