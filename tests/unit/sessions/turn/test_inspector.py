"""Questions about texts, answered with an engine's tokenizer and a set of filters."""

from __future__ import annotations

import pytest

from inference.simulated import SimulatedEngine, SimulatedOptions, decode
from sessions.model.errors import BadInput, TooLarge
from sessions.model.inspection import (
    JudgedTexts,
    Judgements,
    PromptMessage,
    PromptTokens,
    Question,
    TextTokens,
    TokenIds,
)
from sessions.model.types import LOCAL_PRINCIPAL
from sessions.turn.inspector import Inspector
from sessions.turn.keyword_filter import KeywordFilterSet

BYTES_MAX = 100
ENGINE = SimulatedEngine(SimulatedOptions(context_window=512))


async def tokens(question: TextTokens | PromptTokens) -> tuple[int, ...]:
    found = await Inspector(ENGINE, KeywordFilterSet(), BYTES_MAX).inspect(LOCAL_PRINCIPAL, question)
    assert isinstance(found, TokenIds) and found.context_window == 512
    return found.tokens


async def test_a_text_has_its_own_tokens_and_a_start_where_that_is_requested() -> None:
    plain = await tokens(TextTokens("the river"))
    assert decode(plain) == "the river"
    assert await tokens(TextTokens("the river", starts=True)) == (*ENGINE.tokenizer.starts, *plain)


async def test_a_prompt_ends_where_the_answer_begins() -> None:
    said = (PromptMessage(role="user", text="the river"),)
    whole = await tokens(PromptTokens(instructions="Be brief.", messages=said))
    bare = await tokens(PromptTokens(instructions="Be brief.", messages=said, answer=False))
    assert whole == (*bare, *ENGINE.tokenizer.answer_opening) and "Be brief." in decode(bare)


async def test_judgements_are_the_findings_of_the_filters_for_messages() -> None:
    inspector = Inspector(ENGINE, KeywordFilterSet(input_phrases=["night"]), BYTES_MAX)
    found = await inspector.inspect(LOCAL_PRINCIPAL, JudgedTexts(("by night", "by day")))
    assert isinstance(found, Judgements) and found.detectors == ("keywords",)
    assert [each.scores for each in found.texts] == [{"keyword": 1.0}, {}]


async def test_no_filters_are_no_judgement() -> None:
    with pytest.raises(BadInput) as caught:
        await Inspector(ENGINE, KeywordFilterSet(), BYTES_MAX).inspect(LOCAL_PRINCIPAL, JudgedTexts(("x",)))
    assert caught.value.code == "moderation_unavailable"


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
