"""Log probabilities in the shape of completions."""

from __future__ import annotations

from transport.openai.completions import legacy_logprobs


def test_offsets_count_from_where_the_text_begins() -> None:
    entries = [
        {"token": token, "logprob": -1.0, "bytes": None, "top_logprobs": [{"token": "x", "logprob": -0.5}]}
        for token in ("ab", "c", "def")
    ]
    shown = legacy_logprobs(entries, 10)
    assert (shown["tokens"], shown["text_offset"]) == (["ab", "c", "def"], [10, 12, 13])
    assert shown["token_logprobs"] == [-1.0] * 3 and shown["top_logprobs"][0] == {"x": -0.5}
    pieces = [{"token": "\ufffd", "logprob": -1.0, "bytes": [0xF0, 0x9F + n], "top_logprobs": []} for n in range(2)]
    parts = legacy_logprobs([{**pieces[0], "top_logprobs": pieces}], 0)
    assert parts["tokens"] == ["bytes:\\xf0\\x9f"]
    assert list(parts["top_logprobs"][0]) == ["bytes:\\xf0\\x9f", "bytes:\\xf0\\xa0"], "none hides another"
    assert legacy_logprobs([], 3) == {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
