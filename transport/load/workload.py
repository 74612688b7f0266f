"""What a load generator sends: single questions, short and long, with tools, and conversations with think times.

Prompts are made up from a seed and differ from their first word on, so that no cache of prefixes answers in a model's
place; a conversation's later turns resend its history, as chat clients do. Pure: chance is a seeded generator.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any, Final

import msgspec

KINDS: Final = ("short", "long", "tools", "turns")
DEFAULT_MIX: Final = "short=6,long=2,tools=1,turns=1"
WORDS: Final = (
    *("river", "stone", "amber", "cloud", "train", "paper", "winter", "garden", "signal", "copper", "lemon", "harbour"),
    *("meadow", "engine", "letter", "island", "morning", "window", "silver", "mountain", "bridge", "candle", "forest"),
)
TOOLS: Final = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "The weather of a place, now.",
            "parameters": {
                "type": "object",
                "properties": {"place": {"type": "string"}, "unit": {"type": "string", "enum": ["C", "F"]}},
                "required": ["place"],
            },
        },
    }
]


class TraceTurn(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A user's message of a trace: its words or about how many tokens it has, how long an answer may be, and how long
    its user thinks before it."""

    prompt: str = ""
    prompt_tokens: int = 40
    output_tokens: int = 64
    think_s: float = 0.0


class TraceLine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A line of a trace: one conversation."""

    turns: list[TraceTurn]


class Dialogue(msgspec.Struct, frozen=True):
    """What one user does: messages, one after the other's answer."""

    kind: str
    turns: list[TraceTurn]
    tools: list[dict[str, Any]] | None = None


# People who chat: short messages, answers of a paragraph, seconds to read and write in between. Made up, not recorded.
BUILT_IN_TRACE: Final = [
    TraceLine([TraceTurn("", 30, 60), TraceTurn("", 14, 80, 3.1), TraceTurn("", 22, 60, 6.4)]),
    TraceLine([TraceTurn("", 120, 120), TraceTurn("", 18, 90, 8.2)]),
    TraceLine(
        [TraceTurn("", 12, 40), TraceTurn("", 9, 40, 1.9), TraceTurn("", 11, 50, 2.4), TraceTurn("", 16, 60, 5.0)]
    ),
    TraceLine([TraceTurn("", 400, 150), TraceTurn("", 25, 120, 12.0), TraceTurn("", 31, 100, 9.3)]),
]


class BadWorkload(ValueError):
    """A mix or a trace that is none; the message says what is expected."""


def parse_mix(text: str) -> dict[str, float]:
    """`short=6,long=2` as weights. Raises BadWorkload."""
    weights: dict[str, float] = {}
    for part in text.split(","):
        kind, _, weight = part.strip().partition("=")
        try:
            weights[kind] = float(weight or 1)
        except ValueError:
            weights[kind] = -1
        if kind not in KINDS or not 0 <= weights[kind] < 1e9:
            raise BadWorkload(f"{part.strip()!r}: a kind of {', '.join(KINDS)} and its weight, as in {DEFAULT_MIX}")
    if not sum(weights.values()):
        raise BadWorkload(f"{text!r}: one kind at least needs a weight above 0")
    return weights


def parse_trace(lines: str) -> list[TraceLine]:
    """JSON Lines, a conversation each. Raises BadWorkload, which names the line."""
    trace = []
    for number, line in enumerate(lines.splitlines(), 1):
        if not line.strip():
            continue
        try:
            read = msgspec.json.decode(line, type=TraceLine)
        except (msgspec.DecodeError, UnicodeError) as error:
            raise BadWorkload(
                f'line {number}: {error}; expected: {{"turns": [{{"prompt_tokens": 40, ...}}]}}'
            ) from None
        numbers = [(each.prompt_tokens, each.output_tokens, each.think_s) for each in read.turns]
        if not numbers or any(prompt < 1 or output < 1 or think < 0 for prompt, output, think in numbers):
            raise BadWorkload(f"line {number}: turns, each with tokens of at least 1 and a think_s of at least 0")
        trace.append(read)
    if not trace:
        raise BadWorkload("there is no conversation in it")
    return trace


class Workload:
    """An endless source of dialogues, the same for the same seed."""

    def __init__(
        self, mix: Mapping[str, float], trace: list[TraceLine] | None = None, *, seed: int = 0, long_tokens: int = 1500
    ) -> None:
        self._random = random.Random(seed)
        self._kinds, self._weights = list(mix), list(mix.values())
        self._trace = trace or BUILT_IN_TRACE
        self._long_tokens = long_tokens

    def next_dialogue(self) -> Dialogue:
        kind = self._random.choices(self._kinds, self._weights)[0]
        if kind == "short":
            return Dialogue(kind, [TraceTurn(self._words(30), output_tokens=64)])
        if kind == "long":
            return Dialogue(kind, [TraceTurn(self._words(self._long_tokens), output_tokens=128)])
        if kind == "tools":
            question = f"What is the weather in {self._words(2)}? Use the tool."
            return Dialogue(kind, [TraceTurn(question, output_tokens=64)], TOOLS)
        line = self._random.choice(self._trace)
        return Dialogue(kind, [self._worded(each) for each in line.turns])

    def next_gap(self, rate: float) -> float:
        """Seconds to the next arrival of a Poisson process."""
        return self._random.expovariate(rate)

    def _worded(self, turn: TraceTurn) -> TraceTurn:
        return turn if turn.prompt else msgspec.structs.replace(turn, prompt=self._words(turn.prompt_tokens))

    def _words(self, count: int) -> str:
        """About `count` tokens."""
        return " ".join(self._random.choices(WORDS, k=count))
