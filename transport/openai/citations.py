"""Citations: of passages, which `file_search` has numbered (`[2]` in an answer), and of files that code wrote.

A text is annotated as OpenAI annotates it, with the passage's own place besides: `start` and `end`, in code points of
the document's text. Each search numbers from 1: a number that stands for different passages of several searches is no
citation, nor is one that no passage has, or that is part of a link. Each file that code wrote is cited by the first
message behind its call: where that names it, else at its beginning. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Any, Final

import msgspec

from sessions.model.types import FunctionCallOutput, Item, Json, Message, OutputText, RunFile

PassageResult = dict[str, Any]  # a result of `file_search`
CITATIONS_MAX: Final = 256  # of one text
LINK_MAX: Final = 512  # characters
_LINK_SIGNS: Final = "/:._-"
_CITED: Final = re.compile(r"(?<![^0-9]\])\[([0-9]{1,3})\](?!\()")
_SHOWN: Final = ("file_id", "filename", "start", "end")


class Citations:
    """The citations of one answer, whose searches and messages are given in order."""

    def __init__(self) -> None:
        self._places: dict[int, dict[str, Json] | None] = {}  # by number; None: the searches differ
        self._files: list[tuple[str, RunFile]] = []  # that no message has cited yet, with their containers

    def take_passages(self, passages: Sequence[PassageResult]) -> None:
        """Takes what a search found: texts behind it may cite these passages."""
        for passage in passages:
            number = passage.get("number")
            if isinstance(number, int) and all(name in passage for name in _SHOWN):
                place = {name: passage[name] for name in _SHOWN}
                self._places[number] = place if self._places.get(number, place) == place else None

    def take_files(self, container_id: str, files: Iterable[RunFile]) -> None:
        """Takes the files that a call has written: the next message cites them."""
        self._files += [(container_id, file) for file in files]

    def end_message(self) -> None:
        """Forgets the files that a message has cited, at its end."""
        self._files.clear()

    def annotations_of(self, text: str) -> list[dict[str, Json]]:
        """Returns the annotations of a text: of passages, `CITATIONS_MAX` at most, then of files."""
        spans = _spans(text, [file.path for _, file in self._files])
        files: list[dict[str, Json]] = [
            {
                "type": "container_file_citation",
                "container_id": container_id,
                "file_id": file.file_id,
                "filename": _filename(file.path),
                **spans[file.path],
            }
            for container_id, file in self._files
        ]
        return [*self._passages_cited(text), *files]

    def _passages_cited(self, text: str) -> list[dict[str, Json]]:
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


def annotated_items(items: Iterable[Item], take: Callable[[Citations, FunctionCallOutput], None]) -> tuple[Item, ...]:
    """Returns an answer's items with its texts annotated. `take` passes on what texts behind an output may cite."""
    citations, annotated = Citations(), list[Item]()
    for item in items:
        if isinstance(item, FunctionCallOutput):
            take(citations, item)
        annotated.append(citations.annotated(item) if isinstance(item, Message) else item)
        if isinstance(item, Message):
            citations.end_message()
    return tuple(annotated)


def _filename(path: str) -> str:
    return path.rpartition("/")[2]


def _spans(text: str, paths: Sequence[str]) -> dict[str, dict[str, Json]]:
    """Returns for each path where a text names it, with the folders or the scheme in front; 0 to 0 if it does not. A
    name alone stands for a path only where it ends no other one."""
    owners = {end: path for path in sorted(paths, key=len) for end in _ends(text, path)}
    spans: dict[str, dict[str, Json]] = {}
    for path in paths:
        whole = (end for end, owner in owners.items() if owner == path)
        name = _filename(path)
        end = min(whole, default=None) or next((end for end in _ends(text, name) if end not in owners), 0)
        start = end - len(name) if end else 0
        while start > 0 and end - start < LINK_MAX and (text[start - 1].isalnum() or text[start - 1] in _LINK_SIGNS):
            start -= 1
        spans[path] = {"start_index": start, "end_index": end}
    return spans


def _ends(text: str, name: str) -> Iterable[int]:
    """Yields the ends of a name in a text, where it is no part of a longer one."""
    whole = re.compile(rf"(?<![\w.-]){re.escape(name)}(?![\w-]|\.\w)", re.ASCII)
    return (match.end() for match in whole.finditer(text))
