"""The simulated tokenizer is reversible."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from inference.simulated import SimulatedTokenizer
from inference.simulated.tokenizer import _PIECE_BEGIN, _encode


@settings(max_examples=30, deadline=None)
@given(st.text(" ab.é", max_size=200))
def test_a_long_text_is_encoded_in_parts_to_the_same_tokens(text: str) -> None:
    async def encoded() -> tuple[Sequence[int], int]:
        turns, done = 0, asyncio.Event()

        async def count() -> None:
            nonlocal turns
            while not done.is_set():
                turns += 1
                await asyncio.sleep(0)

        counting = asyncio.create_task(count())
        tokens = await SimulatedTokenizer().text(text * 1_000)
        done.set()
        await counting
        return tokens, turns

    tokens, turns = asyncio.run(encoded())
    assert list(tokens) == _encode(text * 1_000)
    assert turns >= len(text) * 1_000 // 40_000 or _PIECE_BEGIN.search(text * 2) is None
