"""Finds Greek and Cyrillic phrases whose letters are written with those of other scripts, digits or signs.

Coptic, Cherokee, Latin small capitals, mathematical letters, and Greek and Cyrillic for each other; also each letter
moved in its alphabet by the same number. Nothing is compared where a policy has no such phrase, or a text is in ASCII.
Pure. `lattice` does the same for Latin letters.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator
from itertools import islice, pairwise
from typing import Final

from inference.moderation.disguise.spelled import near
from inference.moderation.phrase_tree import any_of

LETTERS_MIN: Final = 7
PHRASES_MAX: Final = 500
_GAP_MAX: Final = 8  # code points between two letters
_MOVED_MAX: Final = 2_048  # code points of a text whose letters may be moved without a word for it
_AROUND: Final = 600  # code points beside such a word
_ANNOUNCED: Final = (
    "rot", "cipher", "cypher", "caesar", "shift", "decod", "encod", "crypt", "alphabet", "moved", "chiffr", "шифр",
    "алфавит", "сдвиг", "сдвин", "цезар", "αλφάβητο", "κρυπτο", "κωδικοπο", "μετατόπ", "καίσαρ", "verschieb",
    "verschlü", "alfabe", "cifra", "şifre", "szyfr", "przesun", "décal", "desplaz", "desloc",
)  # fmt: skip
RUSSIAN: Final = "абвгдеёжзийклмнопрстуфхцчшщъыьэюя"
GREEK: Final = "αβγδεζηθικλμνξοπρστυφχψω"
_ALPHABETS: Final = (RUSSIAN, RUSSIAN.replace("ё", ""), GREEK)
_LIKE: Final = {  # small letters and signs that are read as each one, without marks
    "α": "aа@4ᴀⲁꭺ∂ɑ", "β": "bв8ʙⲃꮟᏼꮾᴃ", "γ": "gyrгⲅᴦꮁɣʏ", "δ": "dдⲇᴅꮷꭰ∂", "ε": "eеєз3€£ᴇⲉꭼꮛɛ", "ζ": "zз2ᴢⲍꮓ",
    "η": "hnнпʜⲏꮋꮒɴ", "θ": "oөѳ08ⲑꮎꭾ", "ι": "iіl1!|ɪⲓıꭵꮖj", "κ": "kкᴋⲕꮶĸ", "λ": "lлᴧⲗʌᴫꮧ", "μ": "muмᴍⲙꮇ",
    "ν": "nvнѵɴⲛᴠꮩп", "ξ": "xѯ3eⲝ", "ο": "oо0ᴏⲟօꭳσ", "π": "pnпᴨⲡ", "ρ": "prрᴘᴩⲣꮲʀ", "σ": "scoсѕꜱⲥϲᴄꮪ$5269",
    "τ": "tт7+ᴛⲧꭲꮦ", "υ": "uyvуʏᴜⲩꭹꮍүʋ", "φ": "fpфⲫ", "χ": "xhхⲭ", "ψ": "yѱⲯ", "ω": "wоoшщѡⲱꮃᴡ",
    "а": "aα@4ᴀⲁꭺ", "б": "b6ƃ", "в": "bvβ8ʙⲃꮟᏼꮾᴃ", "г": "rgγⲅᴦꮁ", "д": "dgδⲇᴅꭰꮷλ", "е": "eεє3€£ᴇⲉꭼэ", "ж": "xχ",
    "з": "zζε3ᴣꮓэ", "и": "uniηιіᴎͷᴜ1!", "к": "kκᴋⲕꮶĸ", "л": "lλᴫᴧⲗπ", "м": "mμᴍⲙꮇ", "н": "hnηνʜⲏꮋꮒ", "о": "oοσ0ᴏⲟꭳօ",
    "п": "npπᴨⲡ", "р": "prρᴘᴩⲣꮲ", "с": "csσϲⲥᴄꜱꮯ$5€ѕ", "т": "tmτ7+ᴛⲧꭲ", "у": "yuυγʏⲩꭹꮍүᴜ", "ф": "fφⲫ", "х": "xhχⲭ",
    "ц": "uc", "ч": "4", "ш": "wωⲱᴡꮃщ", "щ": "wωⲱᴡꮃш", "ъ": "bь6", "ь": "b6ꮟъ", "э": "e3єз", "ю": "u", "я": "r9ᴙʀꮢ",
}  # fmt: skip
_OF_TWO: Final = {"ы": "[ьbъ6ꮟ][iіιlı1|!ɪꭵ]", "ю": "[iі1|][oо0ο]|10", "ш": "vv|ⅲ"}
_SIGNS: Final = frozenset("".join(_LIKE.values())) | frozenset("".join(_LIKE)) | frozenset("ыi")
_OTHER_SCRIPT: Final = re.compile("[\u0370-\u03ff\u0400-\u052f]")


class _Letters(dict[int, str | None]):
    """For `str.translate`: each character as a small letter without marks, or nothing."""

    def __missing__(self, code: int) -> str | None:
        plain = unicodedata.normalize("NFKD", chr(code))
        small = "".join(each for each in plain.lower() if not unicodedata.combining(each))
        small = small.replace("ς", "σ")
        kept = self[code] = small if len(small) == 1 and (small.isalpha() or small in _SIGNS) else None
        return kept


_LETTERS: Final = _Letters()


class ScriptPhrases:
    """The Greek and Cyrillic phrases of one side of a policy; the first `PHRASES_MAX` of them."""

    def __init__(self, deny: Iterable[str]) -> None:
        written: set[str] = set()
        self._steps: list[dict[bytes, str]] = [{} for _ in _ALPHABETS]
        self._plain: set[str] = set()
        for phrase in islice((each for each in deny if _OTHER_SCRIPT.search(each)), PHRASES_MAX):
            letters = phrase.translate(_LETTERS)
            if len(letters) < LETTERS_MIN:
                continue
            written.add(letters)
            self._plain.add(_words(phrase))
            for alphabet, steps in zip(_ALPHABETS, self._steps, strict=True):
                for form in (phrase.lower(), _unmarked(phrase.lower())):
                    indexes = _indexes(form, alphabet)[0]
                    if len(indexes) >= LETTERS_MIN:
                        steps.setdefault(_differences(indexes, len(alphabet)), form)
        pattern = any_of(written) if written else ""
        self._find = re.compile(re.sub(r"[^\W\d_]", lambda found: _class_of(found[0]), pattern)) if written else None

    def find(self, text: str) -> Iterator[tuple[int, int]]:
        """The places of phrases in a text as it came, but for those that are plainly written."""
        if self._find is None or text.isascii():
            return
        letters = text.translate(_LETTERS)
        found = self._find.search(letters)
        places = [at for at, each in enumerate(text) if _LETTERS[ord(each)]] if found is not None else []
        while found is not None:
            start, end = places[found.start()], places[found.end() - 1] + 1
            gap = max(b - a for a, b in pairwise(places[found.start() : found.end()]))
            if gap <= _GAP_MAX and self._is_disguise(text, start, end):
                yield start, end
            found = self._find.search(letters, found.start() + 1)
        if _OTHER_SCRIPT.search(text) is None:
            return
        whole = [(0, len(text))] if len(text) <= _MOVED_MAX else near(text.lower(), _ANNOUNCED, _AROUND, _AROUND)
        for first, last in whole:
            yield from ((first + start, first + end) for start, end in self._moved(text[first:last]))

    def _is_disguise(self, text: str, start: int, end: int) -> bool:
        if text[start - 1 : start].isalnum() or text[end : end + 1].isalnum():
            return False
        return _words(text[start:end]) not in self._plain and not text[start:end].isascii()

    def _moved(self, text: str) -> Iterator[tuple[int, int]]:
        """Phrases of which each letter was moved by the same number."""
        lower = text.lower()
        if len(lower) != len(text):
            return
        for alphabet, known in zip(_ALPHABETS, self._steps, strict=True):
            if not known:
                continue
            for form in dict.fromkeys((lower, _unmarked(lower))):
                indexes, places = _indexes(form, alphabet)
                steps = _differences(indexes, len(alphabet))
                for differences, phrase in known.items():
                    at = steps.find(differences)
                    if at < 0 or len(form) != len(text):
                        continue
                    start, end = places[at], places[at + len(differences)] + 1
                    if _indexes(phrase, alphabet)[0] != indexes[at : at + len(differences) + 1]:
                        yield start, end


def _class_of(letter: str) -> str:
    single = f"[{re.escape(letter + _LIKE.get(letter, ''))}]"
    return f"(?:{_OF_TWO[letter]}|{single})" if letter in _OF_TWO else single


def _words(text: str) -> str:
    return " ".join(text.lower().split())


def _unmarked(text: str) -> str:
    """Greek without its accents, of the same length."""
    return "".join(unicodedata.normalize("NFD", each)[0] if "ά" <= each <= "ώ" else each for each in text).replace(
        "ς", "σ"
    )


def _indexes(text: str, alphabet: str) -> tuple[bytes, list[int]]:
    """The letters of a text by their numbers in an alphabet, and where they stand."""
    index = {letter: at for at, letter in enumerate(alphabet)}
    found = [(index[each], at) for at, each in enumerate(text) if each in index]
    return bytes(each for each, _ in found), [at for _, at in found]


def _differences(indexes: bytes, count: int) -> bytes:
    return bytes((after - before) % count for before, after in pairwise(indexes))
