"""The conversation as its log has it: a fold of events into items, branches and responses.

Decides what a reader sees after each event: text so far, which responses are open, what was retracted, where the
newest item is. Invariants: the same events give the same view however they were cut, merged or resumed; a
snapshot followed by its tail gives the view of the whole log; events of unknown types change nothing. It does NOT
know offsets, connections or time. Positions in a text count code points, as Python strings do.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import Any

from ._items import Item, ResponseState, Review, difference
from ._values import entries, mapping_of, number_of, text_of, text_or_none

State = dict[str, Any]
#: what ``to_state`` keeps of a review and of a response, beside its id
_REVIEW_FIELDS = ("category", "response_id", "appealed", "outcome")
_RESPONSE_FIELDS = ("status", "usage", "error", "incomplete_reason", "dropped")
#: an index beyond this is a broken server's: it must not make us allocate
_INDEX_MAX = 4096
_IMAGE_TEXT = "\ufffc"  # an image is one character in the texts that retractions count in
_FIELDS = {"refusal": "refusal", "reasoning": "reasoning"}  # by kind of part; of others "text"


class View:
    """A conversation up to some offset."""

    def __init__(self) -> None:
        #: every item in log order
        self.items: dict[str, Item] = {}
        self.responses: dict[str, ResponseState] = {}
        #: by case: what a person looks at, and what was decided
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
        """The items after ``item_id`` (None: at the root), siblings in log order."""
        return [item for item in self.items.values() if item.parent_id == item_id]

    def output(self, response_id: str) -> list[Item]:
        """The items that a response has made so far, in order."""
        response = self.responses.get(response_id)
        if response is None:
            return []
        return [self.items[i] for _, i in sorted(response.output.items()) if i in self.items]

    def text(self, response_id: str) -> str:
        """The text of a response so far, retractions applied."""
        return "".join(item.text for item in self.output(response_id) if item.type == "message")

    @property
    def pending_calls(self) -> list[Item]:
        """Tool calls of completed responses that a client is to answer, and none has yet."""
        answered = {item.call_id for item in self.items.values() if item.type == "function_call_output"}
        return [
            item
            for response in self.responses.values()
            if response.status == "completed"
            for item in self.output(response.id)
            if item.type == "function_call" and item.call_id not in answered and not item.data.get("server")
        ]

    # Snapshots

    def to_state(self) -> State:
        """The view as a snapshot's ``state``; ``responses`` beside it keeps how the ended ones ended."""
        responses = self.responses.values()
        return {
            "items": _copies(self.items.values()),
            "open": [
                {"response_id": r.id, "output": _copies(self.output(r.id))}
                for r in responses
                if not r.ended and r.status != "queued"
            ],
            "queued": [
                {"response_id": r.id, "item": r.queued_item and copy.deepcopy(r.queued_item.data)}
                for r in responses
                if r.status == "queued"
            ],
            "head": self.head,
            "title": self.title,
            "metadata": copy.deepcopy(self.metadata),
            "reviews": [{"review_id": r.id, **_fields(r, _REVIEW_FIELDS)} for r in self.reviews.values()],
            "responses": [
                {"id": r.id, "output": {str(i): id for i, id in r.output.items()}, **_fields(r, _RESPONSE_FIELDS)}
                for r in responses
            ],
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> View:
        """The view that a snapshot (or ``to_state``) describes; parts that are missing are empty."""
        view = cls()
        for item_id, raw in entries(state.get("items"), "id"):
            view.items[item_id] = Item(copy.deepcopy(raw))
        view.head = text_or_none(state.get("head"))
        view._describe(state)
        for review_id, raw in entries(state.get("reviews"), "review_id"):
            view._review(review_id, raw, appealed=raw.get("appealed") is True, outcome=raw.get("outcome"))
        for item_id, response_id in mapping_of(state.get("made_by")).items():
            if item_id in view.items and isinstance(response_id, str):
                view.items[item_id].data["response_id"] = response_id
        for item in view.items.values():
            if item.response_id is not None:
                response = view._response(item.response_id, "ended")
                response.output[len(response.output)] = item.id
        for response in view.responses.values():
            statuses = {view.items[i].status for i in response.output.values()}
            if statuses in ({"completed"}, {"incomplete"}):
                response.status = statuses.pop()
        for response_id, reason in mapping_of(state.get("incomplete")).items():
            if response_id in view.responses and isinstance(reason, str):
                view.responses[response_id].status = "incomplete"
                view.responses[response_id].incomplete_reason = reason
        for response_id, raw in entries(state.get("responses"), "id"):
            view._restore_response(response_id, raw)
        for response_id, raw in entries(state.get("open"), "response_id"):
            view._restore_open(response_id, raw.get("output"))
        for response_id, raw in entries(state.get("queued"), "response_id"):
            view._queue(response_id, raw.get("item"))
        return view

    def _restore_response(self, response_id: str, raw: dict[str, Any]) -> None:
        if not isinstance(raw.get("status"), str):
            return
        response = self._response(response_id)
        for name in _RESPONSE_FIELDS:
            setattr(response, name, raw.get(name))
        if isinstance(raw.get("output"), dict):
            response.output = {int(index): item_id for index, item_id in raw["output"].items()}

    def _restore_open(self, response_id: str, output: object) -> None:
        response = self._response(response_id)
        response.status, response.output = "in_progress", {}
        for index, (item_id, item) in enumerate(entries(output, "id")):
            self.items[item_id] = Item({"response_id": response_id, **copy.deepcopy(item)})
            response.output[index] = item_id

    # Folding

    def apply(self, event: Mapping[str, Any]) -> None:
        """Take the next event of the log. Never fails on content: an odd field is as good as an absent one."""
        response_id = event.get("response_id")
        if not isinstance(response_id, str) or text_of(event.get("type")).endswith(".delta"):
            self._apply(event)
            return
        before = self.text(response_id)
        self._apply(event)
        after = self.text(response_id)
        if not after.startswith(before):
            self._response(response_id).edits.append(difference(before, after))

    def _apply(self, event: Mapping[str, Any]) -> None:
        match event:
            case {"type": "response.output_text.delta"}:
                self._append(event, "output_text", "text")
            case {"type": "response.output_text.done"}:
                self._replace(event, "output_text", "text")
            case {"type": "response.reasoning_text.delta"}:
                self._append(event, "reasoning", "reasoning")
            case {"type": "response.reasoning_text.done"}:
                self._replace(event, "reasoning", "reasoning", told="text")
            case {"type": "response.refusal.delta"}:
                self._append(event, "refusal", "refusal")
            case {"type": "response.refusal.done"}:
                self._replace(event, "refusal", "refusal")
            case {"type": "response.function_call_arguments.delta"}:
                data = self._item_of(event, "function_call").data
                data["arguments"] = str(data.get("arguments") or "") + text_of(event.get("delta"))
            case {"type": "response.function_call_arguments.done"}:
                self._item_of(event, "function_call").data["arguments"] = text_of(event.get("arguments"))
            case {
                "type": "response.output_item.added" | "response.output_item.done",
                "response_id": str(response_id),
                "item": {"id": str()} as item,
            }:
                self._output_item(response_id, number_of(event.get("output_index")), copy.deepcopy(item))
            case {"type": "response.content_part.added" | "response.content_part.done", "part": dict(part)}:
                message = self._item_of(event, "message")
                self._set_part(message, number_of(event.get("content_index")), copy.deepcopy(part))
            case {"type": "response.queued", "response_id": str(response_id)}:
                self._queue(response_id, event.get("item"))
            case {"type": "response.created" | "response.in_progress", "response_id": str(response_id)}:
                response = self._response(response_id)
                response.queued_item = None
                if not response.ended:
                    response.status = "in_progress"
            case {
                "type": "response.completed" | "response.incomplete" | "response.failed" as name,
                "response_id": str(response_id),
            }:
                self._end(response_id, name.removeprefix("response."), mapping_of(event.get("response")))
            case {"type": "content.retracted", "category": "item_deleted", "item_id": str(item_id)}:
                self._remove(item_id)
            case {"type": "content.retracted"}:
                self._retract(event)
            case {"type": "review.appealed", "review_id": str(review_id)}:
                self._review(review_id, event, appealed=True, outcome=None)
            case {"type": "review.decided", "review_id": str(review_id)}:
                self._review(review_id, event, appealed=None, outcome=event.get("outcome"))
            case {"type": "context.fitted", "response_id": str(response_id)}:
                self._response(response_id).dropped = number_of(event.get("dropped"))
            case {"type": "item.created", "item": {"id": str()} as item}:
                self._put(copy.deepcopy(item))
            case {"type": "session.created" | "session.updated", "info": dict(info)}:
                self._describe(info)
            case {"type": "session.deleted"}:
                self.deleted = True

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

    def _output_item(self, response_id: str, index: int, data: dict[str, Any]) -> None:
        known = self.items.get(data["id"])
        for name in ("parent_id", "created_at"):
            if name not in data and known is not None and name in known.data:
                data[name] = known.data[name]
        data.setdefault("parent_id", self.head)
        data.setdefault("response_id", response_id)
        self._response(response_id).output[index] = data["id"]
        if known is None:
            self._put(data)
        else:
            known.data = data

    def _end(self, response_id: str, status: str, raw: Mapping[str, Any]) -> None:
        response = self._response(response_id)
        response.status = status
        response.usage = raw.get("usage") if isinstance(raw.get("usage"), dict) else None
        response.error = raw.get("error") if isinstance(raw.get("error"), dict) else None
        reason = text_or_none(mapping_of(raw.get("incomplete_details")).get("reason"))
        response.incomplete_reason = response.incomplete_reason if reason is None else reason
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
        target, field = item.data, "arguments"
        if item.type != "function_call":
            target = self._part(item, number_of(event.get("content_index")), "output_text")
            field = _FIELDS.get(str(target.get("type")), "text")
        is_image = target.get("type") == "input_image"
        text = _IMAGE_TEXT if is_image else text_of(target.get(field))
        left = text[:start] + replacement + text[end:]
        if not is_image:
            target[field] = left
        elif left != text:
            target.clear()
            target["type"] = "input_image"

    def _remove(self, item_id: str) -> None:
        """Takes an item out; what stood below it stands below its parent."""
        removed = self.items.pop(item_id, None)
        if removed is not None:
            for below in self.items.values():
                if below.parent_id == item_id:
                    below.data["parent_id"] = removed.parent_id
            if self.head == item_id:
                self.head = removed.parent_id

    def _review(self, review_id: str, raw: Mapping[str, Any], *, appealed: bool | None, outcome: object) -> None:
        """Takes a case from a snapshot or an event. ``appealed`` None: as it was."""
        review = self.reviews.setdefault(review_id, Review(review_id))
        review.category = text_of(raw.get("category"))
        review.response_id = text_or_none(raw.get("response_id"))
        review.appealed = review.appealed if appealed is None else appealed
        review.outcome = text_or_none(outcome)

    def _describe(self, info: Mapping[str, Any]) -> None:
        self.title = text_or_none(info.get("title"))
        self.metadata = copy.deepcopy(dict(mapping_of(info.get("metadata"))))

    def _append(self, event: Mapping[str, Any], kind: str, field: str) -> None:
        part = self._part(self._item_of(event, "message"), number_of(event.get("content_index")), kind)
        part[field] = text_of(part.get(field)) + text_of(event.get("delta"))

    def _replace(self, event: Mapping[str, Any], kind: str, field: str, *, told: str | None = None) -> None:
        part = self._part(self._item_of(event, "message"), number_of(event.get("content_index")), kind)
        part[field] = text_of(event.get(told or field))

    def _part(self, item: Item, index: int, kind: str) -> dict[str, Any]:
        index = min(index, _INDEX_MAX)
        content = item.data.get("content")
        if not isinstance(content, list) or index >= len(content) or not isinstance(content[index], dict):
            self._set_part(item, index, {"type": kind, _FIELDS.get(kind, "text"): ""})
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


def _copies(items: Iterable[Item]) -> list[dict[str, Any]]:
    return [copy.deepcopy(item.data) for item in items]


def _fields(source: object, names: Iterable[str]) -> dict[str, Any]:
    return {name: getattr(source, name) for name in names}
