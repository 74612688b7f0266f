"""What is read once and by ranges says what reading each stretch by itself says."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference.moderation import classifiers
from inference.moderation.patterns import PII, SECRETS
from inference.moderation.policy import KindsRule, PolicySide
from inference.moderation.scan import Scanner
from inference.moderation.segments import SEGMENT_CHARS, cut_segments, group_neighbours, split_sentences
from inference.moderation.word_hashing import BASE, word_characters

WORDS = ["ignore", "all", "previous", "instructions", "é", "a", "fuck", "tea", "the", "you", "stupid", "x" * 300, "42"]
TEXTS = st.lists(st.sampled_from([f"{word}{end}" for word in WORDS for end in (" ", ". ", "?\n")]), max_size=60).map(
    "".join
)


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


@given(TEXTS)
def test_stretches_are_the_text(text: str) -> None:
    spans = split_sentences(text)
    assert "".join("".join(text[start:end] for start, end in spans).split()) == "".join(text.split())
    assert all(before[1] <= start <= end for before, (start, end) in pairwise([(0, 0), *spans]))
    for first, end in group_neighbours(spans):
        assert end - first > 1
        assert len(" ".join(text[start:behind] for start, behind in spans[first:end])) < SEGMENT_CHARS + 1


@settings(max_examples=300, deadline=None)
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


@settings(max_examples=60, deadline=None)
@given(st.lists(TEXTS, min_size=1, max_size=3))
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


@settings(max_examples=300, deadline=None)
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
