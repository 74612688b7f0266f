"""The simulated language: hashes that continue, and draws that are tokens."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from inference.simulated.vocabulary import TOKEN_BYTES, hash_token, hash_tokens, next_token
from inference.tokens import as_tokens


@given(st.lists(st.integers(0, len(TOKEN_BYTES) - 1)), st.integers(0, len(TOKEN_BYTES) - 1))
def test_the_hash_continues(tokens: list[int], one: int) -> None:
    assert hash_token(one, hash_tokens(as_tokens(tokens))) == hash_tokens(as_tokens([*tokens, one]))


def test_every_draw_is_a_token_with_text_or_a_beginning_of_a_character() -> None:
    state = 0
    for last in (261, 32, 10, 46, 500, 0xA9):
        for _ in range(3000):
            token = next_token(state, 0, last, b"")
            assert TOKEN_BYTES[token]
            state = hash_token(token, state)
