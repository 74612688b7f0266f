"""The classifiers that the moderation worker holds. Only ever imported there: their packages are heavy.

A model's `judge` takes texts and says one thing of each: a score from 0 to 1, or the spans that it found. A long text
is judged by its worst stretch, for a few bad words are lost in the average of many good ones.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any, Final, Protocol

STRETCH: Final = 240  # code points
_BREAK: Final = re.compile(r"(?<=[.!?\n])\s+")


class Model(Protocol):
    @property
    def version(self) -> str: ...

    def judge(self, texts: Sequence[str]) -> list[Any]: ...


def load(name: str) -> Model:
    """Takes seconds the first time. Raises ImportError, or KeyError for a name that is none."""
    return {"toxicity": Toxicity}[name]()


def stretches(text: str) -> list[str]:
    """Sentences, laid together up to a length; a sentence that is longer is cut."""
    found: list[str] = []
    for sentence in _BREAK.split(text):
        if found and len(found[-1]) + len(sentence) < STRETCH:
            found[-1] += " " + sentence
            continue
        found += [sentence[at : at + STRETCH] for at in range(0, max(len(sentence), 1), STRETCH)]
    return found


class Toxicity:
    """alt-profanity-check: a linear model over words (Zhou, 2019), whose weights come in its package."""

    def __init__(self) -> None:
        import profanity_check

        self._predict = profanity_check.predict_prob
        self.version = f"alt-profanity-check/{version('alt-profanity-check')}"

    def judge(self, texts: Sequence[str]) -> list[float]:
        pieces = [stretches(text) for text in texts]
        scores = iter(self._predict([piece for each in pieces for piece in each]).tolist())
        return [max(float(next(scores)) for _ in each) for each in pieces]
