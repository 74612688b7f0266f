"""Renders the log's events as chat completions: chunks of a stream, or one whole answer.

Pure. One `ChoiceBuilder` per response follows its events; what it makes of them is OpenAI's, field by field.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec import UNSET, UnsetType

from sessions.billing.prices import sum_public
from sessions.model import commands as cm
from sessions.model import events as ev
from sessions.model.errors import BadInput, CutShort, Gone, Internal, SessileError, Unavailable
from sessions.model.types import (
    FunctionCall,
    FunctionCallOutput,
    Item,
    ItemId,
    Json,
    Message,
    Reasoning,
    Refusal,
    ResponseId,
    words_of,
)
from transport import errors
from transport.history_index import Unit
from transport.openai.responses_render import left_out_of

_FINISH = {"max_output_tokens": "length", "content_filter": "content_filter"}


_GIVEN_UP = {  # a repeat of the request would not help
    "cancelled": "it was cancelled.",
    "orphaned": "nobody read it any more.",
    "steered": "it was steered, and another goes on in its place.",
}


class StreamUsage(NamedTuple):
    """Which chunks of a stream show usage. `last`: a chunk at the end has the total. `each`: every chunk has the usage
    so far."""

    last: bool = False
    each: bool = False


class ChoiceBuilder:
    """Builds one choice of a completion from the events of its response."""

    def __init__(self, index: int, response_id: ResponseId, *, logprobs: bool) -> None:
        self.index = index
        self.response_id = response_id
        self.body: ev.ResponseBody | None = None  # once the response has ended
        self.created = 0
        self.model = ""  # the model that writes it, once known
        self.counted: ev.DeltaUsage | UnsetType = UNSET  # up to its last delta, where deltas carry it
        self.left_out: dict[str, Json] = {}  # how much of its prompt was left out, as its completion shows it
        self._logprobs = logprobs
        self._all_logprobs: list[Json] | None = [] if logprobs else None
        self._calls: dict[int, int] = {}  # output index → index among the calls
        self._begun = False

    def take(self, event: ev.ResponseEvent) -> list[dict[str, Json]]:
        """Returns the `choices` entries that an event adds to a stream."""
        match event:
            case ev.ResponseCreated():
                self.created, self.model = event.response.created_at // 1000, event.response.model
                self.left_out = left_out_of(event.response)
                return self._delta(None)
            case ev.OutputTextDelta():
                self.counted = event.usage or self.counted
                if self._all_logprobs is not None:
                    self._all_logprobs.extend(event.logprobs)
                return self._delta({"content": event.delta}, event.logprobs)
            case ev.ReasoningDelta():
                self.counted = event.usage or self.counted
                return self._delta(_thoughts(event.delta))
            case ev.RefusalDelta():
                self.counted = event.usage or self.counted
                return self._delta({"refusal": event.delta})
            case ev.OutputItemAdded(item=FunctionCall() as call):
                index = self._calls[event.output_index] = len(self._calls)
                function = {"name": call.name, "arguments": ""}
                return self._delta(
                    {"tool_calls": [{"index": index, "id": call.call_id, "type": "function", "function": function}]}
                )
            case ev.ArgumentsDelta():
                self.counted = event.usage or self.counted
                index = self._calls[event.output_index]
                return self._delta({"tool_calls": [{"index": index, "function": {"arguments": event.delta}}]})
            case ev.ResponseCompleted() | ev.ResponseIncomplete() | ev.ResponseFailed():
                self.body, self.model = event.response, event.response.model
                self.created = self.created or event.response.created_at // 1000
                if self.error is not None:
                    return []
                return [*self._delta(None), self._entry({}, self.finish_reason)]
            case _:
                return []

    def retract(self) -> None:
        """Drops the choice's log probabilities, which spell its tokens out, because text of it was retracted."""
        self._all_logprobs = None

    def _delta(self, delta: dict[str, Json] | None, logprobs: tuple[Json, ...] = ()) -> list[dict[str, Json]]:
        entries = []
        if not self._begun:
            self._begun = True
            entries.append(self._entry({"role": "assistant", "content": "", "refusal": None}, None))
        if delta is not None:
            entries.append(self._entry(delta, None, logprobs))
        return entries

    def _entry(self, delta: dict[str, Json], finish: str | None, logprobs: tuple[Json, ...] = ()) -> dict[str, Json]:
        shown = {"content": list(logprobs), "refusal": None} if self._logprobs and logprobs else None
        return {"index": self.index, "delta": delta, "logprobs": shown, "finish_reason": finish}

    # -- ended ---------------------------------------------------------------------------------------------------

    @property
    def error(self) -> SessileError | None:
        """The error that the ended response is answered with, or None for a usable answer."""
        assert self.body is not None
        return error_of(self.body)

    @property
    def finish_reason(self) -> str:
        assert self.body is not None
        if self.body.status == "incomplete" and self.body.incomplete_details is not None:
            return _FINISH.get(self.body.incomplete_details["reason"], "stop")
        return "tool_calls" if any(isinstance(item, FunctionCall) for item in self.body.output) else "stop"

    def whole(self) -> dict[str, Json]:
        """Returns the choice as a completion without streaming shows it."""
        assert self.body is not None
        text = "".join(item.text for item in self.body.output if isinstance(item, Message))
        refusal = "".join(
            part.refusal
            for item in self.body.output
            if isinstance(item, Message)
            for part in item.content
            if isinstance(part, Refusal)
        )
        calls = [
            {"id": item.call_id, "type": "function", "function": {"name": item.name, "arguments": item.arguments}}
            for item in self.body.output
            if isinstance(item, FunctionCall)
        ]
        message: dict[str, Json] = {
            "role": "assistant",
            "content": text if text or not calls else None,
            "refusal": refusal or None,
            "annotations": [],
        }
        each_thought = (item.reasoning for item in self.body.output if isinstance(item, Message))
        thoughts = "\n\n".join(thought for thought in each_thought if thought)
        if thoughts:
            message |= _thoughts(thoughts)
        if calls:
            message["tool_calls"] = calls
        return {
            "index": self.index,
            "message": message,
            "logprobs": None if self._all_logprobs is None else {"content": self._all_logprobs, "refusal": None},
            "finish_reason": self.finish_reason,
        }


def _thoughts(text: str) -> dict[str, Json]:
    """Returns reasoning text under both names that clients read."""
    return {"reasoning_content": text, "reasoning": text}


def resendable_answer(body: ev.ResponseBody) -> tuple[ItemId, list[Unit]] | None:
    """Returns the id of an answer's last item, and the answer in the form in which its client will resend it; None for
    an answer without output."""
    if not body.output:
        return None
    units, part = list[Unit](), list[Item]()
    for item in body.output:
        if not isinstance(item, FunctionCallOutput):
            part.append(item)
            continue
        if part:
            units.append(_answer_unit(part))
            part = []
        units.append(Unit((cm.NewOutput(call_id=item.call_id, output=item.output),)))
    if part:
        units.append(_answer_unit(part))
    return body.output[-1].id, units


def _answer_unit(output: Sequence[Item]) -> Unit:
    text = "".join(_words(item) for item in output if isinstance(item, Message))
    calls = tuple(
        cm.NewCall(call_id=item.call_id, name=item.name, arguments=item.arguments)
        for item in output
        if isinstance(item, FunctionCall)
    )
    words: tuple[cm.NewItem, ...] = (cm.NewMessage(role="assistant", content=text),) if text or not calls else ()
    return Unit((*words, *calls), answer=True)


def _words(message: Message) -> str:
    """Returns the text of a message, refusals included and reasoning left out."""
    return "".join(words_of(part) for part in message.content if not isinstance(part, Reasoning))


def error_of(body: ev.ResponseBody) -> SessileError | None:
    """Returns the error that a response ended with, or None."""
    if body.status == "failed":
        error = body.error or {"code": "internal_error", "message": "The server failed to carry this out."}
        return as_error(error["code"], error["message"], retry_after_ms=error.get("retry_after_ms"))
    reason = (body.incomplete_details or {}).get("reason")
    if body.status == "incomplete" and reason == "session_deleted":
        return session_deleted()
    if body.status == "incomplete" and reason == "recovery_incompatible":
        what = "This answer is not whole: its server ended, and no other can go on with it as it was requested."
        return CutShort("answer_cut_short", what)
    if body.status == "incomplete" and reason in _GIVEN_UP:
        return BadInput("response_cancelled", f"This answer is not whole: {_GIVEN_UP[reason]}")
    if body.status == "incomplete" and reason not in _FINISH:
        return Unavailable("engine_unavailable", f"This answer was cut short: {reason}.")
    return None


def session_deleted() -> Gone:
    return Gone("session_deleted", "The session of this answer was deleted before it was whole.")


def as_error(code: str, message: str, *, retry_after_ms: int | None = None) -> SessileError:
    """Returns an exception for an error code of the log, of the class that has the code's HTTP status."""
    from sessions.model import errors as kinds

    status = errors.row(code).http
    for kind in (kinds.BadInput, kinds.Unavailable, kinds.Conflict, kinds.TooLarge, kinds.Limited):
        if kind.status == status:
            return kind(code, message, retry_after_ms=retry_after_ms)
    return Internal(code, message)


def usage_so_far(choice: ChoiceBuilder) -> dict[str, Json] | None:
    """Returns a choice's usage up to its newest stream entry; None before its first token."""
    if choice.body is not None:
        return usage_of([choice.body])
    counted = choice.counted
    if counted is UNSET:
        return None
    return {
        "prompt_tokens": counted.input_tokens,
        "completion_tokens": counted.output_tokens,
        "total_tokens": counted.input_tokens + counted.output_tokens,
        "prompt_tokens_details": {"cached_tokens": counted.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }


def usage_of(bodies: list[ev.ResponseBody]) -> dict[str, Json]:
    """Returns the usage of a completion: the prompt counted once, the output of all choices added up."""
    usages: list[dict[str, Any]] = [body.usage or {} for body in bodies]
    prompt = max((usage.get("input_tokens", 0) for usage in usages), default=0)
    cached = max((usage.get("input_tokens_details", {}).get("cached_tokens", 0) for usage in usages), default=0)
    output = sum(usage.get("output_tokens", 0) for usage in usages)
    details = {"reasoning_tokens": _output_detail(usages, "reasoning_tokens")}
    if given_again := _output_detail(usages, "cached_tokens"):
        details["cached_tokens"] = given_again
    cost = sum_public(usage["cost"] for usage in usages if "cost" in usage)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": output,
        "total_tokens": prompt + output,
        "prompt_tokens_details": {"cached_tokens": cached},
        "completion_tokens_details": details,
        **({"cost": cost} if cost is not None else {}),
    }


encode = msgspec.json.Encoder().encode


def _output_detail(usages: list[dict[str, Any]], name: str) -> int:
    return sum(usage.get("output_tokens_details", {}).get(name, 0) for usage in usages)
