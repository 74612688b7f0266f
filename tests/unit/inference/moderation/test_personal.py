"""What is personal in a text that is to be kept: by patterns always, by the policy's models where it names people."""

from __future__ import annotations

import pytest

from inference.moderation.personal import TEXT_MAX, PersonalTexts
from sessions.model.types import Principal, TenantId
from sessions.turn.keyword_filter import KeywordFilterSet

SOMEBODY = Principal(tenant=TenantId("t"), key_id="k")


@pytest.mark.parametrize(
    ("text", "personal"),
    [
        ("What is the capital of France?", False),
        ("Write to jane.doe@example.com.", True),
        ("Call +49 30 901820, please.", True),
        ("My card is 4111 1111 1111 1111.", True),
        ("-----BEGIN PRIVATE KEY-----", True),
        ("Write to Jane.", False),
        ("a" * (TEXT_MAX + 1), True),
    ],
)
async def test_patterns_find_it_without_a_policy(text: str, personal: bool) -> None:
    assert await PersonalTexts(KeywordFilterSet()).is_personal(SOMEBODY, text) is personal
