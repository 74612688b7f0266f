"""The worker's answers: results, refusals that name an input, and a library's bug that costs one request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import pytest

from inference.embedding.frames import DecodeTokens, EmbedBatch, RankBatch, SplitText
from inference.embedding.packaged import BadInputs, PackagedModel
from inference.embedding.worker import answer


class Model:
    def embed(self, inputs: Sequence[Any]) -> tuple[list[bytes], int]:
        if "long" in inputs:
            raise BadInputs(inputs.index("long"), "it has 9 tokens", too_long=True)
        if "bug" in inputs:
            raise RuntimeError("secret words")
        if "huge" in inputs:
            raise MemoryError
        return [b"v"] * len(inputs), 3

    def rank(self, query: str, documents: Sequence[str]) -> tuple[list[float], int]:
        return [0.5] * len(documents), 4

    def split(self, text: str) -> tuple[list[int], list[int]]:
        return [0], [len(text)]

    def decode(self, inputs: Sequence[Sequence[int]]) -> list[str]:
        return ["x"] * len(inputs)


MODEL = cast(PackagedModel, Model())


def test_each_request_has_its_answer() -> None:
    assert answer(MODEL, EmbedBatch(("a", "b"))).vectors == (b"v", b"v")
    assert answer(MODEL, RankBatch("q", ("a",))).scores == (0.5,)
    split = answer(MODEL, SplitText("abc"))
    assert (split.starts, split.ends, split.tokens) == ((0,), (3,), 1)
    assert answer(MODEL, DecodeTokens(((1,),))).texts == ("x",)


def test_what_is_refused_names_its_input_and_a_bug_says_no_words() -> None:
    refused = answer(MODEL, EmbedBatch(("a", "long")))
    assert (refused.refused, refused.too_long, refused.error) == (1, True, "it has 9 tokens")
    failed = answer(MODEL, EmbedBatch(("bug",)))
    assert failed.refused == -1 and failed.error == "the model failed (RuntimeError)"
    with pytest.raises(MemoryError):
        answer(MODEL, EmbedBatch(("huge",)))
