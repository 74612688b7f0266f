"""The keyword filter, on the way in and on the way out: the smallest real one, and the model for others.

The output side shows what every output filter must do (I8): text that may still turn out to be part of a forbidden
phrase is held back, so that no part of one is ever released, however the engine splits it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from sessions.ports import PASS, InputFilter, OutputFilter, Verdict
from sessions.types import Principal

INPUT_REFUSAL = "This message contains a phrase that this server does not accept."
OUTPUT_REFUSAL = "The rest of this answer was withheld."


def _pattern(phrases: Sequence[str]) -> re.Pattern[str]:
    longest_first = sorted((phrase.casefold() for phrase in phrases), key=len, reverse=True)
    return re.compile("|".join(re.escape(phrase) for phrase in longest_first), re.IGNORECASE)


class KeywordInputFilter:
    """Blocks a message that contains one of the phrases, whatever their case."""

    def __init__(self, phrases: Sequence[str]) -> None:
        self._pattern = _pattern(phrases)

    async def check(self, principal: Principal, text: str) -> Verdict:
        found = self._pattern.search(text)
        if found is None:
            return PASS
        return Verdict(action="block", category="keyword", start=found.start(), end=found.end(), message=INPUT_REFUSAL)


class KeywordRules:
    """What all output filters of one phrase list share: compiled once, used by every answer."""

    def __init__(self, phrases: Sequence[str]) -> None:
        self.pattern = _pattern(phrases)
        self.beginnings = frozenset(phrase.lower()[:length] for phrase in phrases for length in range(1, len(phrase)))
        self.reach = max((len(phrase) for phrase in phrases), default=1) - 1


class KeywordOutputFilter:
    """Ends an answer before the first forbidden phrase. One object per text; see the port for the protocol."""

    def __init__(self, rules: KeywordRules) -> None:
        self._rules = rules
        self._held = ""  # fed and not yet releasable
        self._released = 0

    def feed(self, text: str) -> tuple[int, Verdict]:
        self._held += text
        found = self._rules.pattern.search(self._held)
        if found is not None:
            start = self._released + found.start()
            return start, Verdict(
                action="block",
                category="keyword",
                start=start,
                end=self._released + found.end(),
                message=OUTPUT_REFUSAL,
            )
        keep = held_back(self._held, self._rules.beginnings, self._rules.reach)
        free = len(self._held) - keep
        self._held = self._held[free:]
        self._released += free
        return self._released, PASS

    def finish(self) -> tuple[int, Verdict]:
        self._released += len(self._held)
        self._held = ""
        return self._released, PASS


def held_back(text: str, beginnings: frozenset[str], reach: int) -> int:
    """How many code points at the end of `text` may be the beginning of a phrase: the longest such suffix.

    `beginnings` are the proper prefixes of all phrases in lower case, `reach` the length of the longest.
    """
    lowered = text[-reach:].lower() if reach else ""
    for length in range(len(lowered), 0, -1):
        if lowered[-length:] in beginnings:
            return length
    return 0


class KeywordFilterSet:
    """The same phrases for everyone: what `serve` configures."""

    def __init__(self, *, input_phrases: Sequence[str] = (), output_phrases: Sequence[str] = ()) -> None:
        self._input: tuple[InputFilter, ...] = (KeywordInputFilter(input_phrases),) if input_phrases else ()
        self._output = KeywordRules(output_phrases) if output_phrases else None

    def input_filters(self, principal: Principal) -> Sequence[InputFilter]:
        return self._input

    def output_filters(self, principal: Principal) -> Sequence[OutputFilter]:
        return (KeywordOutputFilter(self._output),) if self._output is not None else ()
