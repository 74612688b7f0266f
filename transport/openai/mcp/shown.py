"""Shows calls of MCP servers' tools as OpenAI does: lists of tools, calls with their outputs, requests for approval.

    function_call + function_call_output  ─►  mcp_call
    function_call that waits for somebody ─►  mcp_approval_request, with which the response ends
    the listings beside the request       ─►  mcp_list_tools, first

Events are numbered anew, from what the log has, so that every reader sees the same ones under the same numbers. A
response that names no MCP server is shown as it is. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from msgspec import UNSET

from sessions.model import events as ev
from sessions.model.types import FunctionCall, FunctionCallOutput, Item, Json, McpSource

Shown = dict[str, Json]
_CALL: Final = "call_"


def source_of(item: Item) -> McpSource | None:
    """Returns the MCP source of the tool that an item calls; None for other items."""
    return item.mcp if isinstance(item, FunctionCall) and isinstance(item.mcp, McpSource) else None


def waits(item: Item) -> bool:
    """Returns whether a call is made only after somebody, whom the client asks, has approved it."""
    source = source_of(item)
    return source is not None and source.approval is True


def uses_mcp(request: Mapping[str, Any] | Any) -> bool:
    """Returns whether a response's request names MCP servers."""
    return isinstance(request, Mapping) and any(
        isinstance(tool, Mapping) and tool.get("type") == "mcp" for tool in request.get("tools", ())
    )


def request_id_of(call_id: str) -> str:
    """Returns the id of the approval request for a call."""
    return f"mcpr_{call_id.removeprefix(_CALL)}"


def call_id_of(request_id: str) -> str:
    return f"{_CALL}{request_id.removeprefix('mcpr_')}"


def listings(response_id: str, request: Any) -> list[Shown]:
    """Returns `mcp_list_tools` items with the tool lists that were new to the session when the response began."""
    if not isinstance(request, Mapping):
        return []
    suffix = response_id.removeprefix("resp_")
    return [
        {
            "id": f"mcpl_{suffix}_{index}",
            "type": "mcp_list_tools",
            "server_label": tool["server_label"],
            "tools": tool["listed"],
            "error": None,
        }
        for index, tool in enumerate(request.get("tools", ()))
        if isinstance(tool, Mapping) and tool.get("listed")
    ]


def call_item(call: FunctionCall, output: FunctionCallOutput | None) -> Shown:
    """Returns a call as one item: `mcp_call`, or `mcp_approval_request` while it waits to be approved."""
    source = source_of(call)
    assert source is not None
    suffix = call.call_id.removeprefix(_CALL)
    about: Shown = {"server_label": source.server_label, "name": source.tool, "arguments": call.arguments}
    if output is None and waits(call):
        return {"id": request_id_of(call.call_id), "type": "mcp_approval_request", **about}
    failed = output is not None and output.is_error
    status = "in_progress" if output is None else "failed" if failed else "completed"
    return {
        "id": f"mcp_{suffix}",
        "type": "mcp_call",
        **about,
        "approval_request_id": request_id_of(call.call_id) if waits(call) else None,
        "output": None if output is None or failed else output.output,
        "error": output.output if output is not None and failed else None,
        "status": status,
    }


def merged(items: Sequence[Item]) -> list[tuple[Item, FunctionCallOutput | None]]:
    """Returns items, with each call of an MCP tool paired with its output; None where there is no output."""
    outputs = {item.call_id: item for item in items if isinstance(item, FunctionCallOutput)}
    taken = {item.call_id for item in items if isinstance(item, FunctionCall) and source_of(item) is not None}
    return [
        (item, outputs.get(item.call_id) if isinstance(item, FunctionCall) and item.call_id in taken else None)
        for item in items
        if not (isinstance(item, FunctionCallOutput) and item.call_id in taken)
    ]


class McpEvents:
    """Turns the events of one response, in order, into OpenAI's events with MCP items, numbered anew."""

    def __init__(self) -> None:
        self._active = False
        self._number = 0
        self._next_index = 0
        self._indices: dict[int, int] = {}  # output index in the log to output index shown
        self._calls: dict[str, tuple[FunctionCall, int]] = {}  # calls without output, by call id
        self._listings: list[Shown] = []

    def take(self, event: ev.ResponseEvent, shown: Shown) -> list[Shown]:
        """Returns the events that replace `event`; `shown` is how it looks in a response without MCP."""
        if isinstance(event, ev.ResponseCreated | ev.ResponseQueued):
            self._active = uses_mcp(event.response.request)
            self._listings = listings(event.response_id, event.response.request)
        if not self._active:
            return [shown]
        return [self._numbered(each) for each in self._taken(event, shown)]

    def _taken(self, event: ev.ResponseEvent, shown: Shown) -> Iterable[Shown]:
        match event:
            case ev.ResponseInProgress():
                yield shown
                for listing in self._listings:
                    yield from self._listed(event.response_id, listing)
            case ev.OutputItemAdded() if (call := _mcp_call(event.item)) is not None:
                if not waits(call):
                    yield from self._begun(event, call)
            case ev.ArgumentsDelta() | ev.ArgumentsDone() if event.output_index not in self._indices:
                return  # of a call that waits for somebody, which is shown whole
            case ev.ArgumentsDelta() | ev.ArgumentsDone() if self._is_call(event.output_index):
                kind = "delta" if isinstance(event, ev.ArgumentsDelta) else "done"
                yield self._placed(
                    event, {**shown, "type": f"response.mcp_call_arguments.{kind}", "item_id": self._id(event)}
                )
            case ev.OutputItemDone() if (call := _mcp_call(event.item)) is not None:
                yield from self._written(event, call)
            case ev.OutputItemAdded() if self._answers(event.item):
                return
            case ev.OutputItemDone() if isinstance(event.item, FunctionCallOutput) and self._answers(event.item):
                yield from self._answered(event.response_id, event.item)
            case _ if shown["type"] == "response.output_item.added":
                self._indices[getattr(event, "output_index", -1)] = self._next_index
                self._next_index += 1
                yield self._placed(event, shown)
            case _:
                yield self._placed(event, shown)

    def _listed(self, response_id: str, listing: Shown) -> Iterable[Shown]:
        index, where = self._new_index(), {"item_id": listing["id"], "response_id": response_id}
        item = {**listing, "tools": []}
        yield {"type": "response.output_item.added", "response_id": response_id, "output_index": index, "item": item}
        yield {"type": "response.mcp_list_tools.in_progress", **where, "output_index": index}
        yield {"type": "response.mcp_list_tools.completed", **where, "output_index": index}
        yield {"type": "response.output_item.done", "response_id": response_id, "output_index": index, "item": listing}

    def _begun(self, event: ev.OutputItemAdded, call: FunctionCall) -> Iterable[Shown]:
        index = self._indices[event.output_index] = self._new_index()
        self._calls[call.call_id] = call, index
        item, where = call_item(call, None), {"response_id": event.response_id, "output_index": index}
        yield {"type": "response.output_item.added", **where, "item": item}
        yield {"type": "response.mcp_call.in_progress", **where, "item_id": item["id"]}

    def _written(self, event: ev.OutputItemDone, call: FunctionCall) -> Iterable[Shown]:
        if call.call_id in self._calls:
            self._calls[call.call_id] = call, self._calls[call.call_id][1]
            return  # it is done once its output is there
        where = {"response_id": event.response_id, "output_index": self._new_index()}
        item = call_item(call, None)
        yield {"type": "response.output_item.added", **where, "item": item}
        yield {"type": "response.output_item.done", **where, "item": item}

    def _answered(self, response_id: str, output: FunctionCallOutput) -> Iterable[Shown]:
        call, index = self._calls.pop(output.call_id)
        item, where = call_item(call, output), {"response_id": response_id, "output_index": index}
        yield {"type": f"response.mcp_call.{item['status']}", **where, "item_id": item["id"]}
        yield {"type": "response.output_item.done", **where, "item": item}

    def _answers(self, item: Item) -> bool:
        return isinstance(item, FunctionCallOutput) and item.call_id in self._calls

    def _is_call(self, output_index: int) -> bool:
        return any(index == self._indices[output_index] for _, index in self._calls.values())

    def _id(self, event: ev.ArgumentsDelta | ev.ArgumentsDone) -> str:
        index = self._indices[event.output_index]
        return next(str(call_item(call, None)["id"]) for call, at in self._calls.values() if at == index)

    def _new_index(self) -> int:
        self._next_index += 1
        return self._next_index - 1

    def _placed(self, event: ev.ResponseEvent, shown: Shown) -> Shown:
        index = getattr(event, "output_index", UNSET)
        return {**shown, "output_index": self._indices[index]} if index in self._indices else shown

    def _numbered(self, shown: Shown) -> Shown:
        self._number += 1
        return {**shown, "sequence_number": self._number - 1}


def resumed_calls(items: Sequence[Item], parent_id: str | None) -> list[Item]:
    """Returns the calls right before a response's first item that needed approval, each with its output; an empty list
    if none of them did."""
    by_id = {item.id: item for item in items}
    outputs: list[FunctionCallOutput] = []
    at = by_id.get(parent_id) if parent_id is not None else None  # type: ignore[call-overload]
    while isinstance(at, FunctionCallOutput):
        outputs.insert(0, at)
        at = by_id.get(at.parent_id) if at.parent_id is not None else None
    calls = {item.call_id: item for item in items if isinstance(item, FunctionCall)}
    answered = [calls[each.call_id] for each in outputs if each.call_id in calls]
    if not any(waits(call) for call in answered):
        return []
    return [item for call, output in zip(answered, outputs, strict=True) for item in (call, output) if call.mcp]


def _mcp_call(item: Item) -> FunctionCall | None:
    return item if isinstance(item, FunctionCall) and source_of(item) is not None else None
