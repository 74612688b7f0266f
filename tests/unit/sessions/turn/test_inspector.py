"""Questions about texts, answered with an engine's tokenizer and a set of filters."""

from __future__ import annotations

import pytest

from inference.simulated import SimulatedEngine, SimulatedOptions
from sessions.model.errors import TooLarge
from sessions.model.inspection import (
    JudgedTexts,
    Judgements,
    PromptMessage,
    PromptTokens,
    Question,
    TextTokens,
)
from sessions.model.types import LOCAL_PRINCIPAL
from sessions.turn.inspector import Inspector
from sessions.turn.keyword_filter import KeywordFilterSet

BYTES_MAX = 100
ENGINE = SimulatedEngine(SimulatedOptions(context_window=512))


async def test_judgements_are_the_findings_of_the_filters_for_messages() -> None:
    inspector = Inspector(ENGINE, KeywordFilterSet(input_phrases=["night"]), BYTES_MAX)
    found = await inspector.inspect(LOCAL_PRINCIPAL, JudgedTexts(("by night", "by day")))
    assert isinstance(found, Judgements) and found.detectors == ("keywords",)
    assert [each.scores for each in found.texts] == [{"keyword": 1.0}, {}]


@pytest.mark.parametrize(
    "question",
    [
        TextTokens("\u00e4" * 51),
        PromptTokens(messages=(PromptMessage(role="user", text="a" * 101),)),
        PromptTokens(instructions="a" * 101, messages=()),
        JudgedTexts(("a", "a" * 101)),
    ],
)
async def test_a_text_that_no_message_may_have_is_too_large(question: Question) -> None:
    with pytest.raises(TooLarge) as caught:
        await Inspector(ENGINE, KeywordFilterSet(input_phrases=["night"]), BYTES_MAX).inspect(LOCAL_PRINCIPAL, question)
    assert caught.value.code == "content_too_large"
