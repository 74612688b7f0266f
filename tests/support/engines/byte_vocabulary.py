"""A tokenizer's metadata as a model file has it, in which a token is a byte, and one more ends an answer."""

from __future__ import annotations

from typing import Any, Final

from inference.tokens import byte_alphabet

END: Final = 256
METADATA: Final[dict[str, Any]] = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.tokens": [letter for letter, _ in sorted(byte_alphabet().items(), key=lambda pair: pair[1])]
    + ["<|end|>"],
    "tokenizer.ggml.token_type": [1] * 256 + [3],
    "tokenizer.ggml.eos_token_id": END,
}


def encoded(text: str) -> list[int]:
    return list(text.encode())
