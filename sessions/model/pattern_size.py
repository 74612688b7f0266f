"""Sizes a regular expression with its repetitions written out: `(ab{3}){10}` is 40 characters.

The size of what engines build from a pattern grows with this number, not with the pattern's length. Classes of
characters count more than characters: Unicode's are hundreds of ranges. It accepts every text; whether that is a valid
pattern is not decided here.
"""

from __future__ import annotations

import re
from typing import Final

_REPEAT: Final = re.compile(r"\{(\d{1,9})(,(\d{0,9}))?\}")
_CLASS: Final = 4  # characters that a class counts as
_UNICODE_CLASS: Final = 10
_MOST: Final = 10**12


def pattern_size(pattern: str) -> int:
    """Returns the number of characters of a pattern with repetitions written out, at least 1. A repetition without an
    upper limit counts as its minimum plus 1."""
    sums, atom, at = [0], 0, 0  # of the open groups; of the atom that a repetition would repeat
    while at < len(pattern):
        character = pattern[at]
        repeat = _REPEAT.match(pattern, at) if character == "{" else None
        if repeat is not None:
            least, most = int(repeat[1]), repeat[3]
            times = least if repeat[2] is None else int(most) if most else least + 1
            sums[-1] = min(_MOST, sums[-1] + atom * max(0, times - 1))
            atom = min(_MOST, atom * max(1, times))
            at = repeat.end()
            continue
        at += 1
        if character == "(":
            sums.append(0)
            atom = 0
        elif character == ")" and len(sums) > 1:
            atom = max(1, sums.pop())
            sums[-1] = min(_MOST, sums[-1] + atom)
        elif character in "*+?|":
            continue
        else:
            at, atom = _atom(pattern, character, at)
            sums[-1] = min(_MOST, sums[-1] + atom)
    return max(1, min(_MOST, sum(sums)))


def _atom(pattern: str, character: str, at: int) -> tuple[int, int]:
    """Returns the index at which an atom ends, and how many characters it counts as. Its first character is
    `character`, and `at` is the index behind that."""
    if character == "\\" and at < len(pattern):
        kind = pattern[at]
        if kind in "pP" and pattern[at + 1 : at + 2] == "{":
            end = pattern.find("}", at)
            return (end + 1 if end >= 0 else len(pattern)), _UNICODE_CLASS
        return at + 1, _UNICODE_CLASS if kind in "pPwWdDsS" else 1
    if character == "[":
        end = at + (pattern[at : at + 1] == "^")
        end += pattern[end : end + 1] == "]"
        while end < len(pattern) and pattern[end] != "]":
            end += 2 if pattern[end] == "\\" else 1
        inside = pattern[at:end]
        return end + 1, _UNICODE_CLASS * max(1, len(inside) // 8) if "\\" in inside else _CLASS
    return at, _CLASS if character == "." else 1
