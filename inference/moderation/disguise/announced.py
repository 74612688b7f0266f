"""Phrases in a simple cipher that the text itself speaks of: Caesar with any shift, Atbash, ROT47, neighbours on the
keyboard, pig Latin, words or letters in another order.

Looked for only where a text has a word for it ("decode", "cipher", "backwards"), so that others cost a look for these.
A shift is found without trying each: the differences of neighbouring letters stay as they are. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import islice, pairwise
from typing import Final

from inference.moderation.disguise.spelled import forms_of, near, words_among, words_of
from inference.moderation.normalize import fold_case, normalize_text
from inference.moderation.phrase_tree import any_of

LETTERS_MIN: Final = 8
PHRASES_MAX: Final = 500
_AROUND: Final = 600  # code points beside such a word
_WORDS: Final = forms_of(
    "cipher", "cypher", "decipher", "encipher", "caesar", "cesar", "shift", "decod", "encod", "crypt", "decrypt",
    "encrypt", "cryptogram", "chiffr", "atbash", "pig", "keyboard", "qwerty", "backward", "revers", "swap", "rot",
    "schlüssel", *(f"rot{number}" for number in range(1, 48)),
)  # fmt: skip
_ORDER: Final = ("last word", "word order")
_ROWS: Final = ("qwertyuiop[]", "asdfghjkl;'", "zxcvbnm,./")
_RIGHT: Final = {a: b for row in _ROWS for a, b in pairwise(row) if a.isalpha()}
_LEFT: Final = {b: a for row in _ROWS for a, b in pairwise(row) if b.isalpha()}
_VOWEL: Final = re.compile(r"[aeiou]|(?<=.)y")


class AnnouncedPhrases:
    """The phrases of one side of a policy in simple ciphers; the first `PHRASES_MAX` of them."""

    def __init__(self, deny: Iterable[str]) -> None:
        forms: dict[str, None] = {}
        self._differences: dict[bytes, str] = {}
        for phrase in islice(deny, PHRASES_MAX):
            plain = fold_case(normalize_text(phrase).strip())
            letters = re.sub("[^a-z]", "", plain)
            if len(letters) < LETTERS_MIN:
                continue
            forms.update(dict.fromkeys(_forms(plain)))
            ahead = _differences(letters.encode())
            for each in (ahead, bytes(-step % 26 for step in ahead)):
                self._differences.setdefault(each, letters)
        forms = {form: None for form in forms if len(form) >= LETTERS_MIN}
        self._find = re.compile(any_of(forms)) if forms else None

    def find(self, folded: str, known: set[bytes] | None = None) -> Iterator[tuple[int, int]]:
        """The places of phrases in normalised text without case; `known` are its words, where they are at hand."""
        if self._find is None:
            return
        words = words_of(folded) if known is None else known
        signs = words_among(words, _WORDS) + (list(_ORDER) if b"word" in words else [])
        for first, last in near(folded, signs, _AROUND, _AROUND):
            yield from ((first + start, first + end) for start, end in self._inside(folded[first:last]))

    def _inside(self, text: str) -> Iterator[tuple[int, int]]:
        assert self._find is not None
        spans = [found.span() for found in self._find.finditer(text)]
        places = [index for index, each in enumerate(text) if "a" <= each <= "z"]
        letters = "".join([text[index] for index in places])
        steps = _differences(letters.encode())
        for differences, phrase in self._differences.items():
            at = steps.find(differences)
            while at >= 0:
                if letters[at : at + len(phrase)] != phrase:
                    spans.append((places[at], places[at + len(differences)] + 1))
                at = steps.find(differences, at + 1)
        for start, end in spans:
            if not text[start - 1 : start].isalnum() and not text[end : end + 1].isalnum():
                yield start, end


def _differences(letters: bytes) -> bytes:
    return bytes((after - before) % 26 for before, after in pairwise(letters))


def _forms(phrase: str) -> Iterator[str]:
    words = phrase.split()
    rot47 = "".join(chr(33 + (ord(each) + 14) % 94) if "!" <= each <= "~" else each for each in phrase)
    yield fold_case(normalize_text(rot47))
    for table in (_RIGHT, _LEFT):
        yield "".join(table.get(each, each) for each in phrase)
    for ending in ("way", "yay", "ay", "hay"):
        yield " ".join(_pig_latin(word, ending) for word in words)
        yield " ".join(_pig_latin(word, ending, "-") for word in words)
    if len(words) > 1:
        yield " ".join(reversed(words))
    for text in (phrase, phrase.replace(" ", "")):
        yield _swapped(text)
    yield " ".join(map(_swapped, words))
    yield " ".join(word[1:] + word[0] for word in words)
    yield " ".join(word[-1] + word[1:-1] + word[0] if len(word) > 1 else word for word in words)


def _pig_latin(word: str, ending: str, joint: str = "") -> str:
    vowel = _VOWEL.search(word)
    at = vowel.start() if vowel is not None else len(word)
    if word[at - 1 : at + 1] == "qu":
        at += 1
    return f"{word[at:]}{joint}{word[:at]}ay" if at else f"{word}{joint}{ending}"


def _swapped(text: str) -> str:
    return "".join(text[at : at + 2][::-1] for at in range(0, len(text), 2))
