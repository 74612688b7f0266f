"""What is wrong with a request costs what one mistake does, however many there are."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from transport.anthropic.request import MessagesRequest
from transport.openai.completion_models import CompletionRequest, ModerationRequest
from transport.openai.request_models import (
    PARTS_MAX,
    UNKNOWN_MAX,
    ChatMessageParam,
    ChatRequest,
    InputItem,
    ResponsesRequest,
)
from transport.retrieval.embedding_models import EmbeddingsRequest
from transport.retrieval.vector_store_models import NewFileBatch

MANY = 5_000
BRANCHES_MAX = 12  # of a union each may tell of a mistake
SAID: Any = {"role": "user", "content": "x"}


@pytest.mark.parametrize(
    ("model", "body"),
    [
        (ChatRequest, {"model": "m", "messages": [1] * 4_000}),
        (ChatRequest, {"model": "m", "messages": [{"role": "user", "content": [1] * 200}] * 20}),
        (ChatRequest, {"model": "m", "messages": [SAID], "stop": [1] * 16}),
        (ChatRequest, {"model": "m", "messages": [SAID], "tools": [1] * 128}),
        (ResponsesRequest, {"input": [{"role": "user", "content": [1] * 200}] * 20}),
        (ResponsesRequest, {"input": "x", "include": [1] * MANY}),
        (CompletionRequest, {"model": "m", "prompt": ["x"] * MANY}),
        (CompletionRequest, {"model": "m", "prompt": [-1] * MANY}),
        (ModerationRequest, {"input": [1] * 32}),
        (EmbeddingsRequest, {"input": [1.5] * MANY}),
        (NewFileBatch, {"files": [{"text": 1}] * 500}),
        (MessagesRequest, {"model": "m", "max_tokens": 1, "messages": [{"role": "user", "content": [1] * 200}] * 20}),
    ],
)
def test_a_list_is_read_up_to_its_first_mistake(model: type[BaseModel], body: dict[str, Any]) -> None:
    with pytest.raises(ValidationError) as caught:
        model.model_validate(body)
    assert caught.value.error_count() <= BRANCHES_MAX


def test_an_error_lists_at_most_64_unknown_names() -> None:
    with pytest.raises(ValidationError) as caught:
        ChatRequest.model_validate({"model": "m", "messages": [SAID], **{f"k{n}": 1 for n in range(MANY)}})
    assert caught.value.error_count() == UNKNOWN_MAX
    assert caught.value.errors()[0]["loc"] == ("k0",)


def test_parts_that_are_nothing_but_text_are_read_as_their_text() -> None:
    texts = [{"type": "text", "text": "a"}, {"type": "input_text", "text": "b"}]
    assert ChatMessageParam.model_validate({"role": "user", "content": texts}).content == "ab"
    assert InputItem.model_validate({"role": "user", "content": texts}).content == "ab"
    anthropics = MessagesRequest.model_validate(
        {"model": "m", "max_tokens": 1, "messages": [{"role": "user", "content": [texts[0], texts[0]]}]}
    )
    assert anthropics.messages[0].content == "aa"
    for kept in ([*texts, {"type": "text", "text": "c", "new": 1}], [*texts, {"type": "refusal", "refusal": "No."}]):
        content = ChatMessageParam.model_validate({"role": "assistant", "content": kept}).content
        assert isinstance(content, list) and len(content) == 3
    for wrong in ([{"type": "text", "text": 1}], [{"type": "text", "text": "a"}] * (PARTS_MAX + 1)):
        with pytest.raises(ValidationError):
            ChatMessageParam.model_validate({"role": "user", "content": wrong})
