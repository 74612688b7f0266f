"""Shows a response and those that go on with it, behind the outputs of the server's own tools, as one response.

In the log a turn with server tools is several responses, with the tools' outputs between them. A client of OpenAI's API
asked for one: it gets one, whose output has the calls, their outputs and the words, numbered through. Made of the log
alone, so every reader of it, now or later, is shown the same. Calls of tools that OpenAI's API has types of its own for
are shown as `transport.openai.hosted_calls` says.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from sessions.billing.prices import sum_public
from sessions.model import events as ev
from sessions.model.types import CallId, FunctionCall, FunctionCallOutput, Item, ItemId, Json, ResponseId
from transport.openai.hosted_calls import HostedCalls, hosted_tools, with_citations
from transport.openai.mcp.shown import waits

TERMINAL = ev.ResponseCompleted | ev.ResponseIncomplete | ev.ResponseFailed
_BEGINNING = ev.ResponseQueued | ev.ResponseCreated | ev.ResponseInProgress


class ContinuedAnswer:
    """Shows a response and the responses that continue it as one. With `hidden`, server tools' calls and their outputs
    are left out."""

    def __init__(self, response_id: ResponseId, *, hidden: bool = False, before: Sequence[Item] = ()) -> None:
        """`before`: calls, with their outputs, that the answer continues from and shows as its own first items."""
        self.response_id = response_id
        self.at = response_id  # the response in the log that is being written now
        self._hidden = hidden
        self._first: ev.ResponseBody | None = None
        self._parts: list[ev.ResponseBody] = []  # ended responses that another one continued
        self._output: list[Item] = []  # of `_parts`, with the tools' outputs
        self._pending: set[CallId] = set()
        self._last: ItemId | None = None  # the item whose child the next output is
        self._left_out: set[int] = set()  # output indices in the response that is being written
        self._next_number = 0
        self._before = tuple(before)
        self._hosted: HostedCalls | None = None  # set if calls of hosted tools are shown as OpenAI shows them
        self._hosted_outputs = 0  # outputs that are shown as a part of their calls

    def take(self, event: ev.AnyEvent) -> list[ev.ResponseEvent]:
        """Returns the events of the one shown response that an event of the log becomes."""
        if isinstance(event, ev.ItemCreated):
            return self._take_output(event.item) if self._pending else []
        if not isinstance(event, ev.ResponseEvent) or event.response_id != self.at:
            return []
        if isinstance(event, TERMINAL):
            return self._take_end(event)
        if isinstance(event, ev.ResponseCreated | ev.ResponseQueued) and not self._parts:
            self._first = event.response
            hosted = hosted_tools(event.response)
            if self._hosted is None and not self._hidden and hosted:
                self._hosted = HostedCalls(self.response_id, hosted, self._number)
        if self._hidden and self._is_hidden(event):
            return []
        if self._hosted is not None and (made := self._hosted.take(event, self._base)) is not None:
            return made
        if not self._parts and self._before and isinstance(event, ev.ResponseInProgress):
            return self._begun(event)
        if not self._parts and not self._output and self._hosted is None:
            return [event]
        if self._parts and isinstance(event, _BEGINNING):
            return []
        if self._hosted is None:
            return [self._moved(event)]
        added, cited = self._hosted.cite(event, self._base)
        return [*added, self._moved(cited)]

    @property
    def _base(self) -> int:
        """The output index in the shown response at which the response that is being written begins."""
        return len(self._output) - self._hosted_outputs

    def _begun(self, event: ev.ResponseInProgress) -> list[ev.ResponseEvent]:
        """Returns the first event, followed by the items that the answer continues from."""
        shown: list[ev.ResponseEvent] = [event if self._hosted is None else self._moved(event)]
        if self._hosted is None:
            self._next_number = event.sequence_number + 1
        for index, item in enumerate(self._before):
            where: dict[str, Any] = {"response_id": self.response_id, "output_index": index, "item": item}
            shown.append(ev.OutputItemAdded(sequence_number=self._number(), **where))
            shown.append(ev.OutputItemDone(sequence_number=self._number(), **where))
        self._output, self._before = list(self._before), ()
        return shown

    def _take_output(self, item: Item) -> list[ev.ResponseEvent]:
        if not isinstance(item, FunctionCallOutput) or item.call_id not in self._pending:
            return []
        if item.parent_id != self._last:  # of another branch, where a client has a call of the same id
            return []
        self._pending.remove(item.call_id)
        self._last = item.id
        if self._hidden:
            return []
        if self._hosted is not None and (made := self._hosted.answer(item)) is not None:
            self._output.append(item)
            self._hosted_outputs += 1
            return made
        index = self._base
        self._output.append(item)
        where: dict[str, Any] = {"response_id": self.response_id, "output_index": index, "item": item}
        added = ev.OutputItemAdded(sequence_number=self._number(), **where)
        return [added, ev.OutputItemDone(sequence_number=self._number(), **where)]

    def _take_end(self, event: ev.Terminal) -> list[ev.ResponseEvent]:
        body = event.response
        shown = [each for each in body.output if not (self._hidden and _is_servers(each))]
        asks = not self._hidden and any(waits(each) for each in body.output)
        if isinstance(body.continued_by, str) and not asks:
            if not self._parts and not self._output and self._hosted is None:
                self._next_number = event.sequence_number
            self._first = self._first or body
            self._parts.append(body)
            self._output += shown
            self._pending = {each.call_id for each in body.output if isinstance(each, FunctionCall)}
            self._last = body.output[-1].id
            self._left_out.clear()
            self.at = body.continued_by
            return []
        if not self._parts and not self._output and len(shown) == len(body.output) and self._hosted is None:
            return [event]
        left = [] if self._hosted is None else self._hosted.leave()
        first = self._first or body
        whole = msgspec.structs.replace(
            body,
            id=self.response_id,
            created_at=first.created_at,
            parent_id=first.parent_id,
            metadata=first.metadata,
            request=first.request,
            output=with_citations((*self._output, *shown), hosted_tools(first)),
            usage=added_usage([*(each.usage for each in self._parts), body.usage]),
        )
        numbered = self._parts or self._output or self._hosted is not None
        number = self._number() if numbered else event.sequence_number
        return [
            *left,
            msgspec.structs.replace(event, response_id=self.response_id, sequence_number=number, response=whole),
        ]

    def _moved(self, event: ev.ResponseEvent) -> ev.ResponseEvent:
        moved: dict[str, Any] = {"response_id": self.response_id, "sequence_number": self._number()}
        index = getattr(event, "output_index", None)
        if index is not None:
            moved["output_index"] = index + self._base
        return msgspec.structs.replace(event, **moved)

    def _is_hidden(self, event: ev.ResponseEvent) -> bool:
        if isinstance(event, ev.OutputItemAdded) and _is_servers(event.item):
            self._left_out.add(event.output_index)
        return getattr(event, "output_index", None) in self._left_out

    def _number(self) -> int:
        number = self._next_number
        self._next_number += 1
        return number


def _is_servers(item: Item) -> bool:
    return isinstance(item, FunctionCall) and item.server is True


def added_usage(usages: Iterable[dict[str, Json] | None]) -> dict[str, Json] | None:
    """Returns the usage of several responses added up; None if none of them has any."""
    given = [usage for usage in usages if usage is not None]
    if len(given) < 2:
        return given[0] if given else None
    total: dict[str, Any] = {}
    for usage in given:
        for name, value in usage.items():
            if isinstance(value, dict) and name != "cost":
                kept = total.setdefault(name, {})
                for each, count in value.items():
                    kept[each] = kept.get(each, 0) + count
            elif name != "cost":
                total[name] = total.get(name, 0) + value
    cost = sum_public(usage["cost"] for usage in given if "cost" in usage)
    return total if cost is None else {**total, "cost": cost}
