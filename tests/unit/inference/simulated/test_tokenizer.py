"""The simulated tokenizer is reversible."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from inference.simulated import SimulatedTokenizer, decode
from inference.simulated.vocabulary import TOKEN_BYTES


@given(st.text())
def test_text_survives_tokenising(text: str) -> None:
    async def both() -> Sequence[int]:
        return await SimulatedTokenizer().text(text)

    tokens = asyncio.run(both())
    assert decode(tokens) == text
    assert all(token < 256 or TOKEN_BYTES[token] for token in tokens)
