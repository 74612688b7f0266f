"""Renders an answer as Anthropic's `message`: whole, or as the events of a stream.

Follows a `ChatCompletionReader`, which reads the log, and translates what it makes of it, choice by choice. A stream
begins with a message whose usage is not known yet; its `message_delta` has it.

Known difference: an answer that ended at one of `stop_sequences` says `end_turn`.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Iterator
from typing import Any, Final

from sessions.model.errors import SessileError
from sessions.model.types import Json
from transport import errors
from transport.http import sse
from transport.openai.chat import ChatCompletionReader
from transport.openai.chat_render import encode

_STOP_REASONS: Final = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "content_filter": "refusal",
}


class MessageReader:
    """Shows a chat completion as Anthropic's message. `headers`, those of the HTTP answer, are complete once the first
    event was read."""

    def __init__(self, completion: ChatCompletionReader, *, model: str, request_id: str) -> None:
        self._completion = completion
        self._model = model
        self._request_id = request_id

    @property
    def headers(self) -> dict[str, str]:
        return {**self._completion.headers, "request-id": self._request_id}

    async def whole(self) -> dict[str, Json]:
        """Returns the `message` object once the answer has ended. Raises the error that it ended with."""
        completion: dict[str, Any] = await self._completion.whole()
        choice = completion["choices"][0]
        message = choice["message"]
        text = (message["content"] or "") + (message["refusal"] or "")
        thoughts = message.get("reasoning_content")
        content: list[Json] = [{"type": "thinking", "thinking": thoughts, "signature": ""}] if thoughts else []
        if text:
            content.append({"type": "text", "text": text})
        for call in message.get("tool_calls", ()):
            function = call["function"]
            given = _arguments(function["arguments"])
            content.append({"type": "tool_use", "id": call["id"], "name": function["name"], "input": given})
        return {
            **_head(completion, self._model),
            "content": content,
            "stop_reason": _STOP_REASONS[choice["finish_reason"]],
            "usage": _usage(completion["usage"]),
        }

    async def stream(self) -> AsyncGenerator[bytes, None]:
        """Yields the stream in bytes. An error before the first of them is raised; a later one is an `error` event."""
        blocks = _Blocks()
        sent = False
        try:
            async for chunk in self._completion.chunks():
                if not sent:
                    start = {**_head(chunk, self._model), "content": [], "stop_reason": None, "usage": _usage({})}
                    yield _event({"type": "message_start", "message": start})
                    sent = True
                for choice in chunk["choices"]:
                    for event in blocks.take(choice["delta"]):
                        yield _event(event)
                    if choice["finish_reason"] is not None:
                        blocks.stop_reason = _STOP_REASONS[choice["finish_reason"]]
                if not chunk["choices"]:  # the last one, which has the usage
                    for event in blocks.close():
                        yield _event(event)
                    delta = {"stop_reason": blocks.stop_reason, "stop_sequence": None}
                    yield _event({"type": "message_delta", "delta": delta, "usage": _usage(chunk["usage"])})
            yield _event({"type": "message_stop"})
        except SessileError as error:
            if not sent:
                raise
            yield _event(errors.anthropic_body(error, self._request_id))


class _Blocks:
    """The content blocks of a stream. At most one is open at a time."""

    def __init__(self) -> None:
        self.stop_reason: str | None = None
        self._index = -1
        self._open: Json = None  # "thinking", "text", or the index of the open tool call

    def take(self, delta: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Yields the events that a chunk's delta becomes."""
        if thought := delta.get("reasoning_content"):
            if self._open != "thinking":
                yield from self._start("thinking", {"type": "thinking", "thinking": "", "signature": ""})
            yield self._delta({"type": "thinking_delta", "thinking": thought})
        if text := (delta.get("content") or "") + (delta.get("refusal") or ""):
            if self._open != "text":
                yield from self._start("text", {"type": "text", "text": ""})
            yield self._delta({"type": "text_delta", "text": text})
        for call in delta.get("tool_calls", ()):
            function = call["function"]
            if self._open != call["index"]:
                start = {"type": "tool_use", "id": call["id"], "name": function["name"], "input": {}}
                yield from self._start(call["index"], start)
            if function["arguments"]:
                yield self._delta({"type": "input_json_delta", "partial_json": function["arguments"]})

    def close(self) -> Iterator[dict[str, Any]]:
        """Yields the event that ends the open block; nothing if no block is open."""
        if self._open is not None:
            self._open = None
            yield {"type": "content_block_stop", "index": self._index}

    def _start(self, name: Json, block: dict[str, Json]) -> Iterator[dict[str, Any]]:
        yield from self.close()
        self._index, self._open = self._index + 1, name
        yield {"type": "content_block_start", "index": self._index, "content_block": block}

    def _delta(self, delta: dict[str, Json]) -> dict[str, Any]:
        return {"type": "content_block_delta", "index": self._index, "delta": delta}


def _head(completion: dict[str, Any], model: str) -> dict[str, Json]:
    return {
        "id": completion["id"].replace("chatcmpl-", "msg_", 1),
        "type": "message",
        "role": "assistant",
        "model": completion["model"] or model,
        "stop_sequence": None,
    }


def _usage(given: dict[str, Any]) -> dict[str, Json]:
    """Returns usage as Anthropic counts it: tokens read from a cache are no part of `input_tokens`."""
    cached = given.get("prompt_tokens_details", {}).get("cached_tokens", 0)
    return {
        "input_tokens": given.get("prompt_tokens", 0) - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": given.get("completion_tokens", 0),
    }


def _arguments(text: str) -> dict[str, Json]:
    """Returns a call's arguments as an object, because Anthropic's clients accept no other value."""
    try:
        value = json.loads(text or "{}")
    except (ValueError, RecursionError):
        value = text
    return value if isinstance(value, dict) else {"value": value}


def _event(event: dict[str, Any]) -> bytes:
    return sse.data(encode(event), event=event["type"])
