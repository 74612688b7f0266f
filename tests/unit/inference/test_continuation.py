"""The rest of an interrupted answer as a request: nothing is asked for twice, and its draws are its own."""

from __future__ import annotations

from inference.continuation import continuation_of
from tests.support.engines.engines import key, request


def test_what_was_emitted_is_prompt_and_counts() -> None:
    whole = request(key("s"), (1, 2, 3), max_tokens=10, seed=7)
    rest = continuation_of(whole, (4, 5))
    assert (tuple(rest.prompt), rest.emitted, rest.max_tokens) == ((1, 2, 3, 4, 5), (4, 5), 8)
    again = continuation_of(rest, (6,))
    assert (tuple(again.prompt), again.emitted, again.max_tokens) == ((1, 2, 3, 4, 5, 6), (4, 5, 6), 7)
    assert len({whole.seed, rest.seed, again.seed}) == 3
    assert continuation_of(whole, (4, 5)).seed == rest.seed
