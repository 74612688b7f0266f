"""Inputs in all of OpenAI's forms, and vectors in both of its encodings; the doors: `tests/integration/openai`."""

from __future__ import annotations

import base64
from array import array
from typing import Any

import pytest

from sessions.retrieval.embedding import EmbeddingInput
from transport.http_api.routes.embeddings import _base64, _inputs, _numbers
from transport.retrieval.embedding_models import EmbeddingsRequest


@pytest.mark.parametrize(
    ("given", "inputs"),
    [
        ("a", ("a",)),
        (["a", "b"], ("a", "b")),
        ([1, 2], ((1, 2),)),
        ([[1, 2], [3]], ((1, 2), (3,))),
    ],
)
def test_inputs_in_all_forms(given: Any, inputs: tuple[EmbeddingInput, ...]) -> None:
    assert _inputs(EmbeddingsRequest(input=given)) == inputs


def test_vectors_in_both_encodings() -> None:
    vector = array("f", [0.5, -0.25]).tobytes()
    assert _numbers(vector) == [0.5, -0.25] and base64.b64decode(_base64(vector)) == vector
