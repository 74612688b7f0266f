"""Collects the log probabilities of one response's texts from its deltas, for whatever shows such a text whole.

A text of which something was taken back has none any more, because they spell its tokens out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sessions.model import events as ev
from sessions.model.types import ItemId, Json

NONE: Final[Sequence[Json]] = ()


class OutputLogprobs:
    """The log probabilities of one response's texts, by message. Reads the response's events, and retractions, which
    remove them."""

    def __init__(self) -> None:
        self._found: dict[ItemId, list[Json]] = {}
        self._without: set[ItemId] = set()

    def take(self, event: ev.AnyEvent) -> None:
        match event:
            case ev.OutputTextDelta():
                if event.logprobs and event.item_id not in self._without:
                    self._found.setdefault(event.item_id, []).extend(event.logprobs)
            case ev.ContentRetracted():
                self._without.add(event.item_id)
                self._found.pop(event.item_id, None)

    def of(self, item_id: ItemId) -> Sequence[Json]:
        return self._found.get(item_id, NONE)
