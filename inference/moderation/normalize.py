"""Normalizes text for comparison: look-alikes become one, invisible characters go, and positions lead back.

Code point by code point, so that it can go on wherever a stream was cut: compatibility forms (NFKD), marks and
invisible characters dropped, digits of all scripts and letters in squares and circles made plain ones, what looks like
something else replaced by it (the confusables of UTS #39, `confusables.tsv`, with our own choice where Latin letters
are closer), dashes made one, and white space a single space, however much there is. Letters keep their case, but for
capitals that look like no Latin letter and like something else than their small ones (П and п): these are as small.

In a tool call's raw text JSON's escapes stand for characters: they are read through, for whoever parses the call
reads through them too. Does not know patterns or phrases.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from itertools import chain, product
from pathlib import Path
from typing import Final

from sessions.turn.keyword_filter import fold

_LOOKALIKES: Final = (
    ("аеорсухіјѕһԁԛԝкмтвнгпь", "aeopcyxijshdqwkmtbhrnb"),  # Cyrillic, also small letters that look like capitals
    ("АВЕКМНОРСТУХІЈЅԌԚԜЗЬ", "ABEKMHOPCTYXIJSGQW3b"),
    ("οανρτυικχεωγηςσβ", "oavptuikxewynocb"),  # Greek; final and other sigma
    ("ΑΒΕΖΗΙΚΜΝΟΡΤΥΧ", "ABEZHIKMNOPTYX"),
    ("πᴨ", "nn"),  # as the Cyrillic one
    ("ⲇⲆыЫ", "ддыы"),  # one letter, though it looks like two
    ("БзқҟҳӏðϐꞵꞴ", "63kkxldbbB"),  # as their capitals, or as their small ones
    ("օսցհոքԼՕՏ", "ougHnpLOS"),  # Armenian
    ("ᎪᏴᏟᎠᎬᎻᎫᏦᏞᎷᏢᎡᏚᎢᏙᎳᏃ", "ABCDEHJKLMPRSTVWZ"),  # Cherokee
    ("ᴀʙᴄᴅᴇꜰɢʜɪᴊᴋʟᴍɴᴏᴘʀꜱᴛᴜᴠᴡʏᴢ", "abcdefghijklmnoprstuvwyz"),  # small capitals
    ("ɑɡıɩłøđħŧɨʉƅƒƙȷ", "agiilodhtiubfkj"),
    ("ⲁⲃⲉⲍⲏⲓⲕⲙⲛⲟⲣⲥⲧⲩⲭⲱⲂⲒ", "abezhikmnopctyxwBI"),  # Coptic; more of it is in the table
    ("ⲀⲈⲌⲎⲔⲘⲚⲞⲢⲤⲦⲨⲬⲰ", "AEZHKMNOPCTYXW"),
    ("‐‑‒–—―−⁃﹣－", "----------"),
    ("·•‧∙⋅・･", "......."),
    ("‘’‚‛′`´“”„″", "'''''''\"\"\"\""),
)
_TABLE: Final = Path(__file__).with_name("confusables.tsv")
# Letters in squares, circles and parentheses that have no compatibility form, by the first of 26.
_FRAMED: Final = (0x1F150, 0x1F170, 0x1F1E6, 0x1F130, 0x1F110)
_RAISED_CYRILLIC: Final = (
    0x1E030,
    "абвгдежзиклмопрстуфхцчшыэюꚉәіјөүӏабвгдежзиклопсуфхцчшъыґіѕџҫыұ",
)  # newer than our tables
_PARENTHESISED: Final = 0x249C  # small ones


def _read_same() -> dict[str, str]:
    """What each character looks like; our own choice comes first, then compatibility forms, then the table."""
    same: dict[str, str] = {}
    for line in _TABLE.read_text("utf-8").split("\n")[1:-1]:
        target, _, sources = line.partition("\t")
        same.update(dict.fromkeys(sources, target[1:] if target[0] == "'" and target[1:].isalpha() else target))
    for character in tuple(same):
        whole = "".join(each for each in unicodedata.normalize("NFKD", character) if unicodedata.category(each) != "Mn")
        if whole.isascii() and whole.isalnum():
            del same[character]
    same.update(chain.from_iterable(zip(odds, plains, strict=True) for odds, plains in _LOOKALIKES))
    same |= {"ß": "ss", "ẞ": "SS"}
    for first in _FRAMED:
        same.update((chr(first + index), chr(ord("A") + index)) for index in range(26))
    same.update((chr(_PARENTHESISED + index), chr(ord("a") + index)) for index in range(26))
    same.update((chr(_RAISED_CYRILLIC[0] + index), each) for index, each in enumerate(_RAISED_CYRILLIC[1]))
    for character in map(chr, (*range(0xAB70, 0xABC0), *range(0x13F8, 0x13FE))):  # small Cherokee, as the capitals
        if (capital := same.get(character.upper())) is not None:
            same[character] = capital
    return same


_SAME: Final = _read_same()
_UNSEEN: Final = frozenset("\u115f\u1160\u3164\uffa0\u2800\u17b4\u17b5")
_SPACES: Final = re.compile(" {2,}")
_ESCAPE: Final = re.compile(r'\\(?:u([0-9a-fA-F]{4})|([nrtbf"\\/]))')
_ESCAPE_BEGUN: Final = re.compile(r"\\(?:u[0-9a-fA-F]{0,3})?\Z")
_CONTROLS: Final = {"n": "\n", "r": "\n", "t": "\t", "b": "", "f": " "}


class _Plain(dict[str, str]):
    """Each code point's plain form, computed once."""

    def __missing__(self, character: str) -> str:
        plain = self[character] = _plain(character)
        return plain


def _plain(character: str) -> str:
    if character in "\t\n\r\x0b\x0c\u2028\u2029\x85":
        return " "
    digit = unicodedata.decimal(character, None)
    if digit is not None:
        return str(digit)
    category = unicodedata.category(character)
    if category in ("Cf", "Mn", "Me", "Cc") or character in _UNSEEN or is_ignorable(character):
        return ""
    if category == "Zs":
        return " "
    whole = unicodedata.normalize("NFKD", _looks_like(character))
    kept = (each for each in whole if unicodedata.category(each) not in ("Mn", "Me", "Cf"))
    plain = "".join(_SAME.get(each, " " if each.isspace() else each) for each in kept)
    if (plain.isascii() and len(plain) == 1) or len(character.lower()) > 1:
        return plain
    small = _plain(character.lower()) if character.isupper() and character.lower() != character else plain
    return plain if fold_case(plain) == fold_case(small) else small


def _looks_like(character: str) -> str:
    """What a character stands for in the table, to its end: a letter of one script may lead there over another's."""
    for _ in range(4):
        same = _SAME.get(character, character)
        if same == character:
            break
        character = same
    return character


def is_ignorable(character: str) -> bool:
    """Code points that are set aside for what is not shown (Default_Ignorable_Code_Point) and have no category yet."""
    return character == "\u2065" or "\ufff0" <= character <= "\ufff8" or "\U000e0000" <= character <= "\U000e0fff"


_PLAIN: Final = _Plain()
_WORDS_MAX: Final = 4  # words of a phrase that are looked for with and without a capital each
_DIGITS: Final = tuple(
    str.maketrans(letters, signs) for letters, signs in (("ч", "4"), ("с", "5"), ("чс", "45"), ("σ", "6"))
)
_PLAIN_ASCII: Final = {code: _PLAIN[chr(code)] for code in range(128)}  # for `str.translate`
_RUN: Final = re.compile(r"[!-_a-~]+(?: [!-_a-~]+)+|[!-_a-~]{2,}|.", re.DOTALL)
_ALREADY: Final = re.compile(r"[!-_a-~]*(?: [!-_a-~]+)* ?")  # plain as it is: printable ASCII, less the backtick


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
        """Ends the text: an escape that is not whole is text."""
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
        """Where in what was fed the code point at `index` of `plain` begins; behind the last one, the end."""
        return self.places[index] if index < len(self.places) else self.fed

    def end(self, index: int) -> int:
        """Where what makes up `plain` before `index` ends."""
        if index >= len(self.places):
            return self.fed
        last = self.places[index - 1]
        return next((each for each in self.places[index:] if each != last), self.fed)

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


def plain_form(character: str) -> str:
    """Returns what a character is in plain text."""
    return _PLAIN[character]


def lookalikes_of() -> Iterator[tuple[str, str]]:
    """Yields each character with a single one that it looks like: by UTS #39, and by our own choice."""
    for line in _TABLE.read_text("utf-8").split("\n")[1:-1]:
        target, _, sources = line.partition("\t")
        yield from ((source, target) for source in sources if len(target) == 1)
    yield from _SAME.items()


def normalize_text(text: str) -> str:
    """Returns a whole text's plain form."""
    plain = text.translate(_PLAIN_ASCII) if text.isascii() else "".join(map(_PLAIN.__getitem__, text))
    return _SPACES.sub(" ", plain) if "  " in plain else plain


def written_forms(phrase: str) -> Iterator[str]:
    """Yields a phrase; beyond ASCII also in capitals, whose plain form may be another (ν is v, and Ν is N), and with
    the digits that are written for its letters."""
    yield phrase
    if not phrase.isascii():
        small = phrase.lower()
        yield from (small, phrase.upper(), phrase.title(), phrase.capitalize())
        words = small.split(" ")
        if len(words) <= _WORDS_MAX:
            yield from map(" ".join, product(*((word, word.capitalize()) for word in words)))
        yield from (written for signs in _DIGITS if (written := small.translate(signs)) != small)


def fold_case(plain: str) -> str:
    """Returns plain text without case, of the same length."""
    lower = plain.lower()
    return lower if len(lower) == len(plain) else fold(plain)
