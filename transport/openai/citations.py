"""Citations: `[2]` in an answer names the passage that `file_search` found under that number.

A text is annotated as OpenAI annotates it, with the passage's own place besides: `start` and `end`, in code points of
the document's text. Each search numbers from 1: a number that stands for different passages of several searches is no
citation, nor is one that no passage has, or that is part of a link. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Any, Final

import msgspec

from sessions.model.types import FunctionCallOutput, Item, Json, Message, OutputText

PassageResult = dict[str, Any]  # a result of `file_search`
CITATIONS_MAX: Final = 256  # of one text
_CITED: Final = re.compile(r"(?<![^0-9]\])\[([0-9]{1,3})\](?!\()")
_SHOWN: Final = ("file_id", "filename", "start", "end")


class Citations:
    """The citations of one answer, whose searches and messages are given in order."""

    def __init__(self) -> None:
        self._places: dict[int, dict[str, Json] | None] = {}  # by number; None: the searches differ

    def take_passages(self, passages: Sequence[PassageResult]) -> None:
        """Takes what a search found: texts behind it may cite these passages."""
        for passage in passages:
            number = passage.get("number")
            if isinstance(number, int) and all(name in passage for name in _SHOWN):
                place = {name: passage[name] for name in _SHOWN}
                self._places[number] = place if self._places.get(number, place) == place else None

    def annotations_of(self, text: str) -> list[dict[str, Json]]:
        """Returns the annotations of a text, `CITATIONS_MAX` at most."""
        if not self._places:
            return []
        marks = ((mark.start(), self._places.get(int(mark[1]))) for mark in _CITED.finditer(text))
        cited = ((index, place) for index, place in marks if place is not None)
        return [{"type": "file_citation", "index": index, **place} for index, place in islice(cited, CITATIONS_MAX)]

    def annotated(self, message: Message) -> Message:
        """Returns a message with its texts annotated."""
        parts = (self.annotated_part(part) if isinstance(part, OutputText) else part for part in message.content)
        return msgspec.structs.replace(message, content=tuple(parts))

    def annotated_part(self, part: OutputText) -> OutputText:
        """Returns a text with its annotations."""
        return msgspec.structs.replace(part, annotations=tuple(self.annotations_of(part.text)))


def annotated_items(
    items: Iterable[Item], passages_of: Callable[[FunctionCallOutput], Sequence[PassageResult] | None]
) -> tuple[Item, ...]:
    """Returns an answer's items with its texts annotated. `passages_of` returns what a search found; None for the
    output of anything else."""
    citations, annotated = Citations(), list[Item]()
    for item in items:
        if isinstance(item, FunctionCallOutput) and (passages := passages_of(item)) is not None:
            citations.take_passages(passages)
        annotated.append(citations.annotated(item) if isinstance(item, Message) else item)
    return tuple(annotated)
