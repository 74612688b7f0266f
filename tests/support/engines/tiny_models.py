"""Tiny llamas with random weights, one for each kind of tokenizer that GGUF files have."""

from __future__ import annotations

import struct
from pathlib import Path
from random import Random
from typing import Any, Final

from inference.tokens import byte_alphabet
from tests.support.engines.gguf_files import gguf

WIDTH, LAYERS, HEADS, INNER = 32, 2, 4, 64
ENDS: Final = ("<s>", "</s>")
_WORDS: Final = ("the", "river", "and", "where", "does", "it", "go", "be", "brief", "system", "user", "assistant")
_FLOATS, _NORMAL, _UNKNOWN, _CONTROL, _BYTE = 0, 1, 2, 3, 6

BYTE_PAIRS: Final = (
    "llama-bpe",
    "qwen2",
    "gpt-2",
    "smollm",
    "deepseek-llm",
    "deepseek-v3",
    "tekken",
    "command-r",
    "gpt-4o",
)
SENTENCE_PIECE: Final = "SentencePiece"
KINDS: Final = (*BYTE_PAIRS, SENTENCE_PIECE)


def _tokenizer(kind: str, specials: tuple[str, ...]) -> dict[str, Any]:
    """Returns the metadata of a tokenizer whose first tokens are `specials`."""
    known = {"tokenizer.ggml.bos_token_id": 0, "tokenizer.ggml.eos_token_id": 1, "tokenizer.ggml.add_bos_token": False}
    if kind == SENTENCE_PIECE:
        spelled = [f"<0x{byte:02X}>" for byte in range(256)]
        pieces = [chr(code) for code in range(33, 127)] + ["\u2581"]
        pieces += sorted({f"\u2581{word}"[:length] for word in _WORDS for length in range(2, len(word) + 2)})
        types = [_CONTROL] * len(specials) + [_UNKNOWN] + [_BYTE] * 256 + [_NORMAL] * len(pieces)
        tokens = [*specials, "<unk>", *spelled, *pieces]
        scores = [float(-number) for number in range(len(tokens))]
        return {
            **known,
            "tokenizer.ggml.model": "llama",
            "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.scores": scores,
            "tokenizer.ggml.token_type": types,
            "tokenizer.ggml.unknown_token_id": len(specials),
        }
    letters = [letter for letter, _ in sorted(byte_alphabet().items(), key=lambda pair: pair[1])]
    merges: list[str] = []
    merged: list[str] = []
    for word in (f"\u0120{word}" for word in _WORDS):
        for end in range(2, len(word) + 1):
            if word[:end] not in merged:
                merged.append(word[:end])
                merges.append(f"{word[: end - 1]} {word[end - 1]}")
    tokens = [*specials, *letters, *merged]
    return {
        **known,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": kind,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.token_type": [_CONTROL] * len(specials) + [_NORMAL] * (len(tokens) - len(specials)),
    }


def write_tiny_model(file: Path, kind: str, template: str, specials: tuple[str, ...]) -> None:
    """Writes a llama with random weights whose tokenizer is of this kind. `specials` are the spellings of its special
    tokens besides those that begin and end a text."""
    tokenizer = _tokenizer(kind, (*ENDS, *(each for each in specials if each not in ENDS)))
    size, random = len(tokenizer["tokenizer.ggml.tokens"]), Random(kind)

    def floats(*shape: int, around: float = 0.0) -> tuple[int, tuple[int, ...], bytes]:
        count = shape[0] if len(shape) == 1 else shape[0] * shape[1]
        values = [random.gauss(around, 0.0 if around else 0.2) for _ in range(count)]
        return _FLOATS, shape, struct.pack(f"<{count}f", *values)

    tensors = {
        "token_embd.weight": floats(WIDTH, size),
        "output.weight": floats(WIDTH, size),
        "output_norm.weight": floats(WIDTH, around=1.0),
    }
    for layer in range(LAYERS):
        matrices = dict.fromkeys(("attn_q", "attn_k", "attn_v", "attn_output"), (WIDTH, WIDTH))
        matrices |= {"ffn_gate": (WIDTH, INNER), "ffn_up": (WIDTH, INNER), "ffn_down": (INNER, WIDTH)}
        tensors |= {f"blk.{layer}.{name}.weight": floats(*shape) for name, shape in matrices.items()}
        tensors |= {f"blk.{layer}.{name}.weight": floats(WIDTH, around=1.0) for name in ("attn_norm", "ffn_norm")}
    metadata = {
        "general.architecture": "llama",
        "general.name": "tiny",
        "llama.context_length": 2048,
        "llama.block_count": LAYERS,
        "llama.embedding_length": WIDTH,
        "llama.feed_forward_length": INNER,
        "llama.attention.head_count": HEADS,
        "llama.attention.head_count_kv": HEADS,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.dimension_count": WIDTH // HEADS,
        "llama.vocab_size": size,
        "tokenizer.chat_template": template,
        **tokenizer,
    }
    file.write_bytes(gguf(metadata, tensors))
