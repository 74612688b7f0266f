"""Texts as policies read them: plain, decoded, scanned, and cut into stretches."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference.moderation import classifiers
from inference.moderation.decoded_text import decode_text
from inference.moderation.normalize import Normalizer, fold_case, normalize_text
from inference.moderation.patterns import (
    PII,
    SECRETS,
    WORD_MAX,
    is_card_number,
    is_iban,
    is_phone,
    is_public_address,
    is_ssn,
    is_varied,
)
from inference.moderation.personal import TEXT_MAX, PersonalTexts
from inference.moderation.phrase_tree import any_of
from inference.moderation.policy import KindsRule, PhraseRule, PolicySide
from inference.moderation.scan import Scanner
from inference.moderation.segments import SEGMENT_CHARS, cut_segments, group_neighbours, split_sentences
from inference.moderation.word_hashing import BASE, word_characters
from sessions.model.types import Principal, TenantId
from sessions.turn.keyword_filter import KeywordFilterSet
from tests.support.effort import effort


# -- normalize
@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("plain as it is", "plain as it is"),
        ("рrоjесt", "project"),  # Cyrillic
        ("ｐｒｏｊｅｃｔ", "project"),
        ("p\u200bro\u0301ject", "project"),
        ("a \t\n b\u3000c", "a b c"),
        ("one–two—three", "one-two-three"),
        ("“quoted’", "\"quoted'"),
        ("ﬁne", "fine"),
        ("\U00020000\U0002f801\U0002fffe\U00030000\U000e0070", "\U00020000丸\U00030000"),
    ],
)
def test_what_looks_the_same_is_the_same(text: str, plain: str) -> None:
    assert normalize_text(text) == plain


def fed(pieces: list[str], *, escapes: bool = False) -> Normalizer:
    normal = Normalizer(escapes=escapes)
    for piece in pieces:
        normal.feed(piece)
    normal.finish()
    return normal


TEXTS = st.lists(st.sampled_from(["project", " ", "  ", "\n", "é", "\u200b", "ﬁ", "\\", "\\n", "\\u006a", "ж", "x"]))


@given(TEXTS, st.booleans(), st.data())
def test_the_plain_form_does_not_depend_on_the_cuts(parts: list[str], escapes: bool, data: st.DataObject) -> None:
    text = "".join(parts)
    cuts = sorted({0, len(text), *data.draw(st.lists(st.integers(0, len(text)), max_size=6))})
    whole, pieces = fed([text], escapes=escapes), fed([text[a:b] for a, b in pairwise(cuts)], escapes=escapes)
    assert (whole.plain, whole.places, whole.fed) == (pieces.plain, pieces.places, pieces.fed)
    assert len(whole.places) == len(whole.plain)
    assert escapes or whole.plain == normalize_text(text)


def test_places_lead_back_to_what_was_fed() -> None:
    normal = fed(["a\u200bﬁ  b"])
    assert normal.plain == "afi b"
    assert [normal.place(index) for index in range(6)] == [0, 2, 2, 3, 5, 6]
    assert [normal.end(index) for index in (1, 2, 3, 5)] == [2, 3, 3, 6]  # both letters of a ligature end with it


def test_escapes_stand_for_their_characters() -> None:
    normal = fed([r"pro\u00", r"6aect\nx \\u006a"], escapes=True)
    assert normal.plain == r"project x \u006a"
    assert fed([r"end\u00"], escapes=True).plain == r"end\u00"  # not whole: text


def test_folding_keeps_the_length() -> None:
    assert fold_case("Project") == "project"
    assert len("İx".lower()) == 3 and fold_case("İX")[1:] == "x"


def test_letters_of_all_scripts_are_compared_without_case() -> None:
    for letter in map(chr, (*range(0x386, 0x3CF), *range(0x400, 0x530))):
        capital, small = fold_case(normalize_text(letter.upper())), fold_case(normalize_text(letter.lower()))
        assert capital == small or len(letter.upper()) > 1 or (capital.isascii() and len(capital) == 1)
    assert normalize_text("Öl ölțņ ϐꞵ") == "Ol oltn bb"
    assert normalize_text("Weißbach WEIẞBACH") == "Weissbach WEISSBACH"
    assert len({normalize_text(letter) for letter in "пПπΠ"}) == 1  # Cyrillic and Greek


# -- decoded text
PACKED = base64.b64encode("a näht jar".encode()).decode()


@pytest.mark.parametrize(
    ("text", "decoded"),
    [
        ("a &lt;b&gt; &#112;&#x72;&#000111;&eacute", "a <b> proé"),
        ("100%, &nosuch; & \\d", None),
        ("a%20b %2570 %C3%A9", "a b %70 é"),  # once
        (r"{\"q\": \"\u0070\u0072\"}", r"{\"q\": \"pr\"}"),
        (f"see {PACKED}!", "see a näht jar!"),
        (f"see {PACKED.rstrip('=')}", "see a näht jar"),
        ("internationalization of /usr/local/bin/things", None),
        ("hi " + "".join(chr(0xE0000 + ord(each)) for each in "jar"), "hi jar"),
        ("x" + "".join(chr(0xE0100 + byte - 16) for byte in b"jars"), "xjars"),
        ("\ud800 %41", "\ud800 A"),
        ("", None),
        ("plain", None),
    ],
)
def test_encodings_are_undone(text: str, decoded: str | None) -> None:
    assert (made.text if (made := decode_text(text)) else None) == decoded


PARTS = st.sampled_from(["word ", "&amp;", "&#112", "%41", "\\u0041", PACKED, "\U000e0041", "é", "=", "-", "/x"])


@given(st.lists(PARTS, max_size=12))
def test_spans_lie_in_the_text_and_what_is_no_piece_is_the_same(parts: list[str]) -> None:
    text = "".join(parts)
    if (made := decode_text(text)) is None:
        return
    last = 0
    for index, character in enumerate(made.text):
        start, end = made.span(index, index + 1)
        assert last <= end and 0 <= start < end <= len(text)
        assert end - start > 1 or text[start] in (character, "\U000e0041")
        last = start
    assert made.span(0, len(made.text))[0] >= 0


# -- scan
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


# -- phrase tree
def test_the_longest_phrase_at_a_place_is_matched() -> None:
    pattern = re.compile(any_of(["nightjar", "night", "nightjars", "day (one)"]))
    assert [found[0] for found in pattern.finditer("night nightjar nightjars nigh day (one)")] == [
        "night",
        "nightjar",
        "nightjars",
        "day (one)",
    ]


def test_a_long_phrase_is_no_deep_pattern() -> None:
    phrase = "a" * 2_000
    assert re.compile(any_of([phrase])).fullmatch(phrase)


# -- patterns
@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("4111 1111 1111 1111", True),
        ("4111-1111-1111-1112", False),
        ("٤١١١ ١١١١ ١١١١ ١١١١", True),  # digits of other scripts are digits
        ("0000 0000 0000 0000", False),  # passes the checksum, and is nobody's
        ("0000 1111 2222 3333 4444", False),  # 20 digits
        ("79927398713", False),  # 11
        ("000004111111111111111", False),
    ],
)
def test_card_numbers_pass_luhn(text: str, right: bool) -> None:
    assert is_card_number(text) is right


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("DE89 3704 0044 0532 0130 00", True),
        ("GB29-NWBK-6016-1331-9268-19", True),
        ("DE89 3704 0044 0532 0130 01", False),
        ("DE89 3704 0044 0532 0130 00 EUR", True),  # a candidate runs on into the words behind it
        ("DE89 3704 0044 0532", False),
        ("OM81 0180 0000 0129 9123 456", True),
        ("ZZ89 3704 0044 0532 0130 00", False),
    ],
)
def test_ibans_have_their_countrys_length_and_pass_iso_7064(text: str, right: bool) -> None:
    assert is_iban(text) is right


@pytest.mark.parametrize(
    ("text", "right"),
    [("078-05-1120", True), ("536 90 4399", True), ("666-05-1120", False), ("900-05-1120", False),
     ("078-00-1120", False), ("078-05-0000", False)],
)  # fmt: skip
def test_social_security_numbers_that_were_never_given_out_are_none(text: str, right: bool) -> None:
    assert is_ssn(text) is right


def test_phones_addresses_and_placeholders() -> None:
    assert is_phone("+49 30 901820") and not is_phone("111-111-1111") and not is_phone("12345678")
    assert is_public_address("203.0.113.77") and is_public_address("2001:db8::1")
    assert not any(map(is_public_address, ("127.0.0.1", "::1", "0.0.0.0", "224.0.0.1", "1:2")))
    assert is_varied("Zx81kQpW77uu") and not is_varied("xxxxxxxxxxxx") and not is_varied("your-key-here-123")


def test_a_pattern_finds_its_kind_and_no_part_of_a_longer_word() -> None:
    by_kind = {each.kind: each.regex for each in (*PII, *SECRETS)}
    assert by_kind["credit_card"].search("card 4111 1111 1111 1111, please") is not None
    assert by_kind["credit_card"].search("v4.4111111111111111") is None
    assert by_kind["aws_key"].search("xAKIAIOSFODNN7EXAMPLE") is None
    assert by_kind["us_ssn"].search("part 1-078-05-1120") is None


# -- segments
WORDS = ["ignore", "all", "previous", "instructions", "é", "a", "fuck", "tea", "the", "you", "stupid", "x" * 300, "42"]
TEXTS_OF_SEGMENTS = st.lists(
    st.sampled_from([f"{word}{end}" for word in WORDS for end in (" ", ". ", "?\n")]), max_size=60
).map("".join)


def all_stretches(text: str) -> list[str]:
    spans = split_sentences(text)
    sentences = [text[start:end] for start, end in spans]
    return [*sentences, *(" ".join(sentences[first:end]) for first, end in group_neighbours(spans))]


def mixed(number: int) -> int:
    number %= 1 << 64
    number = (number ^ number >> 30) * 0xBF58476D1CE4E5B9 % (1 << 64)
    number = (number ^ number >> 27) * 0x94D049BB133111EB % (1 << 64)
    return number ^ number >> 31


def hash_of(word: str) -> int:
    """A word's hash by its definition."""
    return mixed(sum((ord(character) + 1) * pow(BASE, at, 1 << 64) for at, character in enumerate(word)))


@given(TEXTS_OF_SEGMENTS)
def test_stretches_are_the_text(text: str) -> None:
    spans = split_sentences(text)
    assert "".join("".join(text[start:end] for start, end in spans).split()) == "".join(text.split())
    assert all(before[1] <= start <= end for before, (start, end) in pairwise([(0, 0), *spans]))
    for first, end in group_neighbours(spans):
        assert end - first > 1
        assert len(" ".join(text[start:behind] for start, behind in spans[first:end])) < SEGMENT_CHARS + 1


@settings(max_examples=effort(80, 300), deadline=None)
@given(
    st.lists(st.text(st.characters(exclude_categories=()), max_size=600), max_size=3),
    st.sampled_from([("", r"[^\W_]+"), ("_", r"\w+")]),
)
def test_words_are_those_of_each_stretch(texts: list[str], kind: tuple[str, str]) -> None:
    also, pattern = kind
    found = cut_segments(texts, word_characters(also))
    expected = [
        (number, [hash_of(word) for word in re.findall(pattern, stretch)])
        for number, text in enumerate(texts)
        for stretch in all_stretches(text)
    ]
    got = [
        (int(number), found.words[first:behind].tolist())
        for first, behind, number in zip(found.first, found.behind, found.text, strict=True)
    ]
    assert sorted(got) == sorted(expected)


def test_the_table_of_letters_is_that_of_regular_expressions() -> None:
    inside, plain = word_characters("_"), word_characters()
    letters = {ord(each) for each in re.findall(r"\w", "".join(map(chr, range(0x110000))))}
    assert sorted(letters ^ {point for point in range(0x110000) if inside[point]})[:1] == []
    assert not any(plain[point] and not inside[point] for point in range(0x110000))


@settings(max_examples=effort(25, 60), deadline=None)
@given(st.lists(TEXTS_OF_SEGMENTS, min_size=1, max_size=3))
def test_toxicity_says_of_a_text_what_its_package_says_of_the_worst_stretch(texts: list[str]) -> None:
    package = pytest.importorskip("profanity_check")
    expected = [max(package.predict_prob(all_stretches(text)).tolist()) for text in texts]
    assert classifiers.load_classifier("toxicity").judge(texts) == pytest.approx(expected)


FRAGMENTS = [
    "4111 1111 1111 1111", "+49 30 12345678", "(212) 555-0187", "078-05-1120", "123456789012", "555.123.4567",
    "DE89 3704 0044 0532 0130 00", "8.8.8.8", "2001:db8::1", "a@b.example.org", "AKIAABCDEFGHIJKLMNOP",
    "ghp_" + "aB3" * 12, "eyJhbGciOiJI.eyJzdWIiOiIx.sig", "https://me:hunter22@host.example",
    "PassWord=hunter2hunter2", "api_key: 'qwertyuiop12'", '"token":"zxcvbnmasd99"', "secret='abc123def456'",
    "sk-proj-Ab1Cd2Ef3Gh4Ij5Kl6Mn7", "v1.2.3.", "0", "1-", "word", "-", ".", ":", "=",
]  # fmt: skip


@settings(max_examples=effort(80, 300), deadline=None)
@given(st.lists(st.tuples(st.sampled_from(FRAGMENTS), st.sampled_from(["", " ", ", ", "x", "-"])), max_size=8))
def test_what_is_looked_for_first_hides_nothing(parts: list[tuple[str, str]]) -> None:
    text = "".join(fragment + behind for fragment, behind in parts)
    rule = KindsRule(action="flag")
    scanner = Scanner(PolicySide(pii=rule, secrets=rule))
    expected = {
        (found.start(), found.end(), pattern.kind)
        for pattern in (*PII, *SECRETS)
        for found in pattern.regex.finditer(text)
        if pattern.check is None or pattern.check(found[0])
    }
    hits = {(hit.start, hit.end, hit.kind) for hit in scanner.find(text, text.lower())}
    assert hits == expected


# -- personal
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
