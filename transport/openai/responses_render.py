"""Renders the log in the shapes of OpenAI's Responses and Conversations.

Our events have its names and fields already; what differs is made here: times in seconds, the response with its
request, parts with the lists that its clients expect. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from sessions.model import events as ev
from sessions.model.types import (
    InputText,
    Item,
    Json,
    Message,
    OutputText,
    Refusal,
    Sampling,
    Tool,
)

_DEFAULTS: Final[dict[str, Json]] = {
    "background": False,
    "conversation": None,
    "instructions": None,
    "max_output_tokens": None,
    "parallel_tool_calls": True,
    "previous_response_id": None,
    "reasoning": {"effort": None, "summary": None},
    "service_tier": "default",
    "store": True,
    "temperature": 1.0,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "top_logprobs": 0,
    "top_p": 1.0,
    "truncation": "auto",
    "user": None,
}


def requested(sampling: Sampling, tools: Sequence[Tool], **more: Json) -> dict[str, Json]:
    """The request that a response shows, as it is journaled: only what is not the default."""
    shown: dict[str, Json] = {
        "max_output_tokens": sampling.max_output_tokens,
        "parallel_tool_calls": sampling.parallel_tool_calls,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_logprobs": sampling.top_logprobs,
        "tool_choice": sampling.tool_choice,
        "text": None if sampling.text is None else {"format": sampling.text.format},
        "tools": [{**msgspec.to_builtins(tool), "parameters": tool.parameters or {}} for tool in tools],
        **more,
    }
    return {name: value for name, value in shown.items() if value is not None and value != _DEFAULTS.get(name)}


def response(body: ev.ResponseBody) -> dict[str, Json]:
    """The `response` object."""
    request: Mapping[str, Json] = body.request if isinstance(body.request, dict) else {}
    cancelled = (body.incomplete_details or {}).get("reason") == "cancelled"
    return {
        **_DEFAULTS,
        **request,
        "id": body.id,
        "object": "response",
        "created_at": body.created_at / 1000,
        "status": "cancelled" if cancelled else body.status,
        "error": body.error,
        "incomplete_details": None if cancelled else body.incomplete_details,
        "model": body.model,
        "output": [item(each) for each in body.output],
        "usage": None if body.usage is None else _usage(body.usage),
        "metadata": body.metadata,
    }


def _usage(given: Mapping[str, Any]) -> dict[str, Json]:
    """With the field that OpenAI's clients expect besides: writing to the cache costs nothing extra here."""
    return {**given, "input_tokens_details": {"cache_write_tokens": 0, **given["input_tokens_details"]}}


_ITEM_FIELDS: Final = ("id", "type", "role", "call_id", "name", "arguments", "output", "status")


def item(given: Item) -> dict[str, Json]:
    """An item of input or output."""
    fields = msgspec.to_builtins(given)
    shown = {name: fields[name] for name in _ITEM_FIELDS if name in fields}
    return {**shown, "content": [part(each) for each in given.content]} if isinstance(given, Message) else shown


def part(given: InputText | OutputText | Refusal) -> dict[str, Json]:
    shown: dict[str, Json] = msgspec.to_builtins(given)
    if isinstance(given, OutputText):
        shown |= {"annotations": list(given.annotations), "logprobs": []}
    return shown


def event(given: ev.ResponseEvent) -> dict[str, Json]:
    """An event of a response's stream. Only the first and the last carry the response whole in the log; the one in
    between is filled in by whoever has it (`with_response`)."""
    shown: dict[str, Any] = msgspec.to_builtins(given)
    match given:
        case ev.ResponseCreated() | ev.ResponseQueued():
            shown["response"] = response(given.response)
        case ev.ResponseCompleted() | ev.ResponseIncomplete() | ev.ResponseFailed():
            shown["response"] = response(given.response)
        case ev.OutputItemAdded() | ev.OutputItemDone():
            shown["item"] = item(given.item)
        case ev.ContentPartAdded() | ev.ContentPartDone():
            shown["part"] = part(given.part)
        case ev.OutputTextDelta():
            shown["logprobs"] = list(given.logprobs)
        case ev.OutputTextDone():
            shown["logprobs"] = []
    return shown
