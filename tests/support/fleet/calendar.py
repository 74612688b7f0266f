"""What is due when, for millions of sessions: by the second within a minute or so, by the minute beyond. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Final

import numpy as np

from tests.support.fleet.scenario import Ints

_PAGE_S: Final = 64


class Calendar:
    """`pop` every second, in order. What is due after `seconds` is forgotten."""

    def __init__(self, seconds: int) -> None:
        self._seconds = seconds
        self._page = 0
        self._pages: dict[int, list[tuple[Ints, Ints]]] = {}
        self._days: dict[int, list[Ints]] = {}

    def add(self, sessions: Ints, due_s: Ints) -> None:
        kept = due_s < self._seconds
        for page, part, due in _groups(sessions[kept], due_s[kept], _PAGE_S):
            if page == self._page:
                self._open(part, due)
            else:
                self._pages.setdefault(page, []).append((part, due))

    def pop(self, second: int) -> Ints:
        """In any order; a session that was added twice comes twice."""
        while self._page < second // _PAGE_S:
            self._page += 1
            for part, due in self._pages.pop(self._page, ()):
                self._open(part, due)
        parts = self._days.pop(second, [])
        return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int32)

    def _open(self, sessions: Ints, due_s: Ints) -> None:
        for second, part, _ in _groups(sessions, due_s, 1):
            self._days.setdefault(second, []).append(part)


def _groups(sessions: Ints, due_s: Ints, width: int) -> Iterator[tuple[int, Ints, Ints]]:
    if not len(sessions):
        return
    bucket = due_s // width
    order = np.argsort(bucket, kind="stable")
    bucket, sessions, due_s = bucket[order], sessions[order], due_s[order]
    edges = [0, *(np.flatnonzero(np.diff(bucket)) + 1).tolist(), len(bucket)]
    for begin, end in itertools.pairwise(edges):
        # Copies: a slice would keep the whole array it was cut from.
        yield int(bucket[begin]), sessions[begin:end].copy(), due_s[begin:end].copy()
