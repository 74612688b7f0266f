"""A session as a program sees it: the conversation so far, its events, and the commands on it."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, Literal

from ._bell import Bell
from ._fields import Changes, MessageOptions, TurnOptions
from ._items import Item
from ._notices import SessionNotice
from ._track import Event, Phase, Snapshot, Track
from ._values import text_or_none
from ._view import View
from ._wire import Frame
from .errors import Lost, NotFound, SessionGone
from .response import Response, ToolAnswer

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .client import Client

Content = str | Sequence[Mapping[str, Any]]


class Unset(Enum):
    """A field that is left out, where None means null."""

    UNSET = "unset"


UNSET = Unset.UNSET


class Session:
    """One conversation, read live. Made by ``Client.create_session`` and ``Client.session``."""

    def __init__(self, client: Client, track: Track) -> None:
        self._client = client
        self._track = track
        self._bell = Bell()
        self._readers: set[_Reader] = set()
        self._detached = False
        self._snapshots = 0

    # Reading

    @property
    def id(self) -> str:
        return self._track.session

    @property
    def phase(self) -> Phase:
        return self._track.phase

    @property
    def view(self) -> View:
        """The conversation up to ``offset``. It changes as events arrive; a snapshot replaces it."""
        return self._track.view

    @property
    def epoch(self) -> str | None:
        return self._track.epoch

    @property
    def offset(self) -> int:
        return self._track.offset or 0

    @property
    def items(self) -> list[Item]:
        """The current branch, from the root to the newest item."""
        return self.view.branch()

    @property
    def title(self) -> str | None:
        return self.view.title

    async def caught_up(self) -> Session:
        """Wait until the view is live. Raises SessionGone, Lost or what stopped the client."""
        while self.phase not in (Phase.LIVE, Phase.DELETED):
            self._check()
            await self._bell.wait()
        return self

    async def events(self) -> AsyncIterator[Event | Snapshot]:
        """What happens, in order: first a Snapshot of what is known now, then each event once.

        A Snapshot stands in for events wherever they cannot be had (``mode``: snapshot, reset), and where this reader
        fell more than ``Limits.events_max`` behind (``lagged``): set your state to it and go on. Ends after
        ``session.deleted`` and when the session is detached; raises what ends the reading otherwise.
        """
        reader = _Reader(self._client.limits.events_max)
        reader.put(self._snapshot("snapshot"))
        self._readers.add(reader)
        try:
            while True:
                while reader.waiting:
                    yield reader.waiting.popleft()
                if reader.lagged:
                    reader.lagged = False
                    yield self._snapshot("lagged")
                    continue
                if self._detached or self.phase is Phase.DELETED or self._client.closed:
                    return
                self._check()
                await self._bell.wait()
        finally:
            self._readers.discard(reader)

    def response(self, response_id: str) -> Response:
        """A handle on a response that this or another device requested."""
        return Response(self, None, response_id=response_id)

    @property
    def open_responses(self) -> list[Response]:
        """Handles on the responses that have not ended, oldest first."""
        return [self.response(response_id) for response_id in self.view.open]

    # Commands

    def send(
        self,
        content: Content,
        *,
        parent_id: str | None | Unset = UNSET,
        respond: bool = True,
        queue: bool = False,
        command_id: str | None = None,
        **options: Unpack[MessageOptions],
    ) -> Response:
        """Send a message; the command is on its way when this returns.

        ``async for text in session.send("hi")`` streams the answer, ``await session.send("hi")`` waits until the
        message is journaled, ``await session.send("hi").text()`` for the whole answer. ``parent_id`` names the item
        to answer (None: the root; left out: the newest item). ``queue`` waits for an open response on the branch.
        """
        return self._submit(
            "message.create",
            command_id,
            content=content,
            parent_id=parent_id,
            respond=UNSET if respond else False,
            queue=queue or UNSET,
            **options,
        )

    def edit(
        self,
        item_id: str,
        content: Content,
        *,
        respond: bool = True,
        command_id: str | None = None,
        **options: Unpack[MessageOptions],
    ) -> Response:
        """Edit a message: a sibling of ``item_id``, with an answer of its own."""
        respond_field = UNSET if respond else False
        return self._submit(
            "message.edit", command_id, item_id=item_id, content=content, respond=respond_field, **options
        )

    def regenerate(
        self,
        *,
        parent_id: str | None | Unset = UNSET,
        queue: bool = False,
        command_id: str | None = None,
        **options: Unpack[TurnOptions],
    ) -> Response:
        """Answer again: a sibling of the newest answer on the current branch, or a new answer to ``parent_id``."""
        parent_id = self._parent_of_answer() if parent_id is UNSET else parent_id
        return self._submit("response.create", command_id, parent_id=parent_id, queue=queue or UNSET, **options)

    async def cancel(self, response_id: str | None = None, *, command_id: str | None = None) -> bool:
        """Stop a response (the newest open one by default); its partial text stays. False if it had ended, unless its
        turn waits for tool outputs: then the turn ends, with an error for each that is missing, and it is true.
        """
        if response_id is None:
            opened = self.view.open
            if not opened:
                return False
            response_id = opened[-1]
        ok = await self._command("response.cancel", command_id, response_id=response_id)
        return not ok.get("noop", False)

    def steer(self, content: Content, response_id: str | None = None, *, command_id: str | None = None) -> Response:
        """Say something while a response (the newest open one by default) is written: it ends with what it says so far,
        and the answer that is returned goes on behind these words. One that calls tools is let end: then the words are
        answered together with the tools' outputs. Raises NotFound where nothing is being written."""
        if response_id is None:
            opened = self.view.open
            if not opened:
                raise NotFound("response_not_found", "No response is being written.")
            response_id = opened[-1]
        return self._submit("response.steer", command_id, response_id=response_id, content=content)

    async def tool_output(
        self, call_id: str, output: str, *, is_error: bool = False, command_id: str | None = None
    ) -> ToolAnswer:
        """Answer a tool call. The last missing one starts the turn's next response."""
        fields = {"call_id": call_id, "output": output, "is_error": is_error or UNSET}
        ok = await self._command("tool.output", command_id, **fields)
        response_id = text_or_none(ok.get("response_id"))
        response = None if response_id is None else self.response(response_id)
        return ToolAnswer(item_id=str(ok.get("item_id", "")), response=response)

    async def appeal(
        self,
        response_id: str | None = None,
        *,
        content: str | None = None,
        note: str = "",
        command_id: str | None = None,
    ) -> str:
        """Appeal: a person looks again at what was withheld of a response, or at a message that was refused
        (``content`` repeats it, for nothing of it is stored). Returns the id of the case; ``view.reviews`` has its
        outcome."""
        fields = {"response_id": response_id, "content": content, "note": note or None}
        given = {name: value for name, value in fields.items() if value is not None}
        ok = await self._command("review.appeal", command_id, **given)
        return str(ok.get("review_id", ""))

    async def compact(
        self, *, keep_turns: int | None = None, item_id: str | None = None, command_id: str | None = None
    ) -> str:
        """Have the model summarise all but the newest turns (one of them) of the branch that ends in ``item_id`` (the
        newest item). Returns the id of the summary, which comes as ``context.compacted``;
        ``context.compaction_failed`` says why not."""
        given = {"keep_turns": keep_turns, "item_id": item_id}
        fields = {name: value for name, value in given.items() if value is not None}
        return str((await self._command("session.compact", command_id, **fields)).get("compaction_id", ""))

    async def undo_compaction(self, compaction_id: str | None = None, *, command_id: str | None = None) -> None:
        """The model reads the messages again that a summary stands for; without an id the one in force on the newest
        branch. A summary that is still being written does not come."""
        given = UNSET if compaction_id is None else compaction_id
        await self._command("compaction.undo", command_id, compaction_id=given)

    async def pin(self, item_id: str, pinned: bool = True, *, command_id: str | None = None) -> None:
        """Keep an item in what the model reads, word by word, or no longer."""
        await self._command("item.pin", command_id, item_id=item_id, pinned=pinned)

    async def update(self, *, command_id: str | None = None, **fields: Unpack[Changes]) -> None:
        """Change ``title``, ``metadata``, ``instructions``, ``tools`` or what becomes of a full window; null clears."""
        await self._command("session.update", command_id, **fields)

    async def delete(self, *, command_id: str | None = None) -> None:
        """Delete the session for every device."""
        await self._command("session.delete", command_id)

    async def get(self) -> dict[str, Any]:
        """The session's fields, as the server has them."""
        return dict(await self._command("session.get", None))

    async def warm(self) -> None:
        """Hint that a message is coming, so that the session's KV is brought up."""
        await self._command("session.warm", None)

    async def close(self) -> None:
        """Stop reading this session; its position is saved."""
        await self._client._detach(self)

    # For the client

    def _submit(self, type_: str, command_id: str | None, /, **fields: Any) -> Response:
        return Response(self, self._client._submit(type_, self._body(fields), command_id))

    async def _command(self, type_: str, command_id: str | None, /, **fields: Any) -> Frame:
        return await self._client.command(type_, command_id=command_id, **self._body(fields))

    def _body(self, fields: dict[str, Any]) -> dict[str, Any]:
        return {"session": self.id} | {name: value for name, value in fields.items() if value is not UNSET}

    def _parent_of_answer(self) -> str | None:
        """The parent of the newest answer on the current branch."""
        branch = self.view.branch()
        for item in reversed(branch):
            if item.response_id is not None:
                response = self.view.responses.get(item.response_id)
                first = response.output.get(0) if response is not None else None
                return self.view.items[first].parent_id if first in self.view.items else item.parent_id
        for item in reversed(branch):
            if item.role == "assistant":
                return item.parent_id
        if not branch:
            raise ValueError("there is nothing to answer yet")
        return branch[-1].id

    def _check(self) -> None:
        """Raise what keeps this session from ever going on."""
        if self._detached:
            raise Lost(f"{self.id} was detached")
        if self._track.error is not None:
            error = self._track.error
            raise SessionGone(error.code, error.message, type=error.type, param=error.param)
        if self._client.error is not None:
            raise self._client.error

    def _snapshot(self, mode: Literal["snapshot", "lagged"]) -> Snapshot:
        return Snapshot(self.id, mode, self.epoch, self.offset, self.view.to_state())

    def _receive(self, notice: SessionNotice) -> None:
        if isinstance(notice, Event | Snapshot):
            for reader in self._readers:
                reader.put(notice)
        self._snapshots += isinstance(notice, Snapshot)
        self._bell.ring()

    def _detach(self) -> None:
        self._detached = True
        self._bell.ring()

    def __repr__(self) -> str:
        return f"Session({self.id!r}, {self.phase.value}, offset={self.offset})"


class _Reader:
    """One iteration over events: a bounded buffer, emptied rather than let grow."""

    def __init__(self, events_max: int) -> None:
        self.waiting: deque[Event | Snapshot] = deque()
        self.lagged = False
        self._events_max = events_max

    def put(self, entry: Event | Snapshot) -> None:
        if len(self.waiting) >= self._events_max:
            self.waiting.clear()
            self.lagged = True
        elif not self.lagged:
            self.waiting.append(entry)
