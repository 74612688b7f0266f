"""Disguises that a reader does not notice, and a model reads through: a phrase by each method, and ordinary messages.

`python -m bench.moderation.disguises` has all phrases by all methods; those kept apart there are no part of this.
"""

from __future__ import annotations

import pytest

from inference.moderation.input_filter import scan_message
from inference.moderation.policy import KindsRule, PhraseRule, PolicySide
from inference.moderation.scan import Scanner
from tests.support import disguises_second
from tests.support.disguises import METHODS, MORE, PHRASES, apart, disguised, ordinary

SCANNER = Scanner(PolicySide(phrases=PhraseRule(deny=PHRASES), pii=KindsRule(), secrets=KindsRule()))


@pytest.mark.parametrize("method", [each for each in (*METHODS, *MORE) if not apart(each)])
def test_a_disguised_phrase_is_seen_where_it_stands(method: str) -> None:
    for phrase in PHRASES[::5]:
        text = disguised(method, phrase)
        places = scan_message(SCANNER, text)
        assert {hit.category for hit, _, _ in places} == {"phrases"}, text
        hit, start, end = places[0]
        assert "explain" not in text[start:end] and "again" not in text[start:end], (hit, text[start:end])


@pytest.mark.parametrize("method", disguises_second.METHODS)
def test_the_second_set_of_methods_is_seen_through(method: str) -> None:
    """Most of each: letters are drawn from all of Unicode; `bench.moderation.disguises --second` has the share."""
    texts = [disguises_second.disguised(method, phrase) for phrase in PHRASES[::4]]
    missed = [text for text in texts if not scan_message(SCANNER, text)]
    assert len(missed) <= 3, missed


@pytest.mark.parametrize(
    "text", ["4111.1111.1111.1111", "4111·1111·1111·1111", "3782/822463/10005", "4*1*1*1*1*1*1*1*1*1*1*1*1*1*1*1"]
)
def test_card_numbers_with_signs_between_are_seen(text: str) -> None:
    (hit, *span), *_ = scan_message(SCANNER, text)
    assert (hit.kind, span) == ("credit_card", [0, len(text)])


def test_ordinary_messages_pass_in_twelve_scripts() -> None:
    assert [text for text in ordinary(600) if scan_message(SCANNER, text)] == []
