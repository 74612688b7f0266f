"""Words that are spelled out: Morse, Braille, spelling alphabets, letters' names in Unicode, lists, initials.

`spellings` yields patterns and what each of their matches stands for, where a text has a sign of them. Pure.
"""

from __future__ import annotations

import codecs
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Final

from inference.moderation.disguise.letter_names import braille, numbered_letters, spelled_names, turned
from inference.moderation.disguise.numbered import between_capitals, numbered_words
from inference.moderation.normalize import fold_case

_BESIDE: Final = ".,;:!?\"'()[]{}<>*_~-/=|`"
_APART: Final = bytes.maketrans(_BESIDE.encode() + b"\x1c\x1d\x1e\x1f", b" " * (len(_BESIDE) + 4))
Undo = Callable[["re.Match[str]"], str | None]
Spelling = tuple[int, int, re.Pattern[str], Undo]  # a stretch [first, last), a pattern, what its matches stand for

LETTERS: Final = "abcdefghijklmnopqrstuvwxyz"
_MORSE_LETTERS: Final = (
    ".- -... -.-. -.. . ..-. --. .... .. .--- -.- .-.. -- -. --- .--. --.- .-. ... - ..- ...- .-- -..- -.-- --.."
    " ----- .---- ..--- ...-- ....- ..... -.... --... ---.. ----."
)
_MORSE: Final = dict(zip(_MORSE_LETTERS.split(), f"{LETTERS}0123456789", strict=True))
_MORSE_SIGN: Final = re.compile(r"[.\-·•−–_]{1,6}(?:[ /|][.\-·•−–_]{1,6}){3}")
_MORSE_CODE: Final = re.compile(
    r"(?<![^\s/|,\"'(])(?P<code>[.\-·•−–_]{1,6})(?![.\-·•−–_])(?P<gap>[ ]?[/|][ ]?|\s{2,}|\s(?=[.\-·•−–_])|)"
)
_MORSE_PAIRS: Final = (".-", "-.", "_.", "._")
_MORSE_PAIRS_OF_ALL: Final = (
    *_MORSE_PAIRS,
    *(a + b for a in "·•." for b in "−–-"),
    *(b + a for a in "·•." for b in "−–-"),
)
_MORSE_MIN: Final = 3  # dashes
_MORSE_SIGNS: Final = "·•−–"
_DOTS: Final = str.maketrans("·•−–_", "..---")
_BRAILLE: Final = re.compile("[\u2800-\u28ff]")
_BRAILLE_DOTS: Final = (
    "1 12 14 145 15 124 1245 125 24 245 13 123 134 1345 135 1234 12345 1235 234 2345 136 1236 2456 1346 13456 1356"
)
_BRAILLE_LETTERS: Final = {
    0x2800 + sum(1 << int(dot) - 1 for dot in dots): letter
    for letter, dots in zip(LETTERS, _BRAILLE_DOTS.split(), strict=True)
} | {0x2800: " "}
_NATO_WORD: Final = (
    r"(?:al(?:f|ph)a|bravo|charlie|delta|echo|foxtrot|golf|hotel|india|juliett?|kilo|lima|mike|november|oscar|papa|quebec"
    r"|romeo|sierra|tango|uniform|victor|whiske?y|x-?ray|yankee|zulu)"
)
_NATO_SIGNS: Final = ("echo", "oscar", "india", "alpha", "alfa", "uniform")  # vowels
_NATO_RUN: Final = re.compile(rf"\b{_NATO_WORD}(?:[\s,.;:/|-]{{1,3}}{_NATO_WORD}){{3,}}\b", re.IGNORECASE)
_NATO_TAKEN: Final = re.compile(_NATO_WORD, re.IGNORECASE)
_LETTER_FOR: Final = tuple(
    re.compile(rf" {word} (?<=\W\w {word} )") for word in ("as in", "for", "like", "wie", "comme", "como")
)
_LETTER_AS: Final = re.compile(
    r"\b([A-Za-z])(?:,?\s(?:as\sin|for|like|wie|comme|como|as)\s[^\W\d_]{2,16})(?:[\s,.;/-]{1,3}|\b)", re.IGNORECASE
)
_NAMED_MIN: Final = 4  # letters by their names
_CALLED: Final = re.compile(
    r"(?:LATIN\s)?(?:SMALL\s|CAPITAL\s)?LETTER\s([A-Z])\b(?:\s{0,2}[,;+]?\s{1,2}(?=LATIN|SMALL|CAP|LETTER)|)",
    re.IGNORECASE,
)
_LABEL: Final = (  # what begins an item: a sign, or few words with a number or a letter
    r"[\t ]{0,8}[(\[*#>\"'“•-]{0,3}[ ]?(?:[^\W\d_]{1,12}[ ]){0,3}?"
    r"(?:(?:\d{1,2}|one|two|three|four|five|six|first|second|third|last|[a-h])\b"
    r"(?:[ ][^\W\d_]{1,12}){0,2}[ ]?(?:[:=)\].|,]|-(?=\s)|[ ]is\b)|[-*•+>](?=\s))[\s\"'“*]{0,4}"
)
_LISTED: Final = re.compile(rf"[\n;,.|](?:[\"'”’»)\]*.\s|]{{0,4}}){_LABEL}", re.IGNORECASE)
_LISTED_ALL: Final = re.compile(rf"(?:\A|{_LISTED.pattern.removesuffix(_LABEL)}){_LABEL}", re.IGNORECASE)
_LISTED_LINES: Final = re.compile(rf"\n{_LABEL}", re.IGNORECASE)
_FIRST_LABEL: Final = re.compile(_LABEL, re.IGNORECASE)
_LISTED_MAX: Final = 2_048
_LISTED_WORDS: Final = re.compile(
    r"\b(?:part|piece|half|word|chunk|segment|teil|parte|часть)\s(?:\d{1,2}|one|two|three|four|five|[a-f])\b"
    r"\s?(?:is\b|[:=)\].-])[\s\"'“]{0,3}",
    re.IGNORECASE,
)
_INITIALS: Final = (
    "initials", "initial letter", "first letter", "first char", "last letter", "crosti", "anfangsbuch", "capitals",
)  # fmt: skip
_AFTER_INITIAL: Final = re.compile(r"(?<=\b\w)\w*\W*|(?<!\w)\W+")
_BEFORE_LAST: Final = re.compile(r"\w+(?=\w\b)|(?<=\w)\W+")
_SMALL: Final = re.compile(r"[^A-Z]+")
_LINES_MIN: Final = 7
_REST_OF_LINE: Final = re.compile(r"(?<=^\w)[^\n]+\n?|^[^\w\n]+", re.MULTILINE)
_BEFORE_LAST_WORD: Final = re.compile(r"^[^\n]{0,200}[\s,;|:=>](?=[^\s,;|:=>]{1,40}[ \t|,;.]{0,4}$)", re.MULTILINE)
_OFFSET: Final = re.compile(
    r"^[0-9a-fA-F]{4,8}[:h]?[ \t]{1,3}|(?<=[0-9a-fA-F])[ ]{2,}[^\n]{0,24}(?:\n|\Z)|\n", re.MULTILINE
)
_OFFSET_SIGN: Final = re.compile(r"\n[0-9a-fA-F]{4,8}[:h]?[ \t]{1,3}[0-9a-fA-F]{2}")
_NUMBER: Final = r"(?:2[0-6]|1\d|[1-9])"
_NUMBERED: Final = re.compile(rf"[1-9](?<![\w.].)\d?(?:[-\s,.;:/|_]{{1,3}}{_NUMBER}){{7,}}(?!\d)")
_NUMBER_OR_GAP: Final = re.compile(r"\d+|\D+")
_AROUND: Final = 150  # code points beside what spells something
_OTHERS: Final = re.compile("[\u2800-\u28ff¹²³⁰-⁹₀-₉]")
_RAISED: Final = re.compile("[¹²³⁰-⁹₀-₉]+")
_GLUED_LETTERS: Final = re.compile(  # single letters with the same between all of them, or with numbers
    r"[^\W\d_](?<![^\W_].)"
    r"(?:(?P<glue>[^\w]{1,4}[^\W\d_]{0,5}[^\w]{1,4}|[^\w]{2,8})[^\W\d_](?:(?P=glue)[^\W\d_]){5,}"
    r"|(?:[^\w]{0,3}\d{1,2}[^\w]{0,3}[^\W\d_](?![^\W\d_])){6,}\d{0,2})(?![^\W\d_])"
)
_GLUED_MAX: Final = 2_048  # code points of a text in which these are looked for
_NO_LETTER: Final = re.compile(r"(?:[\W\d_]+[^\W\d_]{2,5})?[\W\d_]+")
_EMPHASISED: Final = re.compile(r"[^*<]*(?:\*\*?|<(?:b|strong|em|i)>)(\w)(?:\*\*?|</(?:b|strong|em|i)>)[^*<]*")
_SUBSTITUTE_SIGNS: Final = ("replac", "stands for", "sed ")
_SUBSTITUTE: Final = re.compile(  # one sign or text for another
    r"(?:replac\w{0,3}(?:_all|All)?\(?\s?(?:all\s|every\s|each\s)?|sed\s[\"']?s/)[\"'“‘`]?(?P<one>[^\s\"'”’`/]{1,8}?)"
    r"[\"'”’`/]?(?:,\s?|\s(?:with|by)\s|(?<=/))[\"'“‘`]?(?P<other>[^\s\"'”’`/.,)]{0,8})"
    r"|(?<=(?P<sign>\S)\s)stands\sfor\s(?:the\sletter\s)?[\"'“‘`]?(?P<letter>\w)\b",
    re.IGNORECASE,
)
_FILLER: Final = re.compile(  # what is left out, behind a word for that
    r"(?:[^\W\d_]{3,12}+(?:_all)?\(?)(?:\s?(?:all|every|each|the|any|of|out)\b){0,3}\s?"
    r"(?:[\"'“‘`/](?P<quoted>[^\"'”’`\n/]{1,12})[\"'”’`/]|(?P<sign>[^\w\s.,;:!?()\"']{1,3}(?=\s)|(?-i:[B-HJ-Z])\b)"
    r"|(?:characters?|letters?|words?|symbols?|signs?|occurrences?(?:\sof)?)\s[\"'“‘`]?"
    r"(?P<named>(?!you\b|i\b|or\b|and\b|in\b|of\b)\w{1,12})"
    r"|(?P<digits>digits?|numbers?)\b|(?P<second>(?:second|other|2nd)\b|(?<=alternate)\b|(?<=alternating)\b))",
    re.IGNORECASE,
)
_DIGITS: Final = re.compile(r"(?<=\D)\d+|\d+(?=\D)")
_ASCII_LETTERS: Final = re.compile(r"[A-Za-z]+")
_FIRST_WORD: Final = re.compile(r"(\w+)\W+\w+")
_SECOND_WORD: Final = re.compile(r"\w+\W+(\w+)")
_SECOND_OF_TWO: Final = re.compile(r"\w(\w?)")
_FILLERS_MAX: Final = 6
_FILLED: Final = 800  # code points beside that from which it is left out


def words_of(folded: str) -> set[bytes]:
    """The words of a text in lower case, as bytes: which of some are there is then a quick look."""
    return {*folded.encode("utf-8", "surrogatepass").translate(_APART).split()}


def words_among(words: set[bytes], signs: frozenset[bytes]) -> list[str]:
    """Those of a text's words that are signs of something."""
    return [] if words.isdisjoint(signs) else [each.decode() for each in words & signs]


def forms_of(*stems: str) -> frozenset[bytes]:
    """English words in their forms."""
    return frozenset((stem + ending).encode() for stem in stems for ending in _ENDINGS)


_ENDINGS: Final = ("", "e", "es", "ed", "ing", "s", "d", "er", "ped", "ping", "ted", "ting", "all", "al", "ion", "ment")
_FILLER_WORDS: Final = forms_of(
    "remov", "ignor", "delet", "skip", "without", "strip", "drop", "omit", "replac", "split", "sub", "gsub", "every",
    "alternat",
)  # fmt: skip
_NOUN_WORDS: Final = forms_of("part", "piece", "half", "word", "chunk", "seg", "teil", "parte", "часть")
_INITIAL_WORDS: Final = forms_of(
    "initial", "letter", "acrostic", "akrostichon", "character", "char", "capital", "anfangsbuchstaben"
)
_SUBSTITUTE_WORDS: Final = forms_of("replac", "stand", "sed")
_BOLD_WORDS: Final = forms_of("bold", "emphasis", "emphasiz", "emphasise")
_NATO_WORDS: Final = frozenset(sign.encode() for sign in _NATO_SIGNS)
_SINGLE_LETTERS: Final = frozenset(each.encode() for each in LETTERS)
_TURNED_SIGNS: Final = "ɐǝʇʞ"
_CAPITAL_WORDS: Final = forms_of("capital", "uppercase", "lowercase", "upper", "lower", "majuscule", "großbuchstaben")
_CAPITALS_MAX: Final = 2_048  # code points of a text in which these are looked for without a word
_ORDER_WORDS: Final = frozenset((b"1", b"2"))
_LETTER_NUMBERS: Final = frozenset(f"{number}".encode() for number in range(34))
_NUMBER_WORDS: Final = frozenset(f"{number}".encode() for number in range(1, 27))
_NUMBERS_MIN: Final = 4  # different ones
_ROT_WORDS: Final = frozenset((b"rot", b"rot13"))


def spellings(text: str) -> Iterator[Spelling]:
    """Each stretch of a text in which something may be spelled, the pattern of it, and what its matches stand for."""
    lower = fold_case(text)
    words = words_of(lower)
    whole = (0, len(text))
    plain = text.isascii() or not any(map(text.__contains__, _MORSE_SIGNS))
    if (not plain or "-" in text or "_" in text) and any(
        map(text.__contains__, _MORSE_PAIRS if plain else _MORSE_PAIRS_OF_ALL)
    ):
        yield from _around(text, _MORSE_SIGN, _MORSE_CODE, _morse)
    if not text.isascii() and _OTHERS.search(text):
        yield from _around(text, _BRAILLE, _BRAILLE, lambda found: _BRAILLE_LETTERS.get(ord(found[0]), ""))
        yield from _around(text, _RAISED, _RAISED, lambda _: "")
        if _BRAILLE.search(text):
            yield from braille(text)
    if not text.isascii() and any(map(text.__contains__, _TURNED_SIGNS)):
        yield from turned(text)
    yield from spelled_names(text, words)
    for window in near(lower, _NATO_SIGNS, 200, 200) if not words.isdisjoint(_NATO_WORDS) else ():
        yield *window, _NATO_RUN, lambda found: "".join(each[0].lower() for each in _NATO_TAKEN.findall(found[0]))
    if not words.isdisjoint(_SINGLE_LETTERS):
        named = sorted(found.start() for each in _LETTER_FOR for found in each.finditer(lower))
        for window in _merged(((at - 60, at + 60) for at in named), len(text)) if len(named) >= _NAMED_MIN else ():
            yield *window, _LETTER_AS, lambda found: found[1]
    for window in near(lower, ("letter ",), 100, 100) if b"letter" in words else ():
        yield *window, _CALLED, lambda found: found[1]
    for window in near(lower, _INITIALS, 50, 1_200) if not words.isdisjoint(_INITIAL_WORDS) else ():
        yield *window, _AFTER_INITIAL, lambda _: " "
        yield *window, _BEFORE_LAST, lambda found: "" if found[0][0].isalnum() else " "
        yield *window, _SMALL, lambda _: " "
    for window in near(lower, ("rot13", "rot-13", "rot 13"), 600, 600) if not words.isdisjoint(_ROT_WORDS) else ():
        yield *window, _ASCII_LETTERS, lambda found: codecs.encode(found[0], "rot13")
    yield from _over_lines(text, whole)
    nouns = words_among(words, _NOUN_WORDS)
    listed = [at for at in places_of(lower, nouns) if _LISTED_WORDS.match(text, at)]
    for window in _merged(((at - _AROUND, at + 2 * _AROUND) for at in listed), len(text)) if len(listed) > 1 else ():
        for undo in (lambda _: "", lambda _: " "):
            yield *window, _LISTED_WORDS, undo
    if len(words & _NUMBER_WORDS) >= _NUMBERS_MIN and _NUMBERED.search(text):
        yield from _around(text, _NUMBERED, _NUMBERED, _numbered)
    if len(words & _LETTER_NUMBERS) >= _NUMBERS_MIN:
        yield from numbered_letters(text)
    if words >= _ORDER_WORDS:
        yield from numbered_words(text)
    if len(text) <= _CAPITALS_MAX or not words.isdisjoint(_CAPITAL_WORDS):
        yield from between_capitals(text)
    yield from _without_fillers(text, places_of(lower, words_among(words, _FILLER_WORDS)))
    for window in near(lower, ("bold", "emphasi"), 50, 1_200) if not words.isdisjoint(_BOLD_WORDS) else ():
        yield *window, _EMPHASISED, lambda found: f"{found[1]} "
    if len(text) <= _GLUED_MAX:
        yield from _around(text, _GLUED_LETTERS, _GLUED_LETTERS, lambda found: _NO_LETTER.sub("", found[0]))
    for at in places_of(lower, _SUBSTITUTE_SIGNS)[:_FILLERS_MAX] if not words.isdisjoint(_SUBSTITUTE_WORDS) else ():
        if (found := _SUBSTITUTE.match(text, at)) is not None:
            one, other = found["one"] or found["sign"], found["other"] if found["one"] else found["letter"]
            yield max(0, at - _FILLED), min(at + _FILLED, len(text)), re.compile(re.escape(one)), _constant(other or "")


def _over_lines(text: str, whole: tuple[int, int]) -> Iterator[Spelling]:
    """Lists, lines of one letter, the last words of lines, and dumps with the place before each line."""
    lines = text.count("\n")
    listed = _LISTED if len(text) <= _LISTED_MAX else _LISTED_LINES if lines else None
    if listed is not None and len([*islice(listed.finditer(text), 2)]) + (_FIRST_LABEL.match(text) is not None) > 1:
        for undo in (lambda _: "", lambda _: " "):
            yield from _around(text, listed, _LISTED_ALL, undo)
    if not lines:
        return
    if lines >= _LINES_MIN:
        yield *whole, _REST_OF_LINE, lambda _: " "
    yield *whole, _BEFORE_LAST_WORD, lambda _: ""
    if _OFFSET_SIGN.search(text):
        yield *whole, _OFFSET, lambda _: " "


def near(text: str, signs: Iterable[str], before: int, behind: int) -> list[tuple[int, int]]:
    """The stretches of a text that have one of these in them, with what stands around."""
    return _merged(((at - before, at + behind) for at in places_of(text, signs)), len(text))


def places_of(text: str, signs: Iterable[str]) -> list[int]:
    """Where these begin, in order."""
    places: list[int] = []
    for sign in signs:
        at = text.find(sign)
        while at >= 0:
            places.append(at)
            at = text.find(sign, at + len(sign))
    return sorted(places)


def _around(text: str, sign: re.Pattern[str], pattern: re.Pattern[str], undo: Undo) -> Iterator[Spelling]:
    spans = ((found.start() - _AROUND, found.end() + _AROUND) for found in sign.finditer(text))
    for first, last in _merged(spans, len(text)):
        yield first, last, pattern, undo


def _merged(spans: Iterable[tuple[int, int]], length: int) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for first, last in spans:
        if merged and first <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(min(last, length), merged[-1][1]))
        else:
            merged.append((max(0, first), min(last, length)))
    return merged


def _without_fillers(text: str, places: Iterable[int]) -> Iterator[Spelling]:
    """A text without what it says is to be left out."""
    found = [each for at in places if (each := _FILLER.match(text, at)) is not None]
    for each in found[:_FILLERS_MAX]:
        window = max(0, each.start() - _FILLED), min(each.end() + _FILLED, len(text))
        match each.lastgroup:
            case "second":
                yield *window, _SECOND_OF_TWO, lambda found: found[0][0]
                yield *window, _SECOND_OF_TWO, lambda found: found[1]
                yield *window, _FIRST_WORD, lambda found: found[1]
                yield *window, _SECOND_WORD, lambda found: found[1]
            case "digits":
                yield *window, _DIGITS, lambda _: ""
            case str() as kind:
                yield *window, re.compile(re.escape(each[kind])), lambda _: ""


def _constant(text: str) -> Undo:
    return lambda _: text


def _numbered(found: re.Match[str]) -> str:
    """Letters by their numbers in the alphabet; the gap that is there most often stands in words."""
    parts = _NUMBER_OR_GAP.findall(found[0])
    usual = Counter(parts[1::2]).most_common(1)[0][0]
    return "".join(
        LETTERS[int(part) - 1 : int(part)] if part.isdecimal() else "" if part == usual else " " for part in parts
    )


def _morse(found: re.Match[str]) -> str | None:
    letter = _MORSE.get(found["code"].translate(_DOTS))
    if letter is None:
        return None
    return letter + (" " if len(found["gap"]) > 1 or found["gap"] in ("/", "|") else "")
