"""What is found in plain text, and how much of its end may still become a hit."""

from __future__ import annotations

import base64
from collections.abc import Callable

import pytest

from inference.moderation.normalize import fold_case, normalize_text
from inference.moderation.patterns import WORD_MAX
from inference.moderation.policy import KindsRule, PhraseRule, PolicySide
from inference.moderation.scan import Scanner

SIDE = PolicySide(
    phrases=PhraseRule(deny=("Project Nightjar", "ant"), allow=("project nightjar museum",), words=True),
    pii=KindsRule(kinds=("email",), action="redact"),
    secrets=KindsRule(action="redact"),
)
SCANNER = Scanner(SIDE)


def find(text: str, scanner: Scanner = SCANNER, before: str = "") -> list[tuple[str, str]]:
    """(what was hit, its kind) of each hit."""
    return [(text[hit.start : hit.end], hit.kind) for hit in scanner.find(text, fold_case(text), before=before)]


@pytest.mark.parametrize(
    ("text", "hits"),
    [
        ("the PROJECT nightjar!", [("PROJECT nightjar", "phrase")]),
        ("the project nightjar museum", []),
        ("pregnant", []),  # a letter touches it
        ("an ant", [("ant", "phrase")]),
        ("mail a@b.example", [("a@b.example", "email")]),
        ("call +49 30 90182012", []),  # a kind that the policy leaves out
    ],
)
def test_phrases_and_kinds(text: str, hits: list[tuple[str, str]]) -> None:
    assert find(text) == hits


def test_the_code_point_before_counts() -> None:
    assert find("ant") and not find("ant", before="w")


@pytest.mark.parametrize(
    "packed", [base64.b64encode(b"it is project nightjar").decode(), "project%20%6eight%6aar", "project&#32;nightjar"]
)
def test_encoded_words_of_answers_are_read_through(packed: str) -> None:
    text = f"see {packed} now"
    hits = SCANNER.find(text, fold_case(text), words=True)
    assert [(text[hit.start : hit.end], hit.kind) for hit in hits] == [(packed, "encoded phrase")]
    assert find(text) == []


def test_a_private_key_is_blocked_where_secrets_are_redacted() -> None:
    text = "-----BEGIN RSA PRIVATE KEY-----"
    (hit,) = SCANNER.find(text, fold_case(text))
    assert (hit.kind, hit.action) == ("private_key", "block")


@pytest.mark.parametrize(
    ("text", "held"),
    [("a word. ", 0), ("the proj", 4), ("the project nig", 11), ("mail a@b.exa", 7), ("x" * 2_000, WORD_MAX)],
)
def test_the_end_that_may_become_a_hit_stays_open(text: str, held: int) -> None:
    assert SCANNER.open(text, fold_case(text)) == held


def test_a_number_may_go_on_behind_a_space() -> None:
    scanner = Scanner(PolicySide(pii=KindsRule()))
    assert scanner.open("card 4111 1111 ", "card 4111 1111 ") == len("4111 1111 ")


def last_word_titled(text: str) -> str:
    *first, last = text.split(" ")
    return " ".join([*first, last.title()])


@pytest.mark.parametrize(
    "phrase",
    [
        "übernahme weißbach",
        "купить паспорт",
        "поддельные банкноты",
        "таємний договір",
        "μυστική συμφωνία",
        "höhere öltanks",
        "новый банк",
        "новый закон",
        "қазақ қоры",
        "παλιά υόρκη νέα",
    ],
)
@pytest.mark.parametrize("case", [str.lower, str.upper, str.title, str.capitalize, str.casefold, last_word_titled])
def test_phrases_of_all_scripts_are_compared_without_case(phrase: str, case: Callable[[str], str]) -> None:
    for listed, other in ((phrase, case(phrase)), (case(phrase), phrase)):
        scanner = Scanner(PolicySide(phrases=PhraseRule(deny=(listed,), allow=(f"{listed} ok",))))
        for text, hits in ((other, 1), (case(f"{other} ok"), 0)):
            plain = normalize_text(text)
            assert len(scanner.find(plain, fold_case(plain))) == hits
