"""The conversation as its log tells it: a fold of events into items, branches and responses.

Decides what a reader sees after each event: text so far, which responses are open, what was retracted, where the
newest item is. Invariants: the same events give the same view however they were cut, merged or resumed; a
snapshot followed by its tail gives the view of the whole log; events of unknown types change nothing. It does NOT
know offsets, connections or time. Positions in a text count code points, as Python strings do.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from ._items import Item, ResponseState, Review, dicts, difference, number_of, text_of

State = dict[str, Any]
#: events that may change what was already said, beside adding to it
_REWRITES = frozenset(
    {
        "content.retracted",
        "response.content_part.added",
        "response.content_part.done",
        "response.output_item.added",
        "response.output_item.done",
        "response.output_text.done",
        "response.refusal.done",
    }
)
#: an index beyond this is a broken server's: it must not make us allocate
_INDEX_MAX = 4096


class View:
    """A conversation up to some offset."""

    def __init__(self) -> None:
        #: every item in log order
        self.items: dict[str, Item] = {}
        self.responses: dict[str, ResponseState] = {}
        #: by case: what a person was asked to look at, and what was decided
        self.reviews: dict[str, Review] = {}
        self.head: str | None = None
        self.title: str | None = None
        self.metadata: dict[str, Any] = {}
        self.deleted = False

    # Reading

    @property
    def open(self) -> list[str]:
        """Ids of the responses that have not ended, oldest first."""
        return [r.id for r in self.responses.values() if not r.ended]

    def branch(self, leaf: str | None = None) -> list[Item]:
        """The path from the root to ``leaf`` (the head by default)."""
        path: list[Item] = []
        seen: set[str] = set()
        at = leaf if leaf is not None else self.head
        while at is not None and at not in seen and (item := self.items.get(at)) is not None:
            seen.add(at)
            path.append(item)
            at = item.parent_id
        return path[::-1]

    def children(self, item_id: str | None) -> list[Item]:
        """What was said after ``item_id`` (None: at the root), siblings in log order."""
        return [item for item in self.items.values() if item.parent_id == item_id]

    def output(self, response_id: str) -> list[Item]:
        """The items that a response has made so far, in order."""
        response = self.responses.get(response_id)
        if response is None:
            return []
        return [self.items[i] for _, i in sorted(response.output.items()) if i in self.items]

    def text(self, response_id: str) -> str:
        """What a response has said so far, retractions applied."""
        return "".join(item.text for item in self.output(response_id) if item.type == "message")

    @property
    def pending_calls(self) -> list[Item]:
        """Tool calls of completed responses that nobody has answered yet."""
        answered = {item.call_id for item in self.items.values() if item.type == "function_call_output"}
        return [
            item
            for response in self.responses.values()
            if response.status == "completed"
            for item in self.output(response.id)
            if item.type == "function_call" and item.call_id not in answered
        ]

    # Snapshots

    def to_state(self) -> State:
        """The view as a snapshot's ``state``; ``responses`` beside it keeps how the ended ones ended."""
        opened = [
            {
                "response_id": r.id,
                "output": [copy.deepcopy(item.data) for item in self.output(r.id)],
            }
            for r in self.responses.values()
            if not r.ended and r.status != "queued"
        ]
        queued = [
            {
                "response_id": r.id,
                "item": copy.deepcopy(r.queued_item.data) if r.queued_item is not None else None,
            }
            for r in self.responses.values()
            if r.status == "queued"
        ]
        return {
            "items": [copy.deepcopy(item.data) for item in self.items.values()],
            "open": opened,
            "queued": queued,
            "head": self.head,
            "title": self.title,
            "metadata": copy.deepcopy(self.metadata),
            "reviews": [
                {
                    "review_id": review.id,
                    "category": review.category,
                    "response_id": review.response_id,
                    "appealed": review.appealed,
                    "outcome": review.outcome,
                }
                for review in self.reviews.values()
            ],
            "responses": [
                {
                    "id": r.id,
                    "status": r.status,
                    "output": {str(i): item_id for i, item_id in r.output.items()},
                    "usage": r.usage,
                    "error": r.error,
                    "incomplete_reason": r.incomplete_reason,
                    "dropped": r.dropped,
                }
                for r in self.responses.values()
            ],
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> View:
        """The view that a snapshot (or ``to_state``) describes; parts that are missing are empty."""
        view = cls()
        for raw in dicts(state.get("items")):
            if isinstance(raw.get("id"), str):
                view.items[raw["id"]] = Item(copy.deepcopy(raw))
        head, title, metadata = state.get("head"), state.get("title"), state.get("metadata")
        view.head = head if isinstance(head, str) else None
        view.title = title if isinstance(title, str) else None
        view.metadata = copy.deepcopy(metadata) if isinstance(metadata, dict) else {}
        for raw in dicts(state.get("reviews")):
            view._review(raw, appealed=raw.get("appealed") is True, outcome=raw.get("outcome"))
        made_by = state.get("made_by")
        if isinstance(made_by, dict):
            for item_id, response_id in made_by.items():
                if item_id in view.items and isinstance(response_id, str):
                    view.items[item_id].data["response_id"] = response_id
        for item in view.items.values():
            if item.response_id is not None:
                response = view._response(item.response_id, "ended")
                response.output[len(response.output)] = item.id
        for response in view.responses.values():
            statuses = {view.items[i].status for i in response.output.values()}
            if statuses == {"completed"} or statuses == {"incomplete"}:
                response.status = statuses.pop()
        reasons = state.get("incomplete")
        for response_id, reason in reasons.items() if isinstance(reasons, dict) else ():
            if response_id in view.responses and isinstance(reason, str):
                view.responses[response_id].status = "incomplete"
                view.responses[response_id].incomplete_reason = reason
        for raw in dicts(state.get("responses")):
            view._restore_response(raw)
        for raw in dicts(state.get("open")):
            if isinstance(raw.get("response_id"), str):
                view._restore_open(raw)
        for raw in dicts(state.get("queued")):
            if isinstance(raw.get("response_id"), str):
                view._queue(raw["response_id"], raw.get("item"))
        return view

    def _restore_response(self, raw: dict[str, Any]) -> None:
        if not isinstance(raw.get("id"), str) or not isinstance(raw.get("status"), str):
            return
        response = self._response(raw["id"], raw["status"])
        response.status = raw["status"]
        output = raw.get("output")
        if isinstance(output, dict):
            response.output = {int(index): item_id for index, item_id in output.items()}
        response.usage, response.error = raw.get("usage"), raw.get("error")
        response.incomplete_reason, response.dropped = raw.get("incomplete_reason"), raw.get("dropped")

    def _restore_open(self, raw: dict[str, Any]) -> None:
        response = self._response(raw["response_id"])
        response.status = "in_progress"
        response.output = {}
        for index, item in enumerate(dicts(raw.get("output"))):
            if isinstance(item.get("id"), str):
                data = copy.deepcopy(item)
                data.setdefault("response_id", response.id)
                self.items[data["id"]] = Item(data)
                response.output[index] = data["id"]

    # Folding

    def apply(self, event: Mapping[str, Any]) -> None:
        """Take the next event of the log. Never fails on content: an odd field is as good as an absent one."""
        response_id = event.get("response_id")
        if event.get("type") not in _REWRITES or not isinstance(response_id, str):
            self._apply(event)
            return
        before = self.text(response_id)
        self._apply(event)
        after = self.text(response_id)
        if not after.startswith(before):
            self._response(response_id).edits.append(difference(before, after))

    def _apply(self, event: Mapping[str, Any]) -> None:
        name = event.get("type")
        match name:
            case "response.output_text.delta":
                self._append(event, "output_text", "text")
            case "response.output_text.done":
                self._replace(event, "output_text", "text")
            case "response.refusal.delta":
                self._append(event, "refusal", "refusal")
            case "response.refusal.done":
                self._replace(event, "refusal", "refusal")
            case "response.function_call_arguments.delta":
                data = self._item_of(event, "function_call").data
                data["arguments"] = str(data.get("arguments") or "") + text_of(event.get("delta"))
            case "response.function_call_arguments.done":
                self._item_of(event, "function_call").data["arguments"] = text_of(event.get("arguments"))
            case "response.output_item.added" | "response.output_item.done":
                self._output_item(event)
            case "response.content_part.added" | "response.content_part.done":
                if isinstance(event.get("part"), dict):
                    item = self._item_of(event, "message")
                    self._set_part(item, number_of(event.get("content_index")), copy.deepcopy(event["part"]))
            case "response.queued":
                if isinstance(event.get("response_id"), str):
                    self._queue(event["response_id"], event.get("item"))
            case "response.created" | "response.in_progress":
                if isinstance(event.get("response_id"), str):
                    response = self._response(event["response_id"])
                    response.queued_item = None
                    if not response.ended:
                        response.status = "in_progress"
            case "response.completed" | "response.incomplete" | "response.failed":
                self._end(event, str(name).partition(".")[2])
            case "content.retracted":
                self._retract(event)
            case "review.appealed":
                self._review(event, appealed=True, outcome=None)
            case "review.decided":
                self._review(event, appealed=None, outcome=event.get("outcome"))
            case "context.fitted":
                if isinstance(event.get("response_id"), str):
                    self._response(event["response_id"]).dropped = number_of(event.get("dropped"))
            case "item.created":
                item_raw = event.get("item")
                if isinstance(item_raw, dict) and isinstance(item_raw.get("id"), str):
                    self._put(copy.deepcopy(item_raw))
            case "session.created" | "session.updated":
                self._describe(event)
            case "session.deleted":
                self.deleted = True
            case _:
                pass

    def _put(self, data: dict[str, Any]) -> Item:
        item = Item(data)
        self.items[item.id] = item
        self.head = item.id
        return item

    def _response(self, response_id: str, status: str = "in_progress") -> ResponseState:
        response = self.responses.get(response_id)
        if response is None:
            response = self.responses[response_id] = ResponseState(response_id, status)
        return response

    def _queue(self, response_id: str, item: object) -> None:
        response = self._response(response_id, "queued")
        if not response.ended:
            response.status = "queued"
            if isinstance(item, dict) and isinstance(item.get("id"), str):
                response.queued_item = Item(copy.deepcopy(item))

    def _item_of(self, event: Mapping[str, Any], type_: str) -> Item:
        """The item that an output event names; made if the log had not shown it, so that its text is not lost."""
        item_id = text_of(event.get("item_id"))
        item = self.items.get(item_id)
        if item is None:
            response_id = event.get("response_id")
            item = self._put(
                {"id": item_id, "parent_id": self.head, "type": type_, "status": "in_progress", "content": []}
            )
            if isinstance(response_id, str):
                item.data["response_id"] = response_id
                self._response(response_id).output.setdefault(number_of(event.get("output_index")), item_id)
        return item

    def _output_item(self, event: Mapping[str, Any]) -> None:
        raw, response_id = event.get("item"), event.get("response_id")
        if not isinstance(raw, dict) or not isinstance(raw.get("id"), str) or not isinstance(response_id, str):
            return
        data = copy.deepcopy(raw)
        known = self.items.get(data["id"])
        for name in ("parent_id", "created_at"):
            if name not in data and known is not None and name in known.data:
                data[name] = known.data[name]
        data.setdefault("parent_id", self.head)
        data.setdefault("response_id", response_id)
        self._response(response_id).output[number_of(event.get("output_index"))] = data["id"]
        if known is None:
            self._put(data)
        else:
            known.data = data

    def _end(self, event: Mapping[str, Any], status: str) -> None:
        response_id, raw = event.get("response_id"), event.get("response")
        raw = raw if isinstance(raw, dict) else {}
        if not isinstance(response_id, str):
            return
        response = self._response(response_id)
        response.status = status
        response.usage = raw.get("usage") if isinstance(raw.get("usage"), dict) else None
        response.error = raw.get("error") if isinstance(raw.get("error"), dict) else None
        details = raw.get("incomplete_details")
        if isinstance(details, dict) and isinstance(details.get("reason"), str):
            response.incomplete_reason = details["reason"]
        response.queued_item = None
        for item in self.output(response_id):
            if item.status == "in_progress":
                item.data["status"] = "completed" if status == "completed" else "incomplete"

    def _retract(self, event: Mapping[str, Any]) -> None:
        item = self.items.get(text_of(event.get("item_id")))
        if item is None:
            return
        start, end = number_of(event.get("start")), number_of(event.get("end"))
        replacement = text_of(event.get("replacement"))
        if item.type == "function_call":
            text = item.arguments
            item.data["arguments"] = text[:start] + replacement + text[end:]
            return
        part = self._part(item, number_of(event.get("content_index")), "output_text")
        field = "refusal" if part.get("type") == "refusal" else "text"
        text = text_of(part.get(field))
        part[field] = text[:start] + replacement + text[end:]

    def _review(self, told: Mapping[str, Any], *, appealed: bool | None, outcome: object) -> None:
        """Takes what a snapshot or an event says of a case. ``appealed`` None: as it was."""
        review_id, response_id = told.get("review_id"), told.get("response_id")
        if not isinstance(review_id, str):
            return
        review = self.reviews.setdefault(review_id, Review(review_id))
        review.category = text_of(told.get("category"))
        review.response_id = response_id if isinstance(response_id, str) else None
        review.appealed = review.appealed if appealed is None else appealed
        review.outcome = outcome if isinstance(outcome, str) else None

    def _describe(self, event: Mapping[str, Any]) -> None:
        info = event.get("info")
        if isinstance(info, dict):
            title, metadata = info.get("title"), info.get("metadata")
            self.title = title if isinstance(title, str) else None
            self.metadata = copy.deepcopy(metadata) if isinstance(metadata, dict) else {}

    def _append(self, event: Mapping[str, Any], kind: str, field: str) -> None:
        part = self._part(self._item_of(event, "message"), number_of(event.get("content_index")), kind)
        part[field] = text_of(part.get(field)) + text_of(event.get("delta"))

    def _replace(self, event: Mapping[str, Any], kind: str, field: str) -> None:
        part = self._part(self._item_of(event, "message"), number_of(event.get("content_index")), kind)
        part[field] = text_of(event.get(field))

    def _part(self, item: Item, index: int, kind: str) -> dict[str, Any]:
        index = min(index, _INDEX_MAX)
        content = item.data.get("content")
        if not isinstance(content, list) or index >= len(content) or not isinstance(content[index], dict):
            self._set_part(item, index, {"type": kind, ("refusal" if kind == "refusal" else "text"): ""})
        part = item.data["content"][index]
        assert isinstance(part, dict)
        return part

    @staticmethod
    def _set_part(item: Item, index: int, part: dict[str, Any]) -> None:
        content = item.data.get("content")
        index = min(index, _INDEX_MAX)
        if not isinstance(content, list):
            content = item.data["content"] = []
        while len(content) <= index:
            content.append({"type": "output_text", "text": ""})
        content[index] = part
