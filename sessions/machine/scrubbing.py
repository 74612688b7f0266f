"""Takes a retracted span out of a text, or out of a part of a message. Pure."""

from __future__ import annotations

import msgspec
from msgspec import UNSET

from sessions.model import events as ev
from sessions.model.types import ContentPart, FunctionCallOutput, InputImage, Reasoning, Refusal


def scrub(text: str, event: ev.ContentRetracted) -> str:
    return text[: event.start] + event.replacement + text[event.end :]


def with_output(item: FunctionCallOutput, output: str) -> FunctionCallOutput:
    """Returns a tool's output with another text. Files that the text names no more go with it."""
    files = tuple(file for file in item.files if file.path in output) if isinstance(item.files, tuple) else ()
    return msgspec.structs.replace(item, output=output, files=files or UNSET)


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
