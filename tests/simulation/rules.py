"""The grammar of a log, written down a second time: what may follow what, and what it adds up to.

`Rules` takes a session's records one by one, as they become durable, and says what is wrong with the first that is out
of place. It folds them as it goes, by code that shares nothing with `sessions.machine.state`, so that snapshots, queues
and answers can be compared with what the log says. What an answer must say is in `tests.simulation.oracle`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from sessions.model import events as ev
from sessions.model.types import (
    CallId,
    FunctionCall,
    FunctionCallOutput,
    Item,
    ItemId,
    Message,
    OutputText,
    Principal,
    Sampling,
)

TERMINALS = (ev.ResponseCompleted, ev.ResponseIncomplete, ev.ResponseFailed)
STATUS = {ev.ResponseCompleted: "completed", ev.ResponseIncomplete: "incomplete", ev.ResponseFailed: "failed"}


class Broken(Exception):
    """A record that may not stand where it stands."""


def need(holds: object, text: str) -> None:
    if not holds:
        raise Broken(text)


class Part:
    """An output item that is being written."""

    def __init__(self, item: Item) -> None:
        self.item = item
        self.text: list[str] = []
        self.opened = self.part_done = self.text_done = self.done = False

    @property
    def so_far(self) -> str:
        return "".join(self.text)


class Response:
    def __init__(self, id: str) -> None:
        self.id = id
        self.sequence = 0
        self.status = "queued"
        self.parent: str | None = None
        self.parts: list[Part] = []
        self.after: str | None = None
        self.queued_item: Item | None = None
        self.sampling: Sampling | None = None
        self.principal: Principal | None = None
        self.tokens = b""  # the ledger as the deltas told it
        self.tail = ""  # what was said beyond its last whole token
        self.cut: str | None = None  # the first item of its prompt, if not all are in it
        self.took_place = False  # it has a place on a branch: it began, or its message was taken up by another turn
        self.scrubbed = False  # something of it was taken back: its text is its ledger
        self.disturbed = False  # something was taken back while it was written: its prompt is no longer known
        self.terminal: ev.Terminal | None = None
        self.moves = 0  # migrations while it was open
        self.created_at = 0  # offsets
        self.ended_at = 0

    @property
    def open(self) -> bool:
        return self.status == "in_progress"


class Summary:
    """A summary: prompts have it in place of the first `count` items of branches that go on from `read`."""

    def __init__(self, event: ev.ContextCompacted, tokens: bytes) -> None:
        self.id, self.text, self.model = event.summary.id, event.summary.text, event.model
        self.count, self.read, self.tokens = event.items, event.read_item_id, tokens


class Rules:
    """One session's log so far."""

    def __init__(self) -> None:
        self.top = 0
        self.at = 0
        self.info: ev.SessionInfo | None = None
        self.deleted = False
        self.items: dict[str, Item] = {}
        self.made_by: dict[str, str] = {}
        self.newest: str | None = None
        self.responses: dict[str, Response] = {}
        self.queue: list[Response] = []
        self.awaiting: dict[str, tuple[list[CallId], ItemId]] = {}  # response -> (missing calls, last item)
        self.item_tokens: dict[str, bytes] = {}
        self.unanswered: dict[str, str] = {}  # question -> the cut of a response that said nothing to it
        self.moved_by: list[str] = []  # causes
        self.stale_moves = 0  # takeovers since anything was achieved
        self.gave_up_at = -1  # ms
        self.created: dict[str, int] = {}  # item -> offset, of items that people made
        self.first_response: dict[str, int] = {}  # response -> offset of its first record
        self.taken_back: list[tuple[int, str, bool]] = []  # (offset, item, by people?), each with all of its text
        self.lost: list[str] = []  # texts that people had taken back
        self.removed: set[str] = set()  # items that are out of the tree
        self.stale_title = False  # the server made it before something was taken back
        self.pinned: list[str] = []
        self.summaries: dict[str, Summary] = {}  # all whose text is in the log
        self.in_force: list[Summary] = []
        self.compacted_at = 0  # offset of the last event about summaries

    @property
    def open(self) -> list[Response]:
        return [response for response in self.responses.values() if response.open]

    @property
    def busy(self) -> bool:
        return bool(self.open or self.queue or self.awaiting)

    def take(self, record: ev.Record) -> None:
        """Raises Broken."""
        event = record.event
        need(record.offset == self.top + 1, f"offset {record.offset} after {self.top}")
        need(record.at >= self.at, "the time went back")
        need(not self.deleted, "something stands behind session.deleted")
        need((self.top == 0) == isinstance(event, ev.SessionCreated), "the log begins with session.created, once")
        self.top, self.at = record.offset, record.at
        if isinstance(event, ev.ResponseEvent):
            self._response_event(event, record.private, record.offset)
            return
        match event:
            case ev.SessionCreated() | ev.SessionUpdated():
                self.info, self.stale_title = event.info, False
            case ev.SessionDeleted():
                need(not self.open and not self.queue, "deleted with an open response")
                self.deleted = True
                self.awaiting.clear()
            case ev.SessionMigrated():
                need(self.open, "a migration of a session at rest is nobody's business")
                self.moved_by.append(event.cause)
                self.stale_moves += event.cause != "handoff"
                for response in self.open:
                    response.moves += 1
            case ev.ItemCreated():
                self._item(event.item, record.private, record.offset)
            case ev.ContextFitted():
                need(event.response_id in self.responses, "a fitting of nothing")
                assert record.private is not None and record.private.cut is not None
                response = self.responses[event.response_id]
                need(any(item.id == record.private.cut for item in self.path(response.parent)), "a cut elsewhere")
                response.cut = record.private.cut
            case ev.ContentRetracted():
                self._taken_back(event)
            case ev.ContextCompacted():
                self._compacted(event, record.private)
            case ev.CompactionUndone():
                undone = self.summaries.get(event.compaction_id)
                need(not self.busy and undone in self.in_force, "nothing to undo, or in a turn")
                self.in_force = [summary for summary in self.in_force if summary is not undone]
                self.compacted_at = self.top
            case ev.CompactionFailed():
                need(event.compaction_id not in self.summaries, "failed after it was there")
            case ev.ItemPinned():
                need(not self.busy and event.item_id in self.items, "a pin in nothing, or in a turn")
                need((event.item_id in self.pinned) != event.pinned, "pinned twice")
                self.pinned = [*self.pinned, event.item_id] if event.pinned else without(self.pinned, event.item_id)
            case _:
                raise Broken(f"{type(event).__name__} is not expected here")

    # -- summaries --------------------------------------------------------------------------------------------------

    def _compacted(self, event: ev.ContextCompacted, private: ev.Private | None) -> None:
        need(not self.busy, "a summary in a turn")
        need(
            event.read_item_id in self.items and event.summary.id not in self.summaries,
            "a summary of nothing, or twice",
        )
        path = self.path(event.read_item_id)
        covered, rest = path[: event.items], path[event.items :]
        need(covered and len(covered) == event.items, f"{event.items} items of {len(path)}")
        need((covered[0].id, covered[-1].id) == (event.first_item_id, event.last_item_id), "other items")
        need(not rest or getattr(rest[0], "role", "") == "user", "a turn is parted")
        calls = {item.call_id for item in covered if isinstance(item, FunctionCall)}
        parted = any(isinstance(item, FunctionCallOutput) and item.call_id in calls for item in rest)
        need(not parted, "a call is parted from its output")
        assert private is not None
        summary = self.summaries[event.summary.id] = Summary(event, private.tokens)
        self.in_force.append(summary)
        self.compacted_at = self.top
        for response in self.responses.values():  # prompts are fitted anew
            response.cut = None
        self.unanswered.clear()

    def summary_on(self, leaf: str | None) -> Summary | None:
        """The newest in force that holds on a branch."""
        on = {item.id for item in self.path(leaf)}
        return next((summary for summary in reversed(self.in_force) if summary.read in on), None)

    # -- what is taken back -----------------------------------------------------------------------------------------

    def _taken_back(self, event: ev.ContentRetracted) -> None:
        """People take back whole texts, nothing else does."""
        item_id, item = event.item_id, self.items.get(event.item_id)
        self.taken_back.append((self.top, item_id, event.category != "compaction_voided"))
        if event.category == "compaction_voided":
            voided = self.summaries.pop(item_id, None)
            need(voided is not None and (event.start, event.end) == (0, len(voided.text)), "a summary in part, or none")
            self.in_force = [summary for summary in self.in_force if summary is not voided]
            self.compacted_at = self.top
            return
        for summary in self.summaries.values():
            read = any(item.id == item_id for item in self.path(summary.read))
            need(not read, f"the summary {summary.id} outlives {item_id}, which it has read")
        maker = self.responses.get(event.response_id)
        need(self.made_by.get(item_id, event.response_id) == event.response_id, "of another response")
        stands = maker is not None and any(part.item.id in self.items for part in maker.parts)
        need(item is not None or (maker is not None and not stands), f"there is no {item_id} to take back")
        need(event.category in ("deleted", "item_deleted"), f"taken back as {event.category}")
        for response in self.open:
            response.disturbed = True
        self.stale_title = self.info is not None and self.info.title_made is True
        if item is None:
            return
        text = said(item)
        need((event.start, event.end, event.content_index) == (0, len(text), 0), f"{item_id} is taken back in part")
        self.lost.append(text)
        if maker is not None:
            need(maker.terminal is not None, "taken back while it was written")
            maker.scrubbed = True
        if event.category == "item_deleted":
            need(not self.busy, "an item is deleted in a turn")
            self._remove(item)
        elif isinstance(item, Message):
            content = tuple(replace(part, text=event.replacement) for part in item.content)
            self.items[item_id] = replace(item, content=content)
        else:
            field = "arguments" if isinstance(item, FunctionCall) else "output"
            self.items[item_id] = replace(item, **{field: event.replacement})

    def _remove(self, item: Item) -> None:
        """Removes an item: what stood below it stands below the one above it."""
        del self.items[item.id]
        self.removed.add(item.id)
        for other in list(self.items.values()):
            if other.parent_id == item.id:
                self.items[other.id] = replace(other, parent_id=item.parent_id)
        if self.newest == item.id:
            self.newest = item.parent_id
        for response in self.responses.values():
            if response.cut == item.id:
                response.cut = None
            if response.parent == item.id:
                response.parent = item.parent_id
        self.unanswered = {of: cut for of, cut in self.unanswered.items() if item.id not in (of, cut)}
        self.pinned = without(self.pinned, item.id)
        self.made_by.pop(item.id, None)
        self.item_tokens.pop(item.id, None)

    # -- items ------------------------------------------------------------------------------------------------------

    def _add(self, item: Item) -> None:
        need(item.id not in self.items, f"the item {item.id} is there already")
        need(item.parent_id is None or item.parent_id in self.items, f"{item.id} stands below nothing")
        self.items[item.id] = item
        self.newest = item.id

    def _item(self, item: Item, private: ev.Private | None, offset: int) -> None:
        self._add(item)
        self.created[item.id] = offset
        self.stale_moves = 0
        if private is not None:
            self.item_tokens[item.id] = private.tokens
        if isinstance(item, FunctionCallOutput):
            for response_id, (missing, _) in list(self.awaiting.items()):
                if item.call_id in missing:
                    missing.remove(item.call_id)
                    if missing:
                        self.awaiting[response_id] = missing, item.id
                    else:
                        del self.awaiting[response_id]
                    return
            raise Broken(f"an output for {item.call_id}, which nobody waits for")

    def path(self, leaf: str | None) -> list[Item]:
        found = []
        while leaf is not None:
            found.append(self.items[leaf])
            leaf = self.items[leaf].parent_id
        return found[::-1]

    def _free(self, parent: str | None, beginning: str) -> None:
        """Nothing on the branch is being written, and no turn on it waits for tools."""
        for item in self.path(parent):
            maker = self.made_by.get(item.id)
            if maker is not None:
                need(not self.responses[maker].open, f"{beginning} begins below {maker}, which is being written")
                need(maker not in self.awaiting, f"{beginning} begins while {maker} waits for tools")

    # -- responses --------------------------------------------------------------------------------------------------

    def _response_event(self, event: ev.ResponseEvent, private: ev.Private | None, offset: int) -> None:
        response = self.responses.get(event.response_id)
        if response is None:
            need(isinstance(event, ev.ResponseQueued | ev.ResponseCreated), "a response begins by being created")
            response = self.responses[event.response_id] = Response(event.response_id)
            self.first_response[response.id] = offset
        need(response.terminal is None, f"{response.id} goes on after its end")
        need(event.sequence_number == response.sequence, f"{response.id} has no number {response.sequence}")
        response.sequence += 1
        match event:
            case ev.ResponseQueued():
                assert private is not None
                need(response.sequence == 1, "queued once, at the beginning")
                response.after, response.queued_item = private.after, event.item
                if private.tokens and event.item is not None:
                    self.item_tokens[event.item.id] = private.tokens
                place = len(self.queue)
                if event.steers is True:  # the next to begin, with all others behind it
                    place = next((n for n, other in enumerate(self.queue) if other.after == private.after), place)
                    self._follow(private.after, response.id)
                self.queue.insert(place, response)
            case ev.ResponseCreated():
                assert private is not None
                need(response.status == "queued" and not response.created_at, f"{response.id} is created twice")
                self._created(response, event, private, offset)
            case ev.ResponseInProgress():
                need(response.open and response.sequence <= 3 and not response.parts, "in_progress follows created")
            case _ if isinstance(event, TERMINALS):
                self._ended(response, event, private, offset)
            case _:
                need(response.open, f"{response.id} is not being written")
                self._output(response, event, private)

    def _created(self, response: Response, event: ev.ResponseCreated, private: ev.Private, offset: int) -> None:
        if response in self.queue:
            first = next(waiting for waiting in self.queue if waiting.after == response.after)
            need(first is response, f"{response.id} overtakes {first.id}")
            before = self.responses.get(response.after or "")
            need(before is None or before.terminal is not None, f"{response.id} did not wait for {response.after}")
            self.queue.remove(response)
            self._follow(response.after, response.id)
            item = response.queued_item
            need(item is None or event.response.parent_id == item.id, f"{response.id} answers something else")
        self._follow(private.after, response.id)
        self._free(event.response.parent_id, response.id)
        response.status = "in_progress"
        response.parent = event.response.parent_id
        response.sampling, response.principal = private.sampling, private.principal
        response.created_at, response.took_place = offset, True
        response.cut = self.cut_of(response.parent)
        need(response.parent is None or response.parent in self.items, "an answer to nothing")

    def ends_of(self, response: Response) -> Sequence[str | None]:
        """Returns the ends that a turn behind this response may stand below; none if it never began, or is deleted."""
        if response.parts:
            return [part.item.id for part in response.parts if part.item.id in self.items][-1:]
        return [response.parent] if response.took_place else []

    def _follow(self, ended: str | None, instead: str | None) -> None:
        for waiting in self.queue:
            if ended is not None and waiting.after == ended:
                waiting.after = instead

    def cut_of(self, parent: str | None) -> str | None:
        """Where the prompt begins: as that of the answer before, or of one that never came to a question since."""
        for item in reversed(self.path(parent)):
            if item.id in self.made_by:
                return self.responses[self.made_by[item.id]].cut
            if item.id in self.unanswered:
                return self.unanswered[item.id]
        return None

    def _output(self, response: Response, event: ev.ResponseEvent, private: ev.Private | None) -> None:
        if isinstance(event, ev.OutputItemAdded):
            need(not response.parts or response.parts[-1].done, "an item begins inside another")
            need(event.output_index == len(response.parts), "items are numbered in order")
            last = response.parts[-1].item.id if response.parts else response.parent
            need(event.item.parent_id == last, "an item stands below the one before it")
            response.parts.append(Part(event.item))
            self._add(event.item)
            self.made_by[event.item.id] = response.id
            response.tokens += private.tokens if private is not None else b""
            return
        need(response.parts, "output before any item")
        part = response.parts[-1]
        need(not part.done, "output behind the item's end")
        match event:
            case ev.ContentPartAdded():
                need(not part.opened, "one part")
                part.opened = True
            case ev.OutputTextDelta():
                need(part.opened and not part.text_done and event.item_id == part.item.id, "a delta out of place")
                need(event.delta, "a delta of nothing")
                part.text.append(event.delta)
                self._progress(response, private)
            case ev.ArgumentsDelta():
                need(isinstance(part.item, FunctionCall) and not part.text_done, "arguments out of place")
                part.text.append(event.delta)
                self._progress(response, private)
            case ev.OutputTextDone():
                need(event.text == part.so_far, "text.done differs from its deltas")
                part.text_done = True
            case ev.ArgumentsDone():
                need(event.arguments == part.so_far, "arguments.done differs from its deltas")
                part.text_done = True
            case ev.ContentPartDone():
                need(part.text_done and event.part == OutputText(text=part.so_far), "the part differs from its deltas")
            case ev.OutputItemDone():
                need(part.text_done or not part.opened, "an item ends before its text")
                need(said(event.item) == part.so_far and event.item.id == part.item.id, "the item differs")
                part.item, part.done = event.item, True
                self.items[event.item.id] = event.item
            case _:
                raise Broken(f"{type(event).__name__} is not expected here")

    def _progress(self, response: Response, private: ev.Private | None) -> None:
        self.stale_moves = 0
        response.tokens += private.tokens if private is not None else b""

    def _ended(self, response: Response, event: ev.Terminal, private: ev.Private | None, offset: int) -> None:
        body = event.response
        status = STATUS[type(event)]
        need(body.status == status, "the body says something else")
        need(body.usage is not None, "no usage")
        need(body.parent_id == response.parent, "another parent")
        if response in self.queue:
            need(status == "incomplete", "what never began was cut short")
            self.queue.remove(response)
            self._follow(response.id, response.after)
            if (body.incomplete_details or {}).get("reason") == "steered" and response.queued_item is not None:
                response.parent, response.took_place = response.queued_item.id, True
        else:
            need(response.open, f"{response.id} ends before it began")
            need(all(part.done for part in response.parts), "an item is open at the end")
            need(body.output == tuple(part.item for part in response.parts), "the output differs from the log")
            need(private is not None and private.tokens == response.tokens, "the ledger differs from the deltas'")
            if status == "completed":
                need(all(part.item.status == "completed" for part in response.parts), "an unfinished item")
        if status == "failed":
            code = (body.error or {}).get("code")
            given_up = self.stale_moves >= 2 or self.gave_up_at == self.at  # all that are open are given up together
            need(code == "quarantined" and given_up, f"{response.id} failed: {body.error}")
            self.gave_up_at = self.at
        self.stale_moves = 0
        response.status, response.terminal, response.ended_at = status, event, offset
        response.tail = private.tail if private is not None else ""
        if response.cut is not None and response.parent is not None and not response.parts:
            self.unanswered[response.parent] = response.cut
        calls = [part.item.call_id for part in response.parts if isinstance(part.item, FunctionCall)]
        if calls and status == "completed":
            self.awaiting[response.id] = calls, response.parts[-1].item.id

    # -- what a snapshot shows --------------------------------------------------------------------------------------

    def shown(self) -> dict[str, Any]:
        """The parts of a client's `state` that are compared."""
        drafted = {part.item.id for response in self.open for part in response.parts if not part.done}
        return {
            "items": [
                (item.id, item.parent_id, status_of(item), said(item))
                for item in self.items.values()
                if item.id not in drafted
            ],
            "open": {response.id: [part.so_far for part in response.parts] for response in self.open},
            "queued": [waiting.id for waiting in self.queue],
            "awaiting": {response: sorted(missing) for response, (missing, _) in self.awaiting.items()},
            "head": self.newest,
            "title": self.info.title if self.info is not None else None,
            "metadata": self.info.metadata if self.info is not None else {},
            "pinned": self.pinned,
            "summaries": [(summary.id, summary.text, summary.count, summary.read) for summary in self.in_force],
        }


def without(names: list[str], name: str) -> list[str]:
    return [other for other in names if other != name]


def said(item: Item) -> str:
    if isinstance(item, Message):
        return item.text
    return item.arguments if isinstance(item, FunctionCall) else item.output


def status_of(item: Item) -> str:
    return item.status


def shown_to_client(state: dict[str, Any]) -> dict[str, Any]:
    """The same of a `state` that a client received."""

    def words(item: dict[str, Any]) -> str:
        if item["type"] == "message":
            return "".join(part.get("text", "") for part in item["content"])
        return str(item["arguments"] if item["type"] == "function_call" else item["output"])

    return {
        "items": [(item["id"], item["parent_id"], item["status"], words(item)) for item in state["items"]],
        "open": {one["response_id"]: [words(item) for item in one["output"]] for one in state["open"]},
        "queued": [waiting["response_id"] for waiting in state["queued"]],
        "awaiting": {one["response_id"]: sorted(one["missing"]) for one in state["awaiting"]},
        "head": state["head"],
        "title": state["title"],
        "metadata": state["metadata"],
        "pinned": state.get("pinned", []),
        "summaries": [
            (one["summary"]["id"], words(one["summary"]), one["items"], one["read_item_id"])
            for one in state.get("compactions", [])
        ],
    }
