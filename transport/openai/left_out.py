"""Names what a request brings that has no effect here, for the `Warning` of its answer: each kind once, where it is met
first.

Tools of kinds that nobody here carries out, items of such kinds, and fields of messages and of their parts that nobody
here knows. None of them is a reason to refuse: agents offer all their tools to everybody, and resend what other servers
gave them. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from transport.openai.parse_request import is_unreadable
from transport.openai.request_models import (
    QUIET_ITEMS,
    ChatMessageParam,
    ChatRequest,
    ContentPart,
    InputItem,
    OtherTool,
    ResponsesRequest,
    is_foreign,
)

# What servers give with an answer and clients send back: it tells them something, and a model nothing.
_ECHOED: Final = frozenset(
    (
        *("annotations", "citations", "created_at", "created_by", "detail", "function_call", "id", "index", "logprobs"),
        *("object", "phase", "reasoning", "reasoning_content", "reasoning_details", "signature", "status", "summary"),
        *("thinking", "thinking_blocks", "tool_name"),
    )
)


def left_out(body: ChatRequest | ResponsesRequest) -> list[str]:
    """The names of what has no effect, as a `Warning` shows them."""
    named: dict[str, str] = {}
    if isinstance(body, ChatRequest):
        found = _of_messages(body.messages, "messages")
    else:
        found = iter(()) if body.input is None or isinstance(body.input, str) else _of_messages(body.input, "input")
    for kind, name in (*_of_tools(body.tools or ()), *found):
        named.setdefault(kind, name)
    return list(named.values())


def take_unreadable_parts(messages: Sequence[ChatMessageParam | InputItem], param: str) -> list[str]:
    """Takes the parts that no model here reads (images, sound) out of messages and outputs, and names them: each kind
    once."""
    named: dict[str, str] = {}
    for index, message in enumerate(messages):
        for field in ("content", "output"):
            parts = getattr(message, field, None)
            if not isinstance(parts, list):
                continue
            for number, part in enumerate(parts):
                if is_unreadable(part):
                    named.setdefault(part.type, f"{param}[{index}].{field}[{number}] ({part.type})")
            setattr(message, field, [part for part in parts if not is_unreadable(part)])
    return list(named.values())


def _of_tools(tools: Sequence[object]) -> Iterator[tuple[str, str]]:
    for index, tool in enumerate(tools):
        if isinstance(tool, OtherTool):
            yield f"tool {tool.type}", f"tools[{index}] ({tool.type})"


def _of_messages(messages: Sequence[ChatMessageParam | InputItem], param: str) -> Iterator[tuple[str, str]]:
    for index, message in enumerate(messages):
        at = f"{param}[{index}]"
        if isinstance(message, InputItem) and is_foreign(message.type):
            if message.type not in QUIET_ITEMS:
                yield f"item {message.type}", f"{at} ({message.type})"
            continue
        yield from _fields(message, at)
        for number, part in enumerate(message.content if isinstance(message.content, list) else ()):
            yield from _fields(part, f"{at}.content[{number}]")


def _fields(given: ChatMessageParam | InputItem | ContentPart, at: str) -> Iterator[tuple[str, str]]:
    for name, value in (given.model_extra or {}).items():
        if name not in _ECHOED and value not in (None, [], {}, ""):
            yield f"{type(given).__name__} {name}", f"{at}.{name}"
