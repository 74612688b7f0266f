"""Scans plain text for forbidden phrases, personal data and secrets.

`Scanner.find` returns every hit in a piece of plain text; `Scanner.open` returns how much of its end a hit may still
begin in, so that an answer can be shown up to there while it is written. Invariant: a hit that begins before the open
end is whole, and would be found in the same place with more text behind it.

Phrases are compared without case, all in time that grows with the text alone. Where an answer is written, a word that
is encoded is read through (`decoded_text`); a message is decoded as a whole beforehand. Pure. Does not know actions'
consequences, models or streams.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Final, NamedTuple

from inference.moderation.decoded_text import BASE64_MIN, decode_text
from inference.moderation.normalize import fold_case, normalize_text, written_forms
from inference.moderation.patterns import (
    AROUND_NUMBER,
    HINTS,
    NUMBER_MAX,
    NUMBERED,
    NUMBERS,
    PII,
    PRIVATE_KEY,
    SECRETS,
    WORD_MAX,
    Pattern,
)
from inference.moderation.phrase_tree import any_of
from inference.moderation.policy import Action, PolicySide
from sessions.turn.output_pipeline import beginnings, held_back

_WORD_END: Final = re.compile(r"[!-~]*\Z")
_NUMBERISH: Final = re.compile(r"[!-~]*\d[!-~]*|[A-Z]{1,4}|[-+./()]{1,3}")
_CODED_WORD: Final = re.compile(rf"[!-~]{{{BASE64_MIN},{WORD_MAX}}}")


class Hit(NamedTuple):
    """A match at [start, end) of the plain text that was scanned."""

    start: int
    end: int
    category: str
    kind: str
    action: Action


class _Literal(NamedTuple):
    category: str
    kind: str
    action: Action
    words: bool


class Scanner:
    """Scans for what one side of a policy forbids."""

    def __init__(self, side: PolicySide) -> None:
        self._literals: dict[str, _Literal] = {}
        self._patterns: list[tuple[str, Action, Pattern]] = []
        allow: list[str] = []
        if side.phrases is not None:
            rule = side.phrases
            allow = [*dict.fromkeys(fold_case(normalize_text(phrase)) for phrase in _written(rule.allow))]
            for phrase in _written(rule.deny):
                plain = fold_case(normalize_text(phrase).strip()) or fold_case(phrase)
                self._literals[plain] = _Literal("phrases", "phrase", rule.action, rule.words)
        for category, rule_of, patterns in (("pii", side.pii, PII), ("secrets", side.secrets, SECRETS)):
            if rule_of is None:
                continue
            chosen = [pattern for pattern in patterns if not rule_of.kinds or pattern.kind in rule_of.kinds]
            self._patterns += [(category, rule_of.action, pattern) for pattern in chosen]
        if side.secrets is not None and (not side.secrets.kinds or "private_key" in side.secrets.kinds):
            # It goes on for lines: to cut out its head alone would leave the rest.
            action: Action = "block" if side.secrets.action == "redact" else side.secrets.action
            for head in PRIVATE_KEY:
                self._literals[head] = _Literal("secrets", "private_key", action, words=False)
        self._allow = re.compile(any_of(allow)) if allow else None
        self._find_literal = re.compile(any_of(self._literals)) if self._literals else None
        self._lengths = sorted({*map(len, self._literals)}, reverse=True)
        opening = [*self._literals, *allow]
        touching = {phrase for phrase, literal in self._literals.items() if literal.words}
        self._beginnings = beginnings(opening) | touching
        self._reach = max(map(len, opening), default=0)
        self.empty = not self._literals and not self._patterns

    def open(self, plain: str, folded: str) -> int:
        """Returns how many code points at the end of the text may belong to a hit that is not complete yet."""
        held = held_back(folded, self._beginnings, self._reach) if self._literals else 0
        if not self._patterns and not self._literals:
            return held
        match = _WORD_END.search(plain)
        assert match is not None
        start = word = match.start()
        if len(plain) - start > WORD_MAX:
            return max(held, WORD_MAX)
        while start and plain[start - 1] == " ":
            before = plain.rfind(" ", 0, start - 1) + 1
            if word - before > NUMBER_MAX or not _NUMBERISH.fullmatch(plain, before, start - 1):
                break
            start = before
        return max(held, len(plain) - start)

    def find(self, plain: str, folded: str, *, before: str = "", words: bool = False) -> list[Hit]:
        """Returns every hit, sorted by where it begins; of hits that begin at the same place those that block come
        first. `before` is the code point in front of the text. `words`: encoded words are decoded too, and a hit in one
        covers the whole word."""
        hits = [*self._literal_hits(folded, before), *self._pattern_hits(plain, before)]
        if words:
            hits += filter(None, map(self._encoded, _CODED_WORD.finditer(plain)))
        hits.sort(key=lambda hit: (hit.start, hit.action != "block", -hit.end))
        return hits

    def _encoded(self, word: re.Match[str]) -> Hit | None:
        """Returns the first hit in the decoded form of a word; the hit's span is the whole word. None if the word
        encodes nothing or the text has no hit."""
        if (decoded := decode_text(word[0])) is None:
            return None
        plain = normalize_text(decoded.text)
        hit = next(chain(self._literal_hits(fold_case(plain), ""), self._pattern_hits(plain, "")), None)
        return hit and Hit(*word.span(), hit.category, f"encoded {hit.kind}", hit.action)

    def _literal_hits(self, folded: str, before: str) -> Iterator[Hit]:
        if self._find_literal is None:
            return
        allowed = [match.span() for match in self._allow.finditer(folded)] if self._allow is not None else []
        firsts = [first for first, _ in allowed]
        at = 0
        while (found := self._find_literal.search(folded, at)) is not None:
            start, at = found.start(), found.start() + 1
            for length in self._lengths:  # the longest that counts
                if (end := start + length) > found.end():
                    continue
                literal = self._literals.get(folded[start:end])
                if literal is None or (literal.words and _touched(folded, start, end, before)):
                    continue
                if (around := bisect_right(firsts, start)) and end <= allowed[around - 1][1]:
                    continue
                yield Hit(start, end, literal.category, literal.kind, literal.action)
                at = end
                break

    def _pattern_hits(self, plain: str, before: str) -> Iterator[Hit]:
        if not self._patterns:
            return
        text, shift = before + plain, len(before)
        numbers = [match.span() for match in NUMBERS.finditer(text)]
        for category, action, pattern in self._patterns:
            for found in _matches(pattern, text, shift, numbers):
                if pattern.check is None or pattern.check(found[0]):
                    yield Hit(found.start() - shift, found.end() - shift, category, pattern.kind, action)


def _written(phrases: Sequence[str]) -> list[str]:
    """Returns the plain forms of phrases, each once."""
    forms: dict[str, str] = {}
    for phrase in phrases:
        for form in written_forms(phrase):
            forms.setdefault(fold_case(normalize_text(form)) or form, form)
    return [*forms.values()]


def _matches(pattern: Pattern, text: str, start: int, numbers: list[tuple[int, int]]) -> Iterator[re.Match[str]]:
    """Yields a pattern's matches from `start` on. If all matches of a pattern lie in one word and contain a known hint,
    only words with that hint are searched; a pattern of numbers is searched only around `numbers`."""
    if pattern.kind in NUMBERED:
        for first, last in numbers:
            begin = max(start, first - AROUND_NUMBER)
            yield from pattern.regex.finditer(text, begin, min(len(text), last + AROUND_NUMBER))
        return
    if (hints := HINTS.get(pattern.kind)) is None:
        yield from pattern.regex.finditer(text, start)
        return
    for begin, end in _words_with(hints, text):
        yield from pattern.regex.finditer(text, max(begin, start), end)


def _words_with(hints: Sequence[str | re.Pattern[str]], text: str) -> list[tuple[int, int]]:
    """Returns the spans of space-separated words that hold one of these hints."""
    words: set[tuple[int, int]] = set()
    for hint in hints:
        end = 0
        if isinstance(hint, re.Pattern):
            while (found := hint.search(text, end)) is not None:
                words.add(word := _word_at(text, found.start()))
                end = word[1]
        elif hint[-1] in text:  # one character is looked for several times faster
            while (at := text.find(hint, end)) >= 0:
                words.add(word := _word_at(text, at))
                end = word[1]
    return sorted(words)


def _word_at(text: str, index: int) -> tuple[int, int]:
    end = text.find(" ", index)
    return text.rfind(" ", 0, index) + 1, end if end >= 0 else len(text)


def _touched(text: str, start: int, end: int, before: str) -> bool:
    """Returns whether a letter or digit stands right beside a span."""
    first = text[start - 1] if start else before
    last = text[end : end + 1]
    return any(character.isalnum() or character == "_" for character in (first, last))
