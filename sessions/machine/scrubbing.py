"""Takes a retracted span out of a text, a part of a message, or a tool's output with its list of files. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec
from msgspec import UNSET

from sessions.model import events as ev
from sessions.model.types import ContentPart, FunctionCallOutput, InputImage, Reasoning, Refusal, RunFile

_LISTING: Final = "[files: "


def scrub(text: str, event: ev.ContentRetracted) -> str:
    return text[: event.start] + event.replacement + text[event.end :]


def with_output(item: FunctionCallOutput, output: str) -> FunctionCallOutput:
    """Returns a tool's output with another text. Files that the text lists no more go with it."""
    files = listed_files(output, item.files) if isinstance(item.files, tuple) else ()
    return msgspec.structs.replace(item, output=output, files=files or UNSET)


def files_line(files: Iterable[RunFile]) -> str:
    """Returns the line by which an output lists the files of a run."""
    return f"{_LISTING}{', '.join(map(_entry, files))}]"


def listed_files(output: str, files: Iterable[RunFile]) -> tuple[RunFile, ...]:
    """Returns those of a run's files that its output lists, as whole entries of `files_line`."""
    ends = ", ", "]"
    listings = [f", {line.removeprefix(_LISTING)}" for line in output.split("\n") if line.startswith(_LISTING)]
    return tuple(file for file in files if any(f", {_entry(file)}{end}" in line for line in listings for end in ends))


def _entry(file: RunFile) -> str:
    return f"{file.path} ({file.size} bytes)"


def scrub_part(part: ContentPart, event: ev.ContentRetracted) -> ContentPart:
    """Returns a part without the span. An image is one character of its message, and gone with it."""
    match part:
        case Refusal():
            return Refusal(refusal=scrub(part.refusal, event))
        case Reasoning():
            return Reasoning(scrub(part.reasoning, event))
        case InputImage():
            return part if scrub(part.text, event) == part.text else InputImage()
        case _:
            return msgspec.structs.replace(part, text=scrub(part.text, event))
