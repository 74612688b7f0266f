"""Normalizes text for comparison: look-alikes become one, invisible characters go, and positions lead back.

Code point by code point, so that it can go on wherever a stream was cut. What a character looks like says `disarm`
(NFKC, the confusables of UTS #39, punctuation); marks and whatever is not shown are dropped, digits of all scripts are
0 to 9, dashes one hyphen, and white space a single space, however much there is. ASCII stays what it is. Letters keep
their case, but for capitals that look like no Latin letter and like something else than their small ones (П and п):
these are as small. A form is for comparing with other forms only: it is never shown.

In a tool call's raw text JSON's escapes stand for characters: they are read through, for whoever parses the call
reads through them too. Does not know patterns or phrases.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from itertools import product
from typing import Final

import disarm

from sessions.turn.keyword_filter import fold

_KEPT_MAX: Final = 0x20000  # code points from here on are ideographs, or nothing that is shown
_SHOWN_MAX: Final = 0xE0000
_UNSEEN: Final = frozenset("\u115f\u1160\u3164\uffa0\u2800\u17b4\u17b5\u2065")  # letters and signs without a shape
_SPACES: Final = re.compile(" {2,}")
_ESCAPE: Final = re.compile(r'\\(?:u([0-9a-fA-F]{4})|([nrtbf"\\/]))')
_ESCAPE_BEGUN: Final = re.compile(r"\\(?:u[0-9a-fA-F]{0,3})?\Z")
_CONTROLS: Final = {"n": "\n", "r": "\n", "t": "\t", "b": "", "f": " "}


class _Plain(dict[str, str]):
    """A cache of each character's plain form, without the million that are their own form or have none."""

    def __missing__(self, character: str) -> str:
        if (code := ord(character)) >= _KEPT_MAX:
            if code >= _SHOWN_MAX or code & 0xFFFE == 0xFFFE:
                return ""
            if not unicodedata.decomposition(character):
                return character
        plain = self[character] = _plain(character)
        return plain


def _plain(character: str) -> str:
    if character.isspace():
        return " "
    if character.isascii():
        return character if character.isprintable() else ""
    if (digit := unicodedata.decimal(character, None)) is not None:
        return str(digit)
    category = unicodedata.category(character)
    if category == "Cs":
        return character
    if category in ("Cf", "Mn", "Me", "Cc") or character in _UNSEEN:
        return ""
    if category == "Pd":
        return "-"
    plain = _looks_like(character)
    if len(character.casefold()) > 1 and not plain.isascii():  # ß is ss
        plain = "".join(map(_looks_like, character.casefold()))
    if (plain.isascii() and len(plain) == 1) or len(small := character.lower()) > 1 or small == character:
        return plain
    return plain if fold_case(plain) == fold_case(_PLAIN[small]) else _PLAIN[small]


def _looks_like(character: str) -> str:
    punctuation = disarm.fold_punctuation(character)
    return punctuation if punctuation.isascii() else disarm.strip_obfuscation(character)


_PLAIN: Final = _Plain()
_WORDS_MAX: Final = 4  # words of a phrase that are looked for with and without a capital each
_PLAIN_ASCII: Final = {code: _PLAIN[chr(code)] for code in range(128)}  # for `str.translate`
_RUN: Final = re.compile(r"[!-~]+(?: [!-~]+)+|[!-~]{2,}|.", re.DOTALL)
_ALREADY: Final = re.compile(r"[!-~]*(?: [!-~]+)* ?")  # plain as it is


class Normalizer:
    """Normalizes a growing text: `plain` and, for each of its code points, its place in the fed text."""

    def __init__(self, *, escapes: bool = False) -> None:
        self.plain = ""
        self.places: list[int] = []
        self.fed = 0  # code points
        self._escapes = escapes
        self._open_escape = ""  # one that is not whole yet
        self._spaced = False  # `plain` ended in a space before it was cut

    def feed(self, text: str) -> None:
        text, self._open_escape = self._open_escape + text, ""
        start = self.fed
        self.fed += len(text)
        if self._escapes and "\\" in text:
            self._feed_escaped(text, start)
        else:
            self._add(text, start)

    def finish(self) -> None:
        """Ends the text. An escape sequence that is incomplete then counts as text."""
        text, self._open_escape = self._open_escape, ""
        if text:
            start, self.fed = self.fed, self.fed + len(text)
            self._add(text, start)

    def cut(self, length: int) -> None:
        """Drops the first code points of `plain`."""
        self._spaced = self.plain[length - 1] == " " if length else self._spaced
        self.plain = self.plain[length:]
        del self.places[:length]

    def place(self, index: int) -> int:
        """Returns where in the fed text the character at `index` of `plain` begins; behind the last one, the text's
        end."""
        return self.places[index] if index < len(self.places) else self.fed

    def end(self, index: int) -> int:
        """Returns where in the fed text the characters of `plain` before `index` end."""
        while index < len(self.places) and self.places[index] == self.places[index - 1]:
            index += 1
        return self.place(index)

    def _feed_escaped(self, text: str, start: int) -> None:
        begun = _ESCAPE_BEGUN.search(text)
        if begun is not None and (len(text[: begun.start()]) - len(text[: begun.start()].rstrip("\\"))) % 2 == 0:
            self._open_escape = begun[0]
            self.fed -= len(self._open_escape)
            text = text[: begun.start()]
        at = 0
        for found in _ESCAPE.finditer(text):
            self._add(text[at : found.start()], start + at)
            character = chr(int(found[1], 16)) if found[1] else _CONTROLS.get(found[2], found[2])
            self._join(_PLAIN[character], start + found.start())
            at = found.end()
        self._add(text[at:], start + at)

    def _add(self, text: str, start: int) -> None:
        if text.isascii() and _ALREADY.fullmatch(text) and not (text[:1] == " " and self._ends_in_space):
            self.plain += text
            self.places.extend(range(start, start + len(text)))
            return
        pieces: list[str] = []
        spaced = self._ends_in_space
        for found in _RUN.finditer(text):
            place, run = start + found.start(), found[0]
            if len(run) > 1:  # plain as it is
                pieces.append(run)
                self.places.extend(range(place, place + len(run)))
                spaced = False
                continue
            piece = _PLAIN[run]
            if piece == " ":
                if spaced:
                    continue
                spaced = True
            elif piece:
                spaced = False
            pieces.append(piece)
            self.places.extend([place] * len(piece))
        self.plain += "".join(pieces)

    def _join(self, piece: str, place: int) -> None:
        if piece != " " or not self._ends_in_space:
            self.plain += piece
            self.places.extend([place] * len(piece))

    @property
    def _ends_in_space(self) -> bool:
        return self.plain[-1] == " " if self.plain else self._spaced


def normalize_text(text: str) -> str:
    """Returns a whole text's plain form."""
    plain = text.translate(_PLAIN_ASCII) if text.isascii() else "".join(map(_PLAIN.__getitem__, text))
    return _SPACES.sub(" ", plain) if "  " in plain else plain


def written_forms(phrase: str) -> Iterator[str]:
    """Yields a phrase, and, if it has characters beyond ASCII, also its capitals, whose plain form may be another (ν is
    v, and Ν is N)."""
    yield phrase
    if not phrase.isascii():
        small = phrase.lower()
        yield from (small, phrase.upper(), phrase.title(), phrase.capitalize())
        words = small.split(" ")
        if len(words) <= _WORDS_MAX:
            yield from map(" ".join, product(*((word, word.capitalize()) for word in words)))


def fold_case(plain: str) -> str:
    """Returns plain text without case, of the same length."""
    lower = plain.lower()
    return lower if len(lower) == len(plain) else fold(plain)
