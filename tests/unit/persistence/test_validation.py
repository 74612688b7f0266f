"""What is checked of everything that goes into a store."""

from __future__ import annotations

import msgspec
import pytest

from persistence.validation import (
    check_append,
    check_claim,
    check_decision,
    check_key,
    check_text,
)
from sessions.model.errors import BadInput, Conflict, NotFound
from sessions.model.journal_types import Append
from sessions.model.reviews import Case, ReviewId
from sessions.model.types import UnixMs
from tests.support.stores.journals import NOW, a_command, a_usage, delta, key, patch

CASE = Case(
    id=ReviewId("a"),
    key=key("s"),
    cause="policy",
    direction="output",
    action="block",
    category="pii",
    score=1.0,
    model="m",
    policy="p",
    user=None,
    offset=1,
    start=0,
    end=1,
    opened_at=NOW,
)


@pytest.mark.parametrize("text", ["a\0b", "\ud800", "ü\udfff"])
def test_text_that_some_store_cannot_hold_is_refused(text: str) -> None:
    with pytest.raises(BadInput):
        check_text("fine", None, text)


def test_other_text_passes() -> None:
    check_text(None, "", "plain", "ü🙂")
    check_key(key("s"))
    with pytest.raises(AssertionError):
        check_key(key(""))


def an_append(**fields: object) -> Append:
    return Append(**{"key": key("s"), "fence": 1, "top": 4, "at": NOW, **fields})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "fields",
    [
        {"records": (delta(6),)},
        {"records": (delta(5), delta(7))},
        {"usage": (a_usage("r", tenant="beta"),)},
        {"reviews": (msgspec.structs.replace(CASE, key=key("other")),)},
    ],
    ids=["a hole before", "a hole inside", "usage of another tenant", "a case of another session"],
)
def test_an_append_that_is_our_own_mistake_is_asserted(fields: dict[str, object]) -> None:
    with pytest.raises(AssertionError):
        check_append(an_append(**fields))


@pytest.mark.parametrize(
    "fields",
    [
        {"head": patch(user="\0")},
        {"commands": (a_command(1, principal="\0"),)},
        {"usage": (msgspec.structs.replace(a_usage("r"), model="\0"),)},
        {"reviews": (msgspec.structs.replace(CASE, note="\0"),)},
    ],
    ids=["head", "command", "usage", "case"],
)
def test_texts_of_an_append_are_checked(fields: dict[str, object]) -> None:
    with pytest.raises(BadInput):
        check_append(an_append(**fields))
    check_append(an_append(records=(delta(5), delta(6)), head=patch(), usage=(a_usage("r"),), reviews=(CASE,)))


def test_a_transition_repeats_its_answer_or_says_what_stands_in_its_way() -> None:
    name, until = CASE.id, UnixMs(NOW + 9)
    claimed = msgspec.structs.replace(CASE, state="claimed", claimed_by="eve", claimed_until=until, claim_command="c1")
    assert check_claim(name, "eve", NOW, "c1", CASE) is None
    assert check_claim(name, "eve", NOW, "c1", claimed) is claimed, "the same command again"
    assert check_decision(name, "eve", NOW, "d1", claimed) is None
    with pytest.raises(NotFound):
        check_claim(name, "eve", NOW, "c1", None)
    for by, case in (("bob", claimed), ("eve", CASE)):
        with pytest.raises(Conflict):
            check_decision(name, by, NOW, "d1", case)
