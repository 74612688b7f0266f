"""What is found in plain text, and how much of its end may still become a hit."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator

import pytest

from inference.moderation.normalize import fold_case, normalize_text
from inference.moderation.patterns import WORD_MAX
from inference.moderation.policy import KindsRule, PhraseRule, PolicySide
from inference.moderation.scan import Hit, Scanner, possible_decodings

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
        ("cebwrpg avtugwne", [("cebwrpg avtugwne", "rot13")]),
        ("nag", []),  # too short for ROT13 to be more than chance
        ("mail a@b.example", [("a@b.example", "email")]),
        ("call +49 30 90182012", []),  # a kind that the policy leaves out
    ],
)
def test_phrases_and_kinds(text: str, hits: list[tuple[str, str]]) -> None:
    assert find(text) == hits


def test_the_code_point_before_counts() -> None:
    assert find("ant") and not find("ant", before="w")


@pytest.mark.parametrize("packed", [base64.b64encode(b"it is project nightjar").decode(), b"project nightjar".hex(),
                                    "project%20%6eight%6aar"])  # fmt: skip
def test_encoded_words_are_read_through(packed: str) -> None:
    assert find(f"see {packed} now") == [(packed, "encoded phrase")]


def test_what_is_no_text_is_no_decoding() -> None:
    assert list(possible_decodings("a" * 17)) == []
    assert list(possible_decodings("ff" * 10)) == []
    assert list(possible_decodings("100%")) == []


def test_a_private_key_is_blocked_where_secrets_are_redacted() -> None:
    text = "-----BEGIN RSA PRIVATE KEY-----"
    (hit,) = SCANNER.find(text, fold_case(text))
    assert (hit.kind, hit.action) == ("private_key", "block")


def test_hits_come_in_order_and_a_block_first() -> None:
    scanner = Scanner(PolicySide(phrases=PhraseRule(deny=("a@b",)), pii=KindsRule(action="redact")))
    text = "a@b.example, c@d.example"
    assert [(hit.start, hit.action) for hit in scanner.find(text, text)] == [
        (0, "block"),
        (0, "redact"),
        (13, "redact"),
    ]


@pytest.mark.parametrize(
    ("text", "held"),
    [("a word. ", 0), ("the proj", 4), ("the project nig", 11), ("mail a@b.exa", 7), ("x" * 2_000, WORD_MAX)],
)
def test_the_end_that_may_become_a_hit_stays_open(text: str, held: int) -> None:
    assert SCANNER.open(text, fold_case(text)) == held


def test_a_number_may_go_on_behind_a_space() -> None:
    scanner = Scanner(PolicySide(pii=KindsRule()))
    assert scanner.open("card 4111 1111 ", "card 4111 1111 ") == len("4111 1111 ")


def test_an_empty_side_finds_nothing_and_holds_nothing() -> None:
    scanner = Scanner(PolicySide())
    assert scanner.empty and scanner.find("project nightjar", "project nightjar") == []
    assert scanner.open("project", "project") == 0


def test_lines_of_encoded_words_are_not_tried_from_each_of_their_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each try reads to the end of the run: from every word of 8,000 code points it took 1.4 s."""
    tried: list[int] = []
    encoded = Scanner._encoded

    def counted(self: Scanner, word: str, depth: int) -> Hit | None:
        tried.append(len(word))
        return encoded(self, word, depth)

    monkeypatch.setattr(Scanner, "_encoded", counted)
    text = "Aa1" * 6 + " "
    scanner = Scanner(PolicySide(phrases=PhraseRule(deny=("project nightjar",))))
    plain = text * 200
    scanner.find(plain, plain.lower(), whole=True)
    assert sum(tried) < 20 * len(plain)


def test_names_of_things_are_read_as_words_and_not_as_disguises(monkeypatch: pytest.MonkeyPatch) -> None:
    """`586818` is `Xh` in hexadecimal digits: a text with such a name took three times as long."""
    inside: list[str] = []

    def counted(self: Scanner, decoded: str, depth: int) -> Iterator[Hit]:
        inside.append(decoded)
        return iter(())

    scanner = Scanner(PolicySide(phrases=PhraseRule(deny=("project nightjar",))))
    monkeypatch.setattr(Scanner, "_inside", counted)
    plain = "version v4.1.586818 of the guide, item 4a4b4c"
    assert scanner.find(plain, plain, whole=True) == [] and inside == []
    word = base64.b64encode(b"nightjar").decode()
    assert scanner.find(f"project {word} aB1", f"project {word} ab1", whole=True) and inside == []
    scanner.find(" ".join(["project", word] * 3), "", whole=True)
    assert len(inside) == 1


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


@pytest.mark.parametrize(
    ("phrase", "text"),
    [
        ("секретный отчёт", "$3кр37ный о7437"),
        ("πλαστά τιμολόγια", "πλα6τά τ!μολόγι4"),
        ("σχέδιο αλκυόνη", "6χέδιο αλκυόνη"),
        ("поддельные документы", "п-о-д-д-е-л-ь-н-ы-е д-о-к-у-м-е-н-т-ы"),
        ("поддельные документы", "пооооддддделльныее ддддокууууменнттттыы"),
        ("поддельные документы", "поⲇⲇeльʜые ⲇoκyᴍeʜᴛы"),
        ("купить паспорт дёшево", "-".join(f"{byte:02x}" for byte in "купить паспорт дёшево".encode())),
        ("secret report", "de 73 65 63 72 65 74 20 72 65 70 6f 72 74"),
        ("rachat de l'usine", "raƈĦąt ɖɇ l'ușiɲe"),
        ("übernahme der weißbach werke", "üɃɇɽƞȺhɱe ɖɇɽ ⱳɆißbaƈh ⱳeɽkɇ"),
    ],
)
def test_signs_for_letters_of_all_scripts(phrase: str, text: str) -> None:
    scanner = Scanner(PolicySide(phrases=PhraseRule(deny=(phrase,))))
    plain = normalize_text(text)
    assert scanner.find(plain, fold_case(plain), whole=True) or [*scanner.raw_hits(text)]
