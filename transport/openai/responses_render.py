"""Renders the log in the shapes of OpenAI's Responses and Conversations.

Our events have its names and fields already; what differs is made here: times in seconds, the response with its
request, parts with the lists that its clients expect. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from sessions.model import events as ev
from sessions.model.generation import ATTENDED, GENERATE, ITEMS_LEFT_OUT, RETRIEVAL_SKIPPED, TOOL_CALLS_MADE, TRUNCATION
from sessions.model.types import (
    ContentPart,
    FunctionCall,
    InputFile,
    InputImage,
    InputPassage,
    Item,
    Json,
    Message,
    OutputText,
    Reasoning,
    Sampling,
    Tool,
    UnixMs,
)
from transport.openai.hosted_calls import HostedCallEvent, hosted_tools, shown_hosted_tool, shown_items
from transport.openai.mcp.request import shown_tool, without_listings
from transport.openai.mcp.shown import call_item, listings, merged, source_of, uses_mcp
from transport.openai.output_logprobs import NONE, OutputLogprobs
from transport.openai.thoughts import split_thoughts

_DEFAULTS: Final[dict[str, Json]] = {
    "background": False,
    "conversation": None,
    "frequency_penalty": 0.0,
    "instructions": None,
    "max_output_tokens": None,
    "max_tool_calls": None,
    "parallel_tool_calls": True,
    "presence_penalty": 0.0,
    "previous_response_id": None,
    "prompt_cache_key": None,
    "reasoning": {"effort": None, "summary": None},
    "safety_identifier": None,
    "service_tier": "default",
    "store": True,
    "temperature": 1.0,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "top_logprobs": 0,
    "top_p": 1.0,
    TRUNCATION: "disabled",
    "user": None,
}


def requested(sampling: Sampling, tools: Sequence[Tool], **more: Json) -> dict[str, Json]:
    """Returns a request's fields as the journal stores them for its response: those that are not the default, and
    always `truncation` if it was sent."""
    shown: dict[str, Json] = {
        "max_output_tokens": sampling.max_output_tokens,
        "parallel_tool_calls": sampling.parallel_tool_calls,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "frequency_penalty": sampling.frequency_penalty,
        "presence_penalty": sampling.presence_penalty,
        "top_logprobs": sampling.top_logprobs,
        "tool_choice": sampling.tool_choice,
        "text": None if sampling.text is None else {"format": sampling.text.format},
        "tools": [_tool(tool) for tool in tools],
        **more,
    }
    return {
        name: value
        for name, value in shown.items()
        if value is not None and (value != _DEFAULTS.get(name) or name == TRUNCATION)
    }


def _tool(tool: Tool) -> dict[str, Json]:
    return shown_hosted_tool(tool) or shown_tool(tool)


def response(
    body: ev.ResponseBody, *, ended_at: UnixMs | None = None, logprobs: OutputLogprobs | None = None
) -> dict[str, Json]:
    """Returns the `response` object. `ended_at` is in ms; `logprobs` has the log probabilities of its texts."""
    request: Mapping[str, Json] = body.request if isinstance(body.request, dict) else {}
    cancelled = (body.incomplete_details or {}).get("reason") == "cancelled"
    return {
        **_DEFAULTS,
        **{name: value for name, value in request.items() if name not in (ATTENDED, GENERATE, TOOL_CALLS_MADE)},
        **({"tools": without_listings(request["tools"])} if uses_mcp(request) else {}),
        "id": body.id,
        "object": "response",
        "created_at": body.created_at // 1000,
        "completed_at": None if ended_at is None or body.status != "completed" else ended_at // 1000,
        "status": "cancelled" if cancelled else body.status,
        "error": body.error,
        "incomplete_details": None if cancelled else body.incomplete_details,
        "model": body.model,
        "output": _output(body, logprobs),
        "usage": None if body.usage is None else usage(body.usage),
        "metadata": body.metadata,
        **left_out_of(body),
    }


def left_out_of(body: ev.ResponseBody) -> dict[str, Json]:
    """Returns the fields with what the prompt lacks: how many of the conversation's oldest items, and what was not
    searched for it and why; empty if nothing."""
    service = body.service or {}
    return {name: service[name] for name in (ITEMS_LEFT_OUT, RETRIEVAL_SKIPPED) if service.get(name)}


def _output(body: ev.ResponseBody, logprobs: OutputLogprobs | None) -> list[dict[str, Json]]:
    calls: dict[str, dict[str, Json]] = {}
    items: list[Item] = list(body.output)
    listed: list[dict[str, Json]] = []
    if uses_mcp(body.request):
        listed = listings(body.id, body.request) if body.status != "queued" else []
        pairs = merged(body.output)
        items = [each for each, _ in pairs]
        calls = {
            each.id: call_item(each, output)
            for each, output in pairs
            if isinstance(each, FunctionCall) and source_of(each) is not None
        }

    def shown(each: Item) -> dict[str, Json]:
        return calls.get(each.id) or item(each, NONE if logprobs is None else logprobs.of(each.id))

    return split_thoughts([*listed, *shown_items(items, shown, hosted_tools(body))])


def usage(given: Mapping[str, Any]) -> dict[str, Json]:
    """Returns usage with `cache_write_tokens`, which OpenAI's clients expect; it is always 0 here."""
    return {**given, "input_tokens_details": {"cache_write_tokens": 0, **given["input_tokens_details"]}}


_ITEM_FIELDS: Final = ("id", "type", "role", "call_id", "name", "arguments", "output", "status")


def item(given: Item, logprobs: Sequence[Json] = NONE) -> dict[str, Json]:
    """Returns an item of input or output as OpenAI's object; `logprobs` are the log probabilities of its text."""
    fields = msgspec.to_builtins(given)
    shown = {name: fields[name] for name in _ITEM_FIELDS if name in fields}
    return (
        {**shown, "content": [part(each, logprobs) for each in given.content if not isinstance(each, InputPassage)]}
        if isinstance(given, Message)
        else shown
    )


def part(given: ContentPart, logprobs: Sequence[Json] = NONE) -> dict[str, Json]:
    if isinstance(given, InputFile):  # its text is the file's
        return {"type": "input_file", "file_id": given.file_id, "filename": given.filename}
    if isinstance(given, InputImage):
        return {"type": "input_image", "image_url": given.image_url, "detail": given.detail or "auto"}
    if isinstance(given, Reasoning):
        return {"type": "reasoning_text", "text": given.reasoning}
    shown: dict[str, Json] = msgspec.to_builtins(given)
    if isinstance(given, OutputText):
        shown |= {"annotations": list(given.annotations), "logprobs": list(logprobs)}
    return shown


def event(given: ev.ResponseEvent, at: UnixMs, logprobs: OutputLogprobs) -> dict[str, Json]:
    """Returns an event of a response's stream as OpenAI's object. `at` is when it was written, in ms; `logprobs` has
    the log probabilities up to it. The `response` of an `in_progress` event is added by `ResponseReader.stream`."""
    if isinstance(given, HostedCallEvent):
        about = {"type": given.type, "output_index": given.output_index, "sequence_number": given.sequence_number}
        return {**about, "response_id": given.response_id, **given.shown}
    shown: dict[str, Any] = msgspec.to_builtins(given)
    match given:
        case ev.ResponseCreated() | ev.ResponseQueued():
            shown["response"] = response(given.response)
        case ev.ResponseCompleted() | ev.ResponseIncomplete() | ev.ResponseFailed():
            shown["response"] = response(given.response, ended_at=at, logprobs=logprobs)
        case ev.OutputItemAdded() | ev.OutputItemDone():
            shown["item"] = item(given.item, logprobs.of(given.item.id))
        case ev.ContentPartAdded() | ev.ContentPartDone():
            shown["part"] = part(given.part, logprobs.of(given.item_id))
        case ev.OutputTextDelta():
            shown["logprobs"] = list(given.logprobs)
        case ev.OutputTextDone():
            shown["logprobs"] = list(logprobs.of(given.item_id))
    return shown
