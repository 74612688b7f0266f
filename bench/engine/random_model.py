"""Makes a model of one or two small layers and random weights whose window is as long as a measurement needs.

It has the tokenizer and the chat template of the small model, its rotary positions are scaled to the window
(`linear`), and it is made in a second, in the formats of llama.cpp and of vLLM. What it writes is worth nothing, but it
is made of all that it read: attention falls on few tokens of a context, wherever they stand, and the last layer is not
the embedding, so that KV that is wrong anywhere shows in the next words. It writes whole words alone: llama-server does
not name the ids of characters in parts, which random weights are full of. Never kept: it is as large as its vocabulary.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from deploy.cut_model import read_head
from inference.llama.gguf import read_model

_HEAD_WIDTH: Final = 64
_TRAINED_WINDOW: Final = 8_192  # what positions are scaled from
_UINT32, _FLOAT32, _STRING, _F32 = 4, 6, 8, 0
_ALIGNMENT: Final = 32
_SHARPNESS: Final = 2.0  # of queries and keys: with 1 attention would be the mean of everything
_WORD: Final = re.compile(r"Ġ?[A-Za-z]{2,}")  # as tokenizers of bytes spell a space
_LLAMA_CPP: Final = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


class RandomShape(NamedTuple):
    """A head of queries has a head of keys and values, 64 wide."""

    window: int
    layers: int = 2
    heads: int = 1
    vocabulary: int = 49_152
    seed: int = 18

    @property
    def width(self) -> int:
        return _HEAD_WIDTH * self.heads

    @property
    def inner(self) -> int:
        return 2 * self.width

    @property
    def kv_bytes_per_token(self) -> int:
        """In 16 bits."""
        return 2 * 2 * self.layers * self.width


def write_gguf(source: Path, target: Path, shape: RandomShape) -> Path:
    """Blocking. Tokenizer and template are those of `source`."""
    with source.open("rb") as file:
        head = read_head(file.read())
    values = bytearray(head.values)
    for name, value in {
        "llama.block_count": shape.layers,
        "llama.context_length": shape.window,
        "llama.embedding_length": shape.width,
        "llama.feed_forward_length": shape.inner,
        "llama.attention.head_count": shape.heads,
        "llama.attention.head_count_kv": shape.heads,
        "llama.rope.dimension_count": _HEAD_WIDTH,
        "llama.vocab_size": shape.vocabulary,
        "general.file_type": _F32,
    }.items():
        named = _string(name) + struct.pack("<I", _UINT32)
        at = values.index(named) + len(named)
        values[at : at + 4] = struct.pack("<I", value)
    values += _string("llama.rope.scaling.type") + struct.pack("<I", _STRING) + _string("linear")
    factor = shape.window / _TRAINED_WINDOW
    values += _string("llama.rope.scaling.factor") + struct.pack("<If", _FLOAT32, factor)
    infos, data, count, at = bytearray(), [], 0, 0
    for name, weights in _weights(shape, read_model(source).metadata["tokenizer.ggml.tokens"]):
        infos += _string(_gguf_name(name)) + struct.pack("<I", weights.ndim)
        infos += struct.pack(f"<{weights.ndim}Q", *reversed(weights.shape)) + struct.pack("<IQ", _F32, at)
        data.append(weights.tobytes() + bytes(-weights.nbytes % _ALIGNMENT))
        at, count = at + len(data[-1]), count + 1
    written = b"GGUF" + struct.pack("<IQQ", 3, count, head.num_values + 2) + bytes(values) + bytes(infos)
    with target.open("wb") as out:
        out.write(written + bytes(-len(written) % _ALIGNMENT))
        out.writelines(data)
    return target


def write_folder(source: Path, target: Path, shape: RandomShape) -> Path:
    """Blocking. Tokenizer and template are those of the folder `source`."""
    target.mkdir(parents=True)
    for file in source.iterdir():
        if file.name not in ("config.json", "model.safetensors"):
            (target / file.name).symlink_to(file.resolve())
    scaling = {"rope_type": "linear", "factor": shape.window / _TRAINED_WINDOW, "rope_theta": 100_000.0}
    config: dict[str, Any] = json.loads((source / "config.json").read_bytes())
    config |= {
        "vocab_size": shape.vocabulary,
        "hidden_size": shape.width,
        "head_dim": _HEAD_WIDTH,
        "intermediate_size": shape.inner,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.heads,
        "max_position_embeddings": shape.window,
        "rope_parameters": scaling,
        "tie_word_embeddings": False,
        "dtype": "float32",
    }
    (target / "config.json").write_text(json.dumps(config))
    vocabulary: dict[str, int] = json.loads((source / "tokenizer.json").read_bytes())["model"]["vocab"]
    tensors, data, at = {}, [], 0
    for name, weights in _weights(shape, sorted(vocabulary, key=lambda token: vocabulary[token])):
        end = at + weights.nbytes
        tensors[f"{name}.weight"] = {"dtype": "F32", "shape": list(weights.shape), "data_offsets": [at, end]}
        data.append(weights.tobytes())
        at = end
    header = json.dumps({"__metadata__": {"format": "pt"}} | tensors).encode()
    header += b" " * (-len(header) % 8)
    with (target / "model.safetensors").open("wb") as out:
        out.write(struct.pack("<Q", len(header)) + header)
        out.writelines(data)
    return target


def _weights(shape: RandomShape, vocabulary: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """All tensors by the names that safetensors have, rows first. What is no word in `vocabulary` is never the
    likeliest."""
    chance = np.random.default_rng(shape.seed)
    width, inner = shape.width, shape.inner

    def matrix(rows: int, columns: int, scale: float = 1.0) -> Any:
        return (chance.standard_normal((rows, columns)) * (scale / columns**0.5)).astype(np.float32)

    norm = np.ones(width, np.float32)
    yield "model.embed_tokens", matrix(shape.vocabulary, width, width**0.5)
    for layer in range(shape.layers):
        begin = f"model.layers.{layer}."
        yield begin + "input_layernorm", norm
        for name, scale in (("q", _SHARPNESS), ("k", _SHARPNESS), ("v", 2.0), ("o", 1.0)):
            yield f"{begin}self_attn.{name}_proj", matrix(width, width, scale)
        yield begin + "post_attention_layernorm", norm
        yield begin + "mlp.gate_proj", matrix(inner, width)
        yield begin + "mlp.up_proj", matrix(inner, width)
        yield begin + "mlp.down_proj", matrix(width, inner)
    yield "model.norm", norm
    head = matrix(shape.vocabulary, width, width**0.5)
    head[[number for number, token in enumerate(vocabulary) if not _WORD.fullmatch(token)]] = 0.0
    yield "lm_head", head


def _gguf_name(name: str) -> str:
    if name in _LLAMA_CPP:
        return f"{_LLAMA_CPP[name]}.weight"
    _, _, layer, rest = name.split(".", 3)
    return f"blk.{layer}.{_LLAMA_CPP[rest]}.weight"


def _string(text: str) -> bytes:
    return struct.pack("<Q", len(text)) + text.encode()
