"""Scores how hard a turn is, from 0 to 1, by the turn alone: length, code, tools, language, words, its tenant's wish.

The score is a plain sum of small, visible features; each one that contributed is named in the score's `why`. It is a
proposal; `sessions.routing.decision` decides whether a session follows. Reads at most `LOOKED_AT` characters, half from
either end. Pure.

After: RouteLLM (Ong et al., 2024) for what routers consider; theirs are learned, this one can be read.
"""

from __future__ import annotations

import math
import re
from typing import Final, NamedTuple

LOOKED_AT: Final = 8_192
BASE: Final = 0.1
LENGTH_SHARE: Final = 0.3
LENGTH_MAX: Final = 6_000  # characters
CODE_SHARE: Final = 0.3
REASONING_SHARE: Final = 0.25
TOOLS_SHARE: Final = 0.15
LANGUAGE_SHARE: Final = 0.15
FOREIGN: Final = 0.2  # share of the letters

_CODE: Final = re.compile(
    r"```|^\s*(?:def|class|import|from|func|fn|public|private|const|let|var|#include|SELECT|INSERT|CREATE)\s"
    r"|[{};]\s*$|Traceback \(most recent|Exception in thread|</?[a-z]+>|\w+\(\w*(?:, ?\w+)*\)\s*[:{;]",
    re.MULTILINE,
)
_REASONING: Final = re.compile(
    r"\b(?:prove|proof|derive|step by step|compare|contrast|analy[sz]e|design|architecture|refactor|optimi[sz]e|debug|"
    r"implement|evaluate|explain why|trade-?offs?|algorithm|complexity|integral|theorem|equation|hypothes[ie]s|"
    r"beweise|vergleiche|analysiere|démontre|compare[rz]|analyse[rz]|demuestra|analiza)\b|[∫∑∀∃√≤≥]|\d\s*[*/^=]\s*\d",
    re.IGNORECASE,
)


class TurnScore(NamedTuple):
    value: float
    why: tuple[str, ...]


def score_turn(text: str, *, tools: int = 0, wish: float = 0.0) -> TurnScore:
    """Scores a turn. `text` is what the turn adds, `tools` how many functions it may call, `wish` the tenant's offset
    that is added."""
    half = LOOKED_AT // 2
    seen = text if len(text) <= LOOKED_AT else f"{text[:half]}\n{text[-half:]}"
    value, why = BASE, list[str]()
    if len(text) > 80:
        value += LENGTH_SHARE * min(1.0, math.log(len(text) / 80) / math.log(LENGTH_MAX / 80))
        why.append("length")
    code = sum(1 for _ in zip(range(4), _CODE.finditer(seen), strict=False))
    if code:
        value += CODE_SHARE * (0.7 + 0.1 * (code - 1))
        why.append("code")
    reasoning = sum(1 for _ in zip(range(3), _REASONING.finditer(seen), strict=False))
    if reasoning:
        value += REASONING_SHARE * (0.6 + 0.2 * (reasoning - 1))
        why.append("reasoning")
    if tools:
        value += TOOLS_SHARE
        why.append("tools")
    if _foreign_share(seen) > FOREIGN:
        value += LANGUAGE_SHARE
        why.append("language")
    if wish:
        value += wish
        why.append("wish")
    return TurnScore(min(1.0, max(0.0, value)), tuple(why))


def _foreign_share(text: str) -> float:
    """Returns the share of letters that are not Latin, because small models know those languages least."""
    if text.isascii():
        return 0.0
    letters = [each for each in text[:2_048] if each.isalpha()]
    return sum(each > "\u024f" for each in letters) / max(1, len(letters))
