"""Citations: `[2]` in an answer names the second passage that the last `file_search` call before it found.

A text is annotated as OpenAI annotates it, with the passage's own place besides: `start` and `end`, in code points of
the document's text. A number that no passage has is no citation. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import msgspec

from sessions.model.types import FunctionCallOutput, Item, Json, Message, OutputText

Passage = dict[str, Any]  # a result of `file_search`
_CITED: Final = re.compile(r"\[([0-9]{1,3})\]")
_SHOWN: Final = ("file_id", "filename", "start", "end")


class Citations:
    """The citations of one answer, whose outputs and messages are given in order."""

    def __init__(self) -> None:
        self._passages: dict[int, Passage] = {}  # of the last search, by number

    def search(self, passages: Sequence[Passage]) -> None:
        """Takes what a search found: texts behind it cite these passages."""
        complete = (passage for passage in passages if all(name in passage for name in ("number", *_SHOWN)))
        self._passages = {passage["number"]: passage for passage in complete}

    def of(self, text: str) -> list[dict[str, Json]]:
        """Returns the annotations of a text."""
        if not self._passages:
            return []
        marks = ((mark.start(), self._passages.get(int(mark[1]))) for mark in _CITED.finditer(text))
        return [
            {"type": "file_citation", "index": index} | {name: passage[name] for name in _SHOWN}
            for index, passage in marks
            if passage is not None
        ]

    def annotated(self, message: Message) -> Message:
        """Returns a message with its texts annotated."""
        parts = (self.annotated_part(part) if isinstance(part, OutputText) else part for part in message.content)
        return msgspec.structs.replace(message, content=tuple(parts))

    def annotated_part(self, part: OutputText) -> OutputText:
        return msgspec.structs.replace(part, annotations=tuple(self.of(part.text)))


def annotated_items(
    items: Iterable[Item], passages_of: Callable[[FunctionCallOutput], Sequence[Passage] | None]
) -> tuple[Item, ...]:
    """Returns an answer's items with its texts annotated. `passages_of` returns what a search found; None for the
    output of anything else."""
    citations, annotated = Citations(), list[Item]()
    for item in items:
        if isinstance(item, FunctionCallOutput) and (passages := passages_of(item)) is not None:
            citations.search(passages)
        annotated.append(citations.annotated(item) if isinstance(item, Message) else item)
    return tuple(annotated)
