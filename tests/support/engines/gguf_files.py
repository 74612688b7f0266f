"""Small GGUF files, written by hand."""

from __future__ import annotations

import struct
from typing import Any


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _value(value: Any) -> bytes:
    if isinstance(value, bool):
        return struct.pack("<I?", 7, value)
    if isinstance(value, int):
        return struct.pack("<II", 4, value)
    if isinstance(value, float):
        return struct.pack("<If", 6, value)
    if isinstance(value, str):
        return struct.pack("<I", 8) + _string(value)
    if value and isinstance(value[0], str):
        return struct.pack("<IIQ", 9, 8, len(value)) + b"".join(_string(item) for item in value)
    if value and isinstance(value[0], float):
        return struct.pack("<IIQ", 9, 6, len(value)) + struct.pack(f"<{len(value)}f", *value)
    return struct.pack("<IIQ", 9, 5, len(value)) + struct.pack(f"<{len(value)}i", *value)


def gguf(
    metadata: dict[str, Any], tensors: dict[str, tuple[int, tuple[int, ...], bytes]] | None = None, version: int = 3
) -> bytes:
    """`tensors`: name → (ggml type, shape, data)."""
    tensors = tensors or {}
    out = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(metadata))
    for name, value in metadata.items():
        out += _string(name) + _value(value)
    offset, blob = 0, b""
    for name, (kind, shape, data) in tensors.items():
        out += _string(name) + struct.pack("<I", len(shape)) + struct.pack(f"<{len(shape)}Q", *shape)
        out += struct.pack("<IQ", kind, offset)
        padded = data + bytes(-len(data) % 32)
        blob += padded
        offset += len(padded)
    out += bytes(-len(out) % 32)
    return out + blob


METADATA = {
    "general.architecture": "llama",
    "llama.context_length": 2048,
    "llama.block_count": 2,
    "llama.embedding_length": 64,
    "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2,
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.tokens": ["a", "Ġb", "<|end|>"],
    "tokenizer.ggml.token_type": [1, 1, 3],
    "tokenizer.ggml.eos_token_id": 2,
    "tokenizer.ggml.add_bos_token": False,
}
TENSORS = {"w": (0, (8, 4), bytes(range(128))), "q": (8, (64,), bytes(68))}
