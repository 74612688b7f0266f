"""The keyword filter for inputs and outputs: the smallest real filter, and the model for others.

The output side shows what every output filter must do (I8): text that may still turn out to be part of a forbidden
phrase is held back, so that no part of one is ever released, however the engine splits it. Case is ignored.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence

import msgspec

from sessions.model.types import Principal
from sessions.model.verdicts import PASS, Finding, Verdict
from sessions.ports import InputFilter, OutputFilter
from sessions.turn.output_pipeline import beginnings, held_back, reach

INPUT_REFUSAL = "This message contains a phrase that this server does not accept."
OUTPUT_REFUSAL = "The rest of this answer was withheld."


def fold(text: str) -> str:
    """Returns text in the form in which it is compared: case folded code point by code point, so that positions stay
    the same."""
    return text.lower() if text.isascii() else "".join(map(_fold_one, text))


def _fold_one(character: str) -> str:
    for folded in (character.casefold(), character.lower()):
        if len(folded) == 1:
            return folded
    return character


def _pattern(phrases: Sequence[str]) -> re.Pattern[str]:
    """Returns a pattern that finds the leftmost of the phrases in folded text; without phrases it matches nothing."""
    return re.compile("|".join(re.escape(phrase) for phrase in phrases) or "(?!)")


def _over_seam(pattern: re.Pattern[str], text: str, last: int, first: int) -> tuple[int, int] | None:
    """Returns the span of the first match that begins before `last` and ends behind `first`."""
    at = 0
    while (match := pattern.search(text, at)) is not None and match.start() < last:
        if match.end() > first:
            return match.span()
        at = match.start() + 1
    return None


def _block(start: int, end: int, message: str) -> Verdict:
    finding = Finding(category="keyword", action="block", start=start, end=end, model="keywords")
    return Verdict(action="block", category="keyword", start=start, end=end, message=message, findings=(finding,))


class KeywordInputFilter:
    """Blocks a message that contains one of the phrases, whatever the case and the white space between its words."""

    def __init__(self, phrases: Sequence[str]) -> None:
        folded = [re.sub(r"(?:\\\s)+", r"\\s+", re.escape(fold(phrase))) for phrase in phrases if phrase]
        self._pattern = re.compile("|".join(folded) or "(?!)")

    async def check(self, principal: Principal, text: str) -> Verdict:
        match = self._pattern.search(fold(text))
        if match is None:
            return PASS
        return _block(match.start(), match.end(), INPUT_REFUSAL)

    def check_seam(self, principal: Principal, text: str, last: int, first: int) -> Verdict:
        over = _over_seam(self._pattern, fold(text), last, first)
        return _block(*over, INPUT_REFUSAL) if over is not None else PASS


class KeywordRules:
    """A compiled list of phrases, which all output filters for that list share."""

    def __init__(self, phrases: Sequence[str]) -> None:
        folded = [fold(phrase) for phrase in phrases if phrase]
        self.pattern = _pattern(folded)
        self.beginnings = beginnings(folded)
        self.reach = reach(folded)


class KeywordOutputFilter:
    """Ends an answer before the first forbidden phrase. One object per text; see the port for the protocol.

    The first phrase is the one that begins first. If a phrase is complete while an earlier one may still become so, the
    verdict waits, so that it does not depend on how the engine splits the text.
    """

    def __init__(self, rules: KeywordRules) -> None:
        self._rules = rules
        self._held = ""  # text that may not be released yet, folded
        self._released = 0

    def feed(self, text: str) -> tuple[int, Verdict]:
        self._held += fold(text)
        free = len(self._held) - held_back(self._held, self._rules.beginnings, self._rules.reach)
        match = self._rules.pattern.search(self._held)
        if match is not None and match.start() <= free:
            return self._block(match)
        self._held = self._held[free:]
        self._released += free
        return self._released, PASS

    def finish(self) -> tuple[int, Verdict]:
        match = self._rules.pattern.search(self._held)
        if match is not None:
            return self._block(match)
        self._released += len(self._held)
        self._held = ""
        return self._released, PASS

    def _block(self, match: re.Match[str]) -> tuple[int, Verdict]:
        start, end = self._released + match.start(), self._released + match.end()
        return start, _block(start, end, OUTPUT_REFUSAL)


class KeywordFilterSet:
    """The filters that `serve` configures, with the same phrases for everyone."""

    def __init__(self, *, input_phrases: Sequence[str] = (), output_phrases: Sequence[str] = ()) -> None:
        self._input: tuple[InputFilter, ...] = (KeywordInputFilter(input_phrases),) if input_phrases else ()
        self._output = KeywordRules(output_phrases) if output_phrases else None
        phrases = msgspec.msgpack.encode((tuple(input_phrases), tuple(output_phrases)))
        self._version = f"phrases/{hashlib.sha256(phrases).hexdigest()[:16]}"

    def input_filters(self, principal: Principal) -> Sequence[InputFilter]:
        return self._input

    def output_filters(self, principal: Principal, *, shown: str = "", calls: bool = False) -> Sequence[OutputFilter]:
        return (KeywordOutputFilter(self._output),) if self._output is not None else ()

    def holds_whole(self, principal: Principal) -> bool:
        return False

    def version(self, principal: Principal) -> str:
        return self._version
