"""Whole texts of the server's own: let through, redacted, or withheld."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from sessions.model.types import LOCAL_PRINCIPAL, Principal
from sessions.model.verdicts import PASS, Verdict
from sessions.turn.keyword_filter import KeywordFilterSet
from sessions.turn.screening import REDACTIONS_MAX, screened


class Redacts:
    """Replaces a word; one that is to find it again for ever."""

    def __init__(self, word: str, replacement: str) -> None:
        self.word, self.replacement = word, replacement

    def feed(self, text: str) -> tuple[int, Verdict]:
        at = text.find(self.word)
        if at < 0:
            return len(text), PASS
        end = at + len(self.word)
        return at, Verdict(action="redact", start=at, end=end, replacement=self.replacement)

    def finish(self) -> tuple[int, Verdict]:
        return 0, PASS


class Set:
    def __init__(self, *filters: Any) -> None:
        self.filters = filters

    def input_filters(self, principal: Principal) -> Sequence[Any]:
        return ()

    def output_filters(self, principal: Principal, *, shown: str = "", calls: bool = False) -> Sequence[Any]:
        return self.filters

    def holds_whole(self, principal: Principal) -> bool:
        return False


@pytest.mark.parametrize(
    ("filters", "text", "left"),
    [
        (Set(), "as it is", "as it is"),
        (Set(Redacts("Ana", "[name]")), "Ana and Ana", "[name] and [name]"),
        (Set(Redacts("Ana", "Ana")), "Ana", ""),
        (KeywordFilterSet(output_phrases=["forbidden"]), "a forbidden word", ""),
        (KeywordFilterSet(output_phrases=["forbidden"]), "a fine word", "a fine word"),
    ],
)
async def test_a_whole_text_is_judged(filters: Any, text: str, left: str) -> None:
    assert await screened(filters, LOCAL_PRINCIPAL, text) == left
    assert text.count("Ana") < REDACTIONS_MAX
