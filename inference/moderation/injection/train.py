"""Trains `model.npz` from `train.tsv`: python -m inference.moderation.injection.train

Method. Texts in plain form (`normalize`), lower case; words, pairs and triples of words, hashed into 2^15 places;
logistic regression (L2, C = 4, balanced classes). The data were written for this project by hand: attacks of the
published families (override, prompt leak, role play, authority, indirect, in five languages) and harmless messages that
share their words. Both have short and odd ones, down to a single letter: a text is judged by its worst segment, and a
segment can be as little as "b.". What it is judged on, `bench/filters_data/injection_test.tsv`, was written apart from
it and has no part in training or in the choice of any parameter; the threshold 0.5 is not tuned.

The weights are plain arrays that numpy reads without pickle. (`metatronnanoguard`, a package that ships a model for
this, was tried and left: its tokenizer is a pickle, which runs whatever is in it, and it needs PyTorch, 2 GB.)
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from sklearn.linear_model import LogisticRegression

from inference.moderation.injection.model import FILE, PLACES, feature_indices
from inference.moderation.normalize import normalize_text

DATA: Final = Path(__file__).parent / "train.tsv"


def read(path: Path) -> tuple[list[str], list[int]]:
    """Texts and labels of a file: 1 or 0, a tab, the text."""
    rows = [line.split("\t", 1) for line in path.read_text().splitlines()]
    return [normalize_text(text).lower() for _, text in rows], [int(label) for label, _ in rows]


def train(texts: Sequence[str], labels: Sequence[int]) -> tuple[Any, float]:
    """Weights (PLACES,) and intercept."""
    matrix = np.zeros((len(texts), PLACES), dtype=np.float32)
    for row, text in zip(matrix, texts, strict=True):
        found = feature_indices(text)
        row[found] = 1 / np.sqrt(max(len(found), 1))
    model = LogisticRegression(C=4.0, class_weight="balanced", max_iter=1_000, random_state=0)
    model.fit(matrix, labels)
    return model.coef_[0].astype(np.float32), float(model.intercept_[0])


def main() -> None:
    texts, labels = read(DATA)
    weights, intercept = train(texts, labels)
    np.savez_compressed(FILE, weights=weights, intercept=np.float64(intercept))
    print(f"{len(texts)} texts, {sum(labels)} of them attacks: {FILE.name} is written")


if __name__ == "__main__":
    main()
