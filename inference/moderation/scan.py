"""Scans plain text for forbidden phrases, personal data and secrets, plain or encoded.

`Scanner.find` returns every hit in a piece of plain text; `Scanner.open` returns how much of its end a hit may still
begin in, so that an answer can be shown up to there while it is written. Invariant: a hit that begins before the open
end is whole, and would be found in the same place with more text behind it.

Phrases are compared without case; their ROT13 is searched for as well. A word that is base64, base32, hex or
percent-encoded text is read through, and what it holds likewise, up to `DEPTH` deep. A whole text is also compared by
its letters alone (`squeezed`). Pure. Does not know actions' consequences, models or streams.
"""

from __future__ import annotations

import base64
import binascii
import codecs
import re
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple
from urllib.parse import unquote

from inference.moderation.disguise.announced import AnnouncedPhrases
from inference.moderation.disguise.encodings import (
    code_runs,
    coded_words,
    decodings,
    lines_of,
    parts_of,
    readable,
    uuencoded,
)
from inference.moderation.disguise.lattice import LatticePhrases
from inference.moderation.disguise.respelled import RespelledWords
from inference.moderation.disguise.scripts import ScriptPhrases
from inference.moderation.disguise.spelled import words_of
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
from inference.moderation.readings import DEPTH, readings_of
from inference.moderation.squeezed import SqueezedPhrases
from sessions.turn.output_pipeline import beginnings, held_back

ROT13_MIN: Final = 8  # letters; shorter ones occur by chance
SKELETON_MIN: Final = 6  # letters of a phrase that is left without its vowels
LINES_TRIED_MAX: Final = 4
CODED_WORDS_MANY: Final = 3
_WORD_END: Final = re.compile(r"[!-~]*\Z")
_NUMBERISH: Final = re.compile(r"[!-~]*\d[!-~]*|[A-Z]{1,4}|[-+./()]{1,3}")
WORD_LENGTH_MAX: Final = 8_192
_LONG: Final = re.compile(rf"[!-~]{{12,{WORD_LENGTH_MAX}}}")
_SEEN: Final = {code: "x" if 0x21 <= code <= 0x7E else " " for code in range(128)}
_LONG_MIN: Final = "x" * 12
_MIXED: Final = re.compile(r"[a-z][A-Z]|[A-Z]{2}|[0-9%]")  # in whatever is encoded, and in few long words
_CODED: Final = re.compile("[A-Z0-9]")
CODED_MIN: Final = 3  # capitals and digits in a word that may be base64 from its end
_BASE64: Final = re.compile(r"[A-Za-z0-9+/_-]{12,}={0,2}")
_BASE32: Final = re.compile(r"(?<![A-Za-z0-9])(?:[A-Z2-7]{14,}|[a-z2-7]{14,})={0,6}(?![A-Za-z0-9])")
_HEX: Final = re.compile(r"(?<![0-9a-fA-F])(?:(?:0[xX])?[0-9a-fA-F]{2}[:, ]?){7,}(?![0-9a-fA-F])")


class Hit(NamedTuple):
    """[start, end) of the plain text that was scanned."""

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
        written: list[str] = []
        if side.phrases is not None:
            rule = side.phrases
            allow = [*dict.fromkeys(fold_case(normalize_text(each)) for each in _written(rule.allow))]
            written = _written(rule.deny)
            for phrase in written:
                plain = fold_case(normalize_text(phrase).strip()) or fold_case(phrase)
                self._literals[plain] = _Literal("phrases", "phrase", rule.action, rule.words)
                rotated = codecs.encode(plain, "rot13")
                if sum(each.isascii() and each.isalpha() for each in plain) >= ROT13_MIN:
                    self._literals.setdefault(rotated, _Literal("phrases", "rot13", rule.action, words=True))
                skeleton = " ".join(filter(None, (re.sub("[aeiou]", "", word) for word in plain.split())))
                if skeleton != plain and sum(map(str.isalpha, skeleton)) >= SKELETON_MIN:
                    self._literals.setdefault(skeleton, _Literal("phrases", "phrase", rule.action, words=True))
        for category, rule_of, patterns in (("pii", side.pii, PII), ("secrets", side.secrets, SECRETS)):
            if rule_of is None:
                continue
            chosen = [each for each in patterns if not rule_of.kinds or each.kind in rule_of.kinds]
            self._patterns += [(category, rule_of.action, each) for each in chosen]
        if side.secrets is not None and (not side.secrets.kinds or "private_key" in side.secrets.kinds):
            # It goes on for lines: to cut out its head alone would leave the rest.
            action: Action = "block" if side.secrets.action == "redact" else side.secrets.action
            for head in PRIVATE_KEY:
                self._literals[head] = _Literal("secrets", "private_key", action, words=False)
        phrases = side.phrases
        denied = phrases.deny if phrases else ()
        self._lattice = LatticePhrases(denied)
        self._scripts = ScriptPhrases(denied)
        self._phrase_action: Action = phrases.action if phrases else "block"
        self._announced = AnnouncedPhrases(denied)
        self._respelled = RespelledWords(fold_case(normalize_text(each).strip()) for each in written)
        self._squeezed = SqueezedPhrases(written, allow, phrases.action if phrases else "block")
        self._allow = re.compile(any_of(allow)) if allow else None
        self._find_literal = re.compile(any_of(self._literals)) if self._literals else None
        opening = [*self._literals, *allow]
        touching = {phrase for phrase, literal in self._literals.items() if literal.words}
        self._beginnings = beginnings(opening) | touching
        self._reach = max(map(len, opening), default=0)
        self.empty = not self._literals and not self._patterns

    def open(self, plain: str, folded: str) -> int:
        """Returns how many code points at the end may belong to a hit that is not whole."""
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

    def find(self, plain: str, folded: str, *, before: str = "", whole: bool = False) -> list[Hit]:
        """Returns every hit, by where it begins; of those that begin together a block comes first. `before` is the code
        point before the text. In a `whole` text also phrases by their letters alone."""
        hits = [*self._literal_hits(folded, before), *self._pattern_hits(plain, before)]
        words = _long_words(plain)
        if whole:
            hits += (Hit(*span, "phrases", "phrase", self._squeezed.action) for span in self._squeezed.find(folded))
            known = words_of(folded)
            hits += self._respelled_hits(folded, known)
            spans = self._announced.find(folded, known)
            hits += (Hit(*span, "phrases", "phrase", self._phrase_action) for span in spans)
            hits += self._over_spaces(plain, words, DEPTH)
        for word in words:
            inner = self._encoded(plain[slice(*word)], DEPTH)
            if inner is not None:
                hits.append(Hit(*word, inner.category, f"encoded {inner.kind}", inner.action))
        hits.sort(key=lambda hit: (hit.start, hit.action != "block", -hit.end))
        return hits

    def _encoded(self, word: str, depth: int) -> Hit | None:
        """The first hit in what a word may encode."""
        if not _MIXED.search(word):
            return None
        return next((hit for text in possible_decodings(word) for hit in self._inside(text, depth - 1)), None)

    def _over_spaces(self, plain: str, words: Sequence[tuple[int, int]], depth: int) -> Iterator[Hit]:
        """The first hit in each run of codes, and in what is encoded in several lines."""
        for packed, start, end in parts_of(plain):
            if (inner := self._encoded(packed, depth)) is not None:
                yield Hit(start, end, inner.category, f"encoded {inner.kind}", inner.action)
        for text, start, end in code_runs(plain):
            if (inner := next(self._inside(text, depth - 1), None)) is not None:
                yield Hit(start, end, inner.category, f"encoded {inner.kind}", inner.action)
        for (text, start, end), num_words in coded_words(plain):
            # One or two stand in plain text also: names of things, in which nobody hides a disguise.
            hits = self._inside(text, depth - 1) if num_words >= CODED_WORDS_MANY else self._as_it_is(text)
            if (inner := next(hits, None)) is not None:
                yield Hit(start, end, inner.category, f"encoded {inner.kind}", inner.action)
        behind = tried = 0  # of lines that begin in what was tried already, a few more
        for start, end in words:
            if plain[end : end + 1] != " " or (start < behind and tried >= LINES_TRIED_MAX):
                continue
            tried = tried + 1 if start < behind else 0
            for packed, first, last in lines_of(plain, start, end):
                behind = max(behind, last)
                if (inner := self._encoded(packed, depth)) is not None:
                    yield Hit(first, last, inner.category, f"encoded {inner.kind}", inner.action)

    def _inside(self, decoded: str, depth: int) -> Iterator[Hit]:
        for reading in readings_of(decoded):
            plain = normalize_text(reading.text)
            folded = fold_case(plain)
            yield from self._literal_hits(folded, "")
            yield from self._pattern_hits(plain, "")
            yield from (Hit(*span, "phrases", "phrase", self._squeezed.action) for span in self._squeezed.find(folded))
            yield from self.raw_hits(reading.text)
            if not depth:
                continue
            words = _long_words(plain)
            yield from self._over_spaces(plain, words, depth)
            for word in words:
                if (inner := self._encoded(plain[slice(*word)], depth)) is not None:
                    yield inner

    def _as_it_is(self, decoded: str) -> Iterator[Hit]:
        """The hits in a decoded text that is disguised no further."""
        plain = normalize_text(decoded)
        folded = fold_case(plain)
        yield from self._literal_hits(folded, "")
        yield from self._pattern_hits(plain, "")
        yield from (Hit(*span, "phrases", "phrase", self._squeezed.action) for span in self._squeezed.find(folded))

    def raw_hits(self, text: str) -> Iterator[Hit]:
        """Phrases in other signs, and words in base85; [start, end) of the text as it came, not of its plain form."""
        for span in (*self._lattice.find(text), *self._scripts.find(text)):
            yield Hit(*span, "phrases", "phrase", self._phrase_action)
        for made, start, end in uuencoded(text):
            for inner in self._inside(made, DEPTH - 1):
                yield Hit(start, end, inner.category, f"encoded {inner.kind}", inner.action)
        for word in _LONG.finditer(text) if "`" in text else ():  # which plain text has not
            for made in decodings(word[0]) if "`" in word[0] else ():
                for inner in self._inside(made, DEPTH - 1):
                    yield Hit(word.start(), word.end(), inner.category, f"encoded {inner.kind}", inner.action)

    def _respelled_hits(self, folded: str, known: set[bytes]) -> Iterator[Hit]:
        if (replaced := self._respelled.replace(folded, known)) is None:
            return
        text, places = replaced
        for hit in self._literal_hits(text, ""):
            if hit.category == "phrases":
                yield hit._replace(start=places[hit.start], end=places[hit.end - 1] + 1)

    def _literal_hits(self, folded: str, before: str) -> Iterator[Hit]:
        if self._find_literal is None:
            return
        allowed = [each.span() for each in self._allow.finditer(folded)] if self._allow is not None else []
        at = 0
        while (found := self._find_literal.search(folded, at)) is not None:
            start, at = found.start(), found.start() + 1
            for end in range(found.end(), start, -1):  # the longest that counts
                literal = self._literals.get(folded[start:end])
                if literal is None or (literal.words and _touched(folded, start, end, before)):
                    continue
                if any(first <= start and end <= last for first, last in allowed):
                    continue
                yield Hit(start, end, literal.category, literal.kind, literal.action)
                at = end
                break

    def _pattern_hits(self, plain: str, before: str) -> Iterator[Hit]:
        if not self._patterns:
            return
        text, shift = before + plain, len(before)
        numbers = [each.span() for each in NUMBERS.finditer(text)]
        for category, action, pattern in self._patterns:
            for found in _matches(pattern, text, shift, numbers):
                if pattern.check is None or pattern.check(found[0]):
                    yield Hit(found.start() - shift, found.end() - shift, category, pattern.kind, action)


def _written(phrases: Sequence[str]) -> list[str]:
    """Phrases in all their forms, each plain one once."""
    forms: dict[str, str] = {}
    for phrase in phrases:
        for form in written_forms(phrase):
            forms.setdefault(fold_case(normalize_text(form)) or form, form)
    return [*forms.values()]


def _matches(pattern: Pattern, text: str, start: int, numbers: list[tuple[int, int]]) -> Iterator[re.Match[str]]:
    """Yields a pattern's matches from `start` on; looks only where its hint is: between the spaces around it, for all
    matches of a pattern that has one lie in one word."""
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


def _long_words(plain: str) -> list[tuple[int, int]]:
    """The runs of printable ASCII that are long enough to be encoded."""
    if not plain.isascii():
        return [each.span() for each in _LONG.finditer(plain)]
    words: list[tuple[int, int]] = []
    seen = plain.translate(_SEEN) + " "
    start = seen.find(_LONG_MIN)
    while start >= 0:
        end = min(seen.index(" ", start), start + WORD_LENGTH_MAX)
        words.append((start, end))
        start = seen.find(_LONG_MIN, end)
    return words


def _words_with(hints: Sequence[str | re.Pattern[str]], text: str) -> list[tuple[int, int]]:
    """What stands between spaces and holds one of these."""
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


def possible_decodings(word: str) -> Iterator[str]:
    """Yields the readable texts that a word may encode: percent-encoding, base64, base32, hex."""
    if word.count("%") >= 3 and (plain := unquote(word, errors="replace")) != word:
        yield plain
    for run in (*_BASE64.findall(word), *_otherwise_packed(word)):
        packed = run.rstrip("=").replace("-", "+").replace("_", "/")
        packed = packed[: len(packed) - (len(packed) % 4 == 1)]
        try:
            data = base64.b64decode(packed + "=" * (-len(packed) % 4), validate=True)
        except binascii.Error:
            continue
        if (text := readable(data)) is not None:
            yield text
    for run in _BASE32.findall(word):
        packed = run.rstrip("=").upper()
        try:
            data = base64.b32decode(packed + "=" * (-len(packed) % 8))
        except binascii.Error:
            continue
        if (text := readable(data)) is not None:
            yield text
    for run in _HEX.findall(word):
        if (text := readable(bytes.fromhex(re.sub("0[xX]|[:, ]", "", run)))) is not None:
            yield text
    yield from decodings(word)


def _otherwise_packed(word: str) -> Iterator[str]:
    """Base64 from its end, or in parts with hyphens between."""
    if len(_CODED.findall(word)) >= CODED_MIN:
        yield from _BASE64.findall(word[::-1])
    if word.count("-") > 1:
        yield from _BASE64.findall(word.replace("-", ""))


def _touched(text: str, start: int, end: int, before: str) -> bool:
    """Whether a letter or digit stands right beside a span."""
    first = text[start - 1] if start else before
    last = text[end : end + 1]
    return any(each.isalnum() or each == "_" for each in (first, last))
