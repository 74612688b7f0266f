r"""Finds phrases whose letters are written with other signs, where one may be several letters, and several one.

Letters as digits and signs (`|\/|` is m, 7 is t or l), as characters of any script that look like them,
backwards as a whole or word by word, and any of it mixed. All phrases make one pattern, a tree of what
they share, in which each letter is whatever may be read as it. It is tried where a word begins, in text that holds such
signs only: ordinary text in ASCII costs a look for them.

No part of the pattern repeats without a bound, and gaps are never given back, so that a hostile text costs little more
than another one. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from typing import Final

from inference.moderation.disguise.letters import LATIN, STRIPPED, UPSIDE_DOWN, letter_forms
from inference.moderation.normalize import fold_case, normalize_text

LETTERS_MIN: Final = 8
JOINED_MIN: Final = 12
LETTERS_MAX: Final = 200
_SIGNS: Final = {
    "a": "4@^", "b": "86", "c": "(<[{", "e": "3€&£", "g": "69&", "h": "#", "i": "1!|l", "l": "1|7!i", "o": "0",
    "q": "9", "s": "5$z2", "t": "7+1", "u": "v", "v": "u", "z": "2s",
}  # fmt: skip
_DRAWN: Final = {
    "a": ("/\\", "/-\\"), "b": ("|3", "l3", "13", "!3", "|o"), "c": ("()",),
    "d": ("|)", "[)", "cl", "|]", "l)", "c|", "o|"),
    "e": ("[-",), "f": ("|=", "ph"), "g": ("(_+",), "h": ("|-|", "]-[", "|n", "ln", "}{", ")-(", "/-/", "(-)"),
    "j": ("_|", "_/"), "k": ("|<", "|{", "l<", "1<", "|x"), "l": ("|_",),
    "m": ("|\\/|", "/\\/\\", "rn", "nn", "|v|", "(v)", "/v\\", "^^", "[v]"), "n": ("|\\|", "/\\/", "|v", "^/"),
    "o": ("()", "[]", "<>"), "p": ("|>", "|*", "|o", "|°"), "q": ("0_", "(_,", "o_", "0,", "()_"),
    "r": ("|2", "12", "|?", "|~", "l2", "/2", "|^"), "t": ("-|-",), "u": ("|_|", "(_)", "ii", "l_l"),
    "v": ("\\/",), "w": ("\\/\\/", "vv", "uu", "|/\\|", "\\^/", "\\x/"), "x": ("><", "}{", ")("), "y": ("`/", "'/"),
}  # fmt: skip
_LEET: Final = re.escape("|!@$()<>[]{}/\\^#&+€")
# What plain text does not have: a digit or a sign inside a word.
_ODD: Final = re.compile(rf"[{_LEET}0-9](?:(?<=[a-z].)[a-z0-9{_LEET}]|(?<=[0-9@$|#])[a-z])")
_ODD_OR_OTHER: Final = re.compile(rf"{_ODD.pattern}|[^\x00-\x7f]+")
_PLAIN: Final = re.compile(r"[a-z\s]*")


def _pattern_of(letter: str, forms: str) -> str:
    """Whatever may be read as a letter, up to three times."""
    single = f"[{re.escape(letter + _SIGNS.get(letter, '') + forms)}]"
    drawn = sorted(_DRAWN.get(letter, ()), key=len, reverse=True)
    if not drawn:
        return single + "{1,3}"
    return f"(?:{'|'.join(map(re.escape, drawn))}|{single}{{1,3}})"


def _tree_pattern(node: dict[str, dict], units: dict[str, str]) -> str:  # type: ignore[type-arg]
    branches = []
    for unit, child in node.items():
        if unit:
            run = units[unit]
            while len(child) == 1 and "" not in child:
                ((unit, child),) = child.items()
                run += units[unit]
            branches.append(run + _tree_pattern(child, units))
    if not branches:
        return ""
    return f"(?:{'|'.join(branches)}){'?' if '' in node else ''}"


def _collapsed(text: str) -> str:
    return " ".join("".join(letter for letter, _ in groupby(word)) for word in text.split())


class LatticePhrases:
    """The phrases of one side of a policy, as they may be written in other signs."""

    def __init__(self, deny: Iterable[str]) -> None:
        self._known: dict[str, bool] = {}  # by what plain text they are, collapsed: whether that is backwards
        tree: dict[str, dict] = {}  # type: ignore[type-arg]
        for phrase in deny:
            plain = " ".join(fold_case(normalize_text(phrase)).split())
            letters = [each for each in plain if each in LATIN]
            if not LETTERS_MIN <= len(letters) <= LETTERS_MAX or len(letters) < 0.9 * len(plain.replace(" ", "")):
                continue
            words = " ".join(word[::-1] for word in plain.split())
            for form in dict.fromkeys((plain, plain[::-1], words, plain[::-1].translate(UPSIDE_DOWN))):
                self._known[_collapsed(form)] = form != plain
                node = tree
                for unit in _units(form):
                    node = node.setdefault(unit, {})
                node[""] = {}
        self._around = 3 * max(map(len, self._known), default=0) + 20
        self._find_ascii = _compiled(tree, {}) if tree else None
        self._find = _compiled(tree, letter_forms()[0]) if tree else None

    def find(self, text: str) -> Iterator[tuple[int, int]]:
        """The places of phrases in a text as it came."""
        if self._find is None or self._find_ascii is None:
            return
        stripped = text.lower() if text.isascii() else text.translate(STRIPPED)
        pattern = self._find_ascii if stripped.isascii() else self._find
        places: list[int] | None = None
        for first, last in _windows(stripped, self._around):
            for found in pattern.finditer(stripped, first, last):
                if found[0] and self._is_disguise(found[0]):
                    if places is None:
                        places = [index for index, each in enumerate(text) if text.isascii() or STRIPPED[ord(each)]]
                        places = places if len(places) == len(stripped) else [*range(len(stripped))]
                    yield places[found.start()], places[found.end() - 1] + 1

    def _is_disguise(self, written: str) -> bool:
        """Whether it is more than plain words: these are compared as they are, and by their letters alone."""
        words = [word.strip(".,;:!?\"'()-") for word in written.split()]
        if all(map(_PLAIN.fullmatch, words)):
            backwards = self._known.get(_collapsed(" ".join(words)))
            if backwards is not None:
                return True
            joined = "".join(words)
            return len(words) == 1 and len(joined) >= JOINED_MIN and len(_collapsed(joined)) < len(joined)
        signs = [each for each in written if not each.isspace()]
        letters = sum(each.isalpha() or not each.isascii() for each in signs)
        return 4 * letters >= len(signs)


def _units(form: str) -> Iterator[str]:
    """A phrase's letters, each with the gap before it."""
    before = ""
    for each in form:
        if each == " ":
            before = " "
            continue
        yield before + each
        before = "."


def _compiled(tree: dict[str, dict], forms: Mapping[str, str]) -> re.Pattern[str]:  # type: ignore[type-arg]
    """The pattern for all phrases: letters as themselves, as signs and in their other forms. Gaps have no such sign."""
    signs = re.escape("".join({each for those in forms.values() for each in those if not each.isalnum()}))
    inside = rf"(?>\s{{0,3}}[^\w\s{_LEET}{signs}]{{0,3}}\s{{0,3}})"
    between = rf"(?>(?:[^\w{_LEET}{signs}]|_){{0,8}})"
    units = {}
    for unit in _used(tree):
        gap = "" if len(unit) == 1 else between if unit[0] == " " else inside
        letter = unit[-1]
        units[unit] = gap + (_pattern_of(letter, forms.get(letter, "")) if letter in LATIN else re.escape(letter))
    return re.compile(rf"(?<![^\W_]){_tree_pattern(tree, units)}(?![^\W_])")


def _used(tree: dict[str, dict]) -> set[str]:  # type: ignore[type-arg]
    used: set[str] = set()
    rest = [tree]
    while rest:
        for unit, child in rest.pop().items():
            if unit:
                used.add(unit)
                rest.append(child)
    return used


def _windows(text: str, around: int) -> Iterator[tuple[int, int]]:
    """What stands around whatever plain text does not have."""
    first = last = -1
    for found in (_ODD if text.isascii() else _ODD_OR_OTHER).finditer(text):
        begin, end = max(0, found.start() - around), found.end() + around
        if begin > last:
            if first >= 0:
                yield first, last
            first = begin
        last = end
    if first >= 0:
        yield first, min(last, len(text))
