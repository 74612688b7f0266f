"""Makes text of strangers plain: no control signs, no escape sequences, nothing that turns the direction of writing or
cannot be seen, no more than so many characters. Pure."""

from __future__ import annotations

import re
import unicodedata
from typing import Final

_ESCAPES: Final = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
_KEPT: Final = frozenset("\n\t")
_UNSEEN: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
_UNSEEN_LETTERS: Final = frozenset("\u115f\u1160\u3164\uffa0\u034f\u17b4\u17b5")


def plain_words(text: str, length_max: int) -> str:
    """Returns the text without invisible characters, as people and models may see it; cut at `length_max`
    characters."""
    text = _ESCAPES.sub("", text[: 2 * length_max + 4_096])
    kept = "".join(
        sign
        for sign in text
        if sign in _KEPT or (unicodedata.category(sign) not in _UNSEEN and sign not in _UNSEEN_LETTERS)
    )
    return kept[:length_max]
