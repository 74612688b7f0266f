"""Calls of the server's tools that OpenAI's API has types of its own for, shown as it shows them: one item with what
came of it, and events of their own.

    code_interpreter   code_interpreter_call   its code and what that printed; the text behind it is annotated with the
                                               files that it wrote
    file_search        file_search_call        its query and arguments, the passages found, and what was skipped;
                                               texts behind it are annotated with the passages that they cite

They are shown so in a response that was requested with a tool of that type; elsewhere such a call is a function call
with its output. Made of the log alone.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from sessions.model import events as ev
from sessions.model.types import (
    CallId,
    FunctionCall,
    FunctionCallOutput,
    Item,
    Json,
    Message,
    OutputText,
    ResponseId,
    SearchScope,
    Tool,
)
from sessions.server_tools import CODE_INTERPRETER, FILE_SEARCH
from transport.openai.citations import Citations, PassageResult, annotated_items

CODE_CALL: Final = "code_interpreter_call"
SEARCH_CALL: Final = "file_search_call"


class HostedCallEvent(ev.ResponseEvent, frozen=True, kw_only=True):
    """An event about a hosted call that is made for the stream and is in no log. `shown` has its fields."""

    output_index: int
    type: str
    shown: dict[str, Json]


class HostedTool(NamedTuple):
    """How calls of one tool are shown: their type, the name of the state in which the tool works, and the fields that
    are made of a call's arguments and output."""

    item: str
    working: str
    fields: Callable[[FunctionCall, FunctionCallOutput | None], dict[str, Json]]


def shown_hosted_tool(tool: Tool) -> dict[str, Json] | None:
    """Returns a tool as a response shows it, or None if it is no hosted one."""
    if tool.server is True and tool.name == CODE_INTERPRETER:
        container: dict[str, Json] = {"type": "auto"}
        if isinstance(tool.file_ids, tuple):
            container["file_ids"] = list(tool.file_ids)
        return {"type": CODE_INTERPRETER, "container": container}
    if isinstance(tool.search, SearchScope):
        scope = tool.search
        shown: dict[str, Json] = {"type": FILE_SEARCH, "vector_store_ids": list(scope.vector_store_ids)}
        if scope.score_min:
            shown["ranking_options"] = {"score_threshold": scope.score_min}
        optional = {"max_num_results": scope.results_max, "filters": scope.filters}
        return shown | {name: value for name, value in optional.items() if value is not None}
    return None


def hosted_tools(body: ev.ResponseBody) -> frozenset[str]:
    """Returns the names of the hosted tools that a response was requested with by their types."""
    tools = body.request.get("tools") if isinstance(body.request, dict) else None
    if not isinstance(tools, Sequence):
        return frozenset()
    return frozenset(tool["type"] for tool in tools if isinstance(tool, Mapping) and tool.get("type") in _TOOLS)


def hosted_item(call: FunctionCall, output: FunctionCallOutput | None) -> dict[str, Json]:
    """Returns a call, and its output if there is one, as one item."""
    tool = _TOOLS[call.name]
    if output is None:
        status: str = call.status if call.status in ("in_progress", "incomplete") else tool.working
    elif output.status == "incomplete":
        status = "incomplete"
    else:
        status = "failed" if output.is_error else "completed"
    about: dict[str, Json] = {"id": call.id, "type": tool.item, "status": status, "call_id": call.call_id}
    return about | tool.fields(call, output)


def shown_items(
    items: Iterable[Item], render: Callable[[Item], dict[str, Json]], hosted: frozenset[str]
) -> list[dict[str, Json]]:
    """Returns an answer's items as `render` shows them, and each call of the `hosted` tools as one item with its
    output."""
    answer = list(items)
    calls = {item.call_id for item in answer if isinstance(item, FunctionCall) and _is_call_of(item, hosted)}
    outputs = {item.call_id: item for item in answer if isinstance(item, FunctionCallOutput) and item.call_id in calls}
    shown = []
    for item in answer:
        if isinstance(item, FunctionCall) and item.call_id in calls:
            shown.append(hosted_item(item, outputs.get(item.call_id)))
        elif not isinstance(item, FunctionCallOutput) or item.call_id not in calls:
            shown.append(render(item))
    return shown


class HostedCalls:
    """Turns the hosted calls of one answer into OpenAI's events; `number` returns the next event's number."""

    def __init__(self, response_id: ResponseId, hosted: frozenset[str], number: Callable[[], int]) -> None:
        self._response_id = response_id
        self._hosted = hosted
        self._number = number
        self._open: dict[int, FunctionCall] = {}  # by output index within the response that is being written
        self._waiting: dict[CallId, tuple[int, FunctionCall]] = {}
        self._citations = Citations()

    def take(self, event: ev.ResponseEvent, base: int) -> list[ev.ResponseEvent] | None:
        """Returns the events that replace an event of a hosted call, or None if the event is of no such call. `base`
        is added to its output index."""
        index = getattr(event, "output_index", None)
        if isinstance(event, ev.OutputItemAdded) and isinstance(event.item, FunctionCall):
            if not _is_call_of(event.item, self._hosted):
                return None
            call = self._open[event.output_index] = event.item
            item: dict[str, Json] = {**hosted_item(call, None), "status": "in_progress"}
            at = base + event.output_index
            added = self._event("response.output_item.added", at, item=item)
            return [added, self._event(f"response.{item['type']}.in_progress", at, item_id=call.id)]
        if index not in self._open or index is None:
            return None
        call, at = self._open[index], base + index
        tool = _TOOLS[call.name]
        if isinstance(event, ev.ArgumentsDone):
            if call.name != CODE_INTERPRETER:
                return []
            code = _text_of(event.arguments, "code")
            return [
                self._event(f"response.{CODE_CALL}_code.delta", at, item_id=call.id, delta=code),
                self._event(f"response.{CODE_CALL}_code.done", at, item_id=call.id, code=code),
            ]
        if isinstance(event, ev.OutputItemDone) and isinstance(event.item, FunctionCall):
            del self._open[index]
            self._waiting[event.item.call_id] = at, event.item
            return [self._event(f"response.{tool.item}.{tool.working}", at, item_id=call.id)]
        return []

    def answer(self, output: FunctionCallOutput) -> list[ev.ResponseEvent] | None:
        """Returns the events for the output of a hosted call, or None if the output is of no such call."""
        waiting = self._waiting.pop(output.call_id, None)
        if waiting is None:
            return None
        at, call = waiting
        _take_cited(self._citations, call, output)
        return [
            self._event(f"response.{_TOOLS[call.name].item}.completed", at, item_id=call.id),
            self._event("response.output_item.done", at, item=hosted_item(call, output)),
        ]

    def cite(self, event: ev.ResponseEvent, base: int) -> tuple[list[ev.ResponseEvent], ev.ResponseEvent]:
        """Returns the events of the citations in a text that ends with `event`, and `event` with its annotations."""
        match event:
            case ev.OutputTextDone():
                about: dict[str, Any] = {"item_id": event.item_id, "content_index": event.content_index}
                return [
                    self._event(
                        "response.output_text.annotation.added",
                        base + event.output_index,
                        **about,
                        annotation_index=index,
                        annotation=annotation,
                    )
                    for index, annotation in enumerate(self._citations.annotations_of(event.text))
                ], event
            case ev.ContentPartDone(part=OutputText() as part):
                return [], msgspec.structs.replace(event, part=self._citations.annotated_part(part))
            case ev.OutputItemDone(item=Message() as message):
                annotated = msgspec.structs.replace(event, item=self._citations.annotated(message))
                self._citations.end_message()
                return [], annotated
        return [], event

    def leave(self) -> list[ev.ResponseEvent]:
        """Returns the closing events of calls whose answer ends before their outputs came."""
        ended: list[ev.ResponseEvent] = [
            self._event("response.output_item.done", at, item={**hosted_item(call, None), "status": "incomplete"})
            for at, call in self._waiting.values()
        ]
        self._waiting.clear()
        return ended

    def _event(self, type: str, at: int, **shown: Any) -> HostedCallEvent:
        return HostedCallEvent(
            response_id=self._response_id, sequence_number=self._number(), output_index=at, type=type, shown=shown
        )


def with_citations(items: Sequence[Item], hosted: frozenset[str]) -> tuple[Item, ...]:
    """Returns an answer's items, those of texts annotated with what the hosted tools give them to cite."""
    if not hosted:
        return tuple(items)
    calls = {item.call_id: item for item in items if isinstance(item, FunctionCall) and _is_call_of(item, hosted)}

    def take(citations: Citations, output: FunctionCallOutput) -> None:
        call = calls.get(output.call_id)
        if call is not None:
            _take_cited(citations, call, output)

    return annotated_items(items, take)


def _take_cited(citations: Citations, call: FunctionCall, output: FunctionCallOutput) -> None:
    """Passes on what a text may cite of a call's output: passages, or files."""
    if call.name == FILE_SEARCH:
        citations.take_passages(_passages(output) or ())
    elif isinstance(output.files, tuple):
        citations.take_files(_container_of(call), output.files)


def _is_call_of(call: FunctionCall, hosted: Container[str]) -> bool:
    return call.server is True and call.name in hosted


def _code_fields(call: FunctionCall, output: FunctionCallOutput | None) -> dict[str, Json]:
    logs: Json = None if output is None else [{"type": "logs", "logs": output.output}]
    return {"code": _text_of(call.arguments, "code"), "container_id": _container_of(call), "outputs": logs}


def _container_of(call: FunctionCall) -> str:
    return f"cntr_{call.id}"


def _search_fields(call: FunctionCall, output: FunctionCallOutput | None) -> dict[str, Json]:
    query = _text_of(call.arguments, "query")
    shown: dict[str, Json] = {"queries": [query] if query else [], "arguments": call.arguments, "results": None}
    content = None if output is None else _content(output)
    if content is None:
        return shown
    more: dict[str, Json] = {name: content[name] for name in ("skipped", "reasons") if name in content}
    return {**shown, "results": content["results"], **more}


def _passages(output: FunctionCallOutput) -> list[PassageResult] | None:
    """Returns the passages in the output of a `file_search` call; None if a filter has replaced it."""
    content = _content(output)
    return None if content is None else [result for result in content["results"] if isinstance(result, dict)]


def _content(output: FunctionCallOutput) -> dict[str, Any] | None:
    try:
        content = json.loads(output.output)
    except (ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) and isinstance(content.get("results"), list) else None


def _text_of(arguments: str, name: str) -> str:
    """Returns a text of a call's JSON arguments; empty while they are incomplete or have none."""
    try:
        values = json.loads(arguments)
    except (ValueError, RecursionError):
        return ""
    text = values.get(name) if isinstance(values, dict) else None
    return text if isinstance(text, str) else ""


_TOOLS: Final = {
    CODE_INTERPRETER: HostedTool(CODE_CALL, "interpreting", _code_fields),
    FILE_SEARCH: HostedTool(SEARCH_CALL, "searching", _search_fields),
}
