"""What the transport's tests share: a side of actors that only appends, and a client that believes nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import httpx
from fastapi import FastAPI
from msgspec import UNSET
from msgspec.structs import replace

from persistence.memory.database import MemoryDatabase
from persistence.memory.journal import Medium, MemoryJournal, apply_at_once
from persistence.memory.store import MemoryStore
from sessions.clock import Clock
from sessions.model import events as ev
from sessions.model.commands import ActorCommand, Ok, ResponseCreate, TurnCreate
from sessions.model.journal_types import Append, HeadPatch
from sessions.model.request import Request
from sessions.model.types import (
    LOCAL_PRINCIPAL,
    CallId,
    CommandId,
    Epoch,
    FunctionCall,
    FunctionCallOutput,
    InputText,
    ItemId,
    Message,
    OutputText,
    Principal,
    ResponseId,
    Role,
    Sampling,
    SessionId,
    SessionKey,
    TenantId,
    UnixMs,
)
from sessions.ports import Published
from transport.auth.authenticator import Authenticator
from transport.gateway import Gateway
from transport.http_api.app import make_app
from transport.http_api.doors import Part
from transport.http_api.request_context import in_context
from transport.http_api.server import Server
from transport.ops.prometheus import MetricsExposition
from transport.protocol.flow_control import Window
from transport.protocol.frames import JSON, Encoding, ResumePoint
from transport.reading.feeds import Feeds
from transport.reading.log_reader import LogReader
from transport.reading.reader_set import ReaderSet
from transport.tasks import Tasks

TENANT = TenantId("local")
RESPONSE = ResponseId("resp_1")
ITEM = ItemId("item_a")


def key_of(session: str) -> SessionKey:
    return SessionKey(TENANT, SessionId(session))


class FakeSessions:
    """The `Sessions` port over a memory journal. `execute` does what `answer` says."""

    def __init__(self, journal: MemoryJournal) -> None:
        self.journal = journal
        self.sinks: dict[SessionKey, list[Callable[[Published], None]]] = {}
        self.deaf = False  # watches miss what becomes durable, as after a change of owner
        self.answer: Callable[[Principal, ActorCommand], Any] = self._no_answer
        self.executed: list[ActorCommand] = []

    async def execute(self, request: Request) -> Ok:
        self.executed.append(request.command)
        found = self.answer(request.principal, request.command)
        if asyncio.iscoroutine(found):
            found = await found
        assert isinstance(found, Ok)
        return found

    @staticmethod
    def _no_answer(_: Principal, command: ActorCommand) -> Ok:
        return Ok(id=command.id, session=command.session)

    def watch(self, key: SessionKey, sink: Callable[[Published], None]) -> Callable[[], None]:
        sinks = self.sinks.setdefault(key, [])
        sinks.append(sink)

        def unwatch() -> None:
            sinks.remove(sink)
            if not sinks:
                self.sinks.pop(key, None)

        return unwatch

    async def append(self, session: str, *events: ev.AnyEvent, deleted: bool = False) -> tuple[ev.Record, ...]:
        """Makes events durable, creating the log where there is none, and tells the watchers."""
        key = key_of(session)
        head = await self.journal.head(key)
        if head is None:
            head = await self.journal.grant(
                key, expected_fence=None, owner="fake", new_epoch=Epoch(f"ep_{session}"), now_ms=UnixMs(1)
            )
        records = tuple(
            ev.Record(head.top + index, UnixMs(1_000 + head.top + index), event, private_of(event))
            for index, event in enumerate(events, start=1)
        )
        patch = HeadPatch(
            open=False, user=None, model="m", title=None, metadata={}, deleted_at=UnixMs(2) if deleted else None
        )
        await self.journal.append(
            Append(key=key, fence=head.fence, top=head.top, records=records, head=patch, at=UnixMs(1))
        )
        if not self.deaf:
            self.tell(session, records, head.epoch)
        return records

    def tell(self, session: str, records: tuple[ev.Record, ...], epoch: Epoch | None = None) -> None:
        key = key_of(session)
        for sink in list(self.sinks.get(key, ())):
            sink(Published(key, epoch or Epoch(f"ep_{session}"), records))

    async def new_epoch(self, session: str) -> None:
        """The log is granted again after the journal was put back to an older state."""
        key = key_of(session)
        store = self.journal.database
        store.restore(store.backup())
        head = await self.journal.head(key)
        assert head is not None
        await self.journal.grant(
            key, expected_fence=head.fence, owner="fake", new_epoch=Epoch(f"{head.epoch}'"), now_ms=UnixMs(1)
        )


def private_of(event: ev.AnyEvent) -> ev.Private | None:
    return ev.Private(sampling=Sampling(), principal=LOCAL_PRINCIPAL) if isinstance(event, ev.ResponseCreated) else None


async def memory_sessions(medium: Medium = apply_at_once) -> FakeSessions:
    journal = MemoryJournal(MemoryDatabase(), medium=medium)
    await journal.open()
    return FakeSessions(journal)


def answering(sessions: FakeSessions, text: str = "hello") -> None:
    """Has turns answered at once, each with `text`; a command that is repeated gets its answer again."""
    answers: dict[tuple[str, str], Ok] = {}

    async def answer(_: Principal, command: ActorCommand) -> Ok:
        name = (str(command.session), command.id)
        if name not in answers:
            answers[name] = await _answer_turn(sessions, command, text, len(answers))
        return answers[name]

    sessions.answer = answer


async def _answer_turn(sessions: FakeSessions, command: ActorCommand, text: str, number: int) -> Ok:
    assert command.session is not None
    if isinstance(command, TurnCreate):
        if await sessions.journal.head(key_of(command.session)) is None:
            metadata = command.create.metadata if command.create is not None else {}
            info = ev.SessionInfo(model="m", created_at=UnixMs(1), metadata=dict(metadata or {}))
            await sessions.append(command.session, ev.SessionCreated(info=info))
        if not command.respond:
            return Ok(id=command.id, session=command.session, offset=1)
    elif not isinstance(command, ResponseCreate):
        return Ok(id=command.id, session=command.session)
    response, item = f"resp_{number}", f"item_{number}"
    question = replace(message("?", f"question_{number}"), role="user")
    (asked,) = await sessions.append(command.session, ev.ItemCreated(item=question))
    first, *rest = begun(item, response)
    assert isinstance(first, ev.ResponseCreated)
    request = command.request if isinstance(command, TurnCreate) else UNSET
    body = replace(first.response, parent_id=question.id, request=request)
    usage = {"input_tokens": 1, "output_tokens": 2, "input_tokens_details": {}}
    ended = replace(body, status="completed", output=(message(text, item),), usage=usage)
    end = ev.ResponseCompleted(response_id=body.id, sequence_number=4, response=ended)
    await sessions.append(command.session, replace(first, response=body), *rest, delta(text, 3, item, response), end)
    return Ok(id=command.id, session=command.session, offset=asked.offset, item_id=question.id, response_id=body.id)


def gateway_over(sessions: FakeSessions, access: Authenticator | None = None, **options: Any) -> Gateway:
    """A gateway without sockets; everyone is the local principal unless `access` says otherwise."""
    clock = Clock(lambda: UnixMs(1), partial(next, (f"id{number}" for number in count())))
    access = access or Authenticator({}, clock=lambda: 0.0, now_ms=clock.now_ms)
    return Gateway(sessions, MemoryStore(journal=sessions.journal), access, clock, **options)


def http_client(gateway: Gateway, *, web: Path | None = None, **headers: str) -> httpx.AsyncClient:
    """A client of the gateway's HTTP routes, in this process, with the pages of a folder."""
    exposition = MetricsExposition(gateway.measures, version="1", role="test")
    app: Any = in_context(make_app(gateway, readiness=lambda: None, web=web, exposition=exposition), gateway)
    return httpx.AsyncClient(
        transport=httpx.ASGITransport(app), base_url="http://127.0.0.1", headers=headers, timeout=60
    )


async def app_of(server: Server, part: Part = "common") -> FastAPI:
    """The FastAPI application that serves a server's requests for a part of its doors."""
    return await server._app.part(part)


# -- events ----------------------------------------------------------------------------------------


def created() -> ev.SessionCreated:
    return ev.SessionCreated(info=ev.SessionInfo(model="m", created_at=UnixMs(1)))


def message_created(text: str, item: str, parent: str | None = None, role: Role = "user") -> ev.ItemCreated:
    """A completed message, and the event that brings it."""
    above = None if parent is None else ItemId(parent)
    content = (InputText(text=text),)
    return ev.ItemCreated(
        item=Message(
            id=ItemId(item), parent_id=above, role=role, content=content, status="completed", created_at=UnixMs(1)
        )
    )


def begun(item: str = ITEM, response: str = RESPONSE) -> tuple[ev.AnyEvent, ...]:
    """A response up to where its first delta may come: sequence numbers 0 to 2."""
    body = ev.ResponseBody(
        id=ResponseId(response), created_at=UnixMs(1), status="in_progress", model="m", parent_id=None
    )
    return (
        ev.ResponseCreated(response_id=ResponseId(response), sequence_number=0, response=body),
        ev.OutputItemAdded(
            response_id=ResponseId(response), sequence_number=1, output_index=0, item=message("", item, "in_progress")
        ),
        ev.ContentPartAdded(
            response_id=ResponseId(response),
            sequence_number=2,
            item_id=ItemId(item),
            output_index=0,
            content_index=0,
            part=OutputText(text=""),
        ),
    )


def message(text: str, item: str = ITEM, status: Any = "completed") -> Message:
    content = (OutputText(text=text),) if text else ()
    return Message(
        id=ItemId(item), parent_id=None, role="assistant", content=content, status=status, created_at=UnixMs(1)
    )


def function_call(item: str, arguments: str = "{}", *, name: str = "f", parent: str | None = None) -> FunctionCall:
    return FunctionCall(
        id=ItemId(item),
        parent_id=None if parent is None else ItemId(parent),
        call_id=CallId("c"),
        name=name,
        arguments=arguments,
        status="completed",
        created_at=UnixMs(1),
    )


def function_output(item: str, text: str, *, parent: str | None = None, **more: Any) -> FunctionCallOutput:
    above = None if parent is None else ItemId(parent)
    about = {"call_id": CallId("c"), "created_at": UnixMs(1), **more}
    return FunctionCallOutput(id=ItemId(item), parent_id=above, output=text, **about)


def delta(text: str, number: int, item: str = ITEM, response: str = RESPONSE) -> ev.OutputTextDelta:
    return ev.OutputTextDelta(
        response_id=ResponseId(response),
        sequence_number=number,
        item_id=ItemId(item),
        output_index=0,
        content_index=0,
        delta=text,
    )


def retracted(start: int, end: int, replacement: str = "", item: str = ITEM) -> ev.ContentRetracted:
    return ev.ContentRetracted(
        response_id=RESPONSE,
        item_id=ItemId(item),
        content_index=0,
        start=start,
        end=end,
        replacement=replacement,
        category="test",
    )


# -- a connection without a socket ------------------------------------------------------------------------------------


class Source:
    """What a channel needs of a gateway, and no more."""

    def __init__(self, sessions: FakeSessions, *, replay_records_max: int = 10_000) -> None:
        self.feeds = Feeds(sessions)
        self.logs = LogReader(sessions.journal, now_ms=lambda: UnixMs(1), replay_records_max=replay_records_max)
        self.tasks = Tasks()
        self.counts: dict[str, int] = {}

    def count(self, name: str) -> None:
        self.counts[name] = self.counts.get(name, 0) + 1

    async def settle(self) -> None:
        """Until no task of the source is left."""
        await self.tasks.settled()


class Rig:
    """A channel, and the client at its other end."""

    def __init__(
        self,
        source: Source,
        *,
        principal: Principal = LOCAL_PRINCIPAL,
        encoding: Encoding = JSON,
        window_events: int = 1024,
        window_bytes: int = 256 * 1024,
    ) -> None:
        self.now = 0.0
        self.out: list[bytes] = []
        self.wakes = 0
        self.window = Window(window_events, window_bytes)
        self.channel = ReaderSet(source, principal, encoding, self.window, self.out, self._wake, lambda: self.now)
        self.frames: list[dict[str, Any]] = []
        self._source = source
        self._encoding = encoding

    def _wake(self) -> None:
        self.wakes += 1

    def flush(self) -> list[dict[str, Any]]:
        """One turn of the loop: what the channel sends now."""
        while self.channel.collect(self.now):
            pass
        return self.written()

    def written(self) -> list[dict[str, Any]]:
        """What the channel has written and nobody has looked at."""
        sent = [payload(frame, self._encoding) for frame in self.out]
        self.out.clear()
        self.frames += sent
        return sent

    async def run(self) -> list[dict[str, Any]]:
        """Turns until nothing is under way any more; what was sent in them."""
        sent: list[dict[str, Any]] = []
        while True:
            await self._source.settle()
            before, more = len(self._source.tasks), self.flush()
            sent += more
            if not more and not before and not len(self._source.tasks):
                return sent


def payload(frame: bytes, encoding: Encoding) -> Any:
    """The message in one whole WebSocket frame."""
    assert frame[0] == encoding.first_byte
    length, start = frame[1], 2
    if length == 126:
        length, start = int.from_bytes(frame[2:4]), 4
    elif length == 127:
        length, start = int.from_bytes(frame[2:10]), 10
    assert len(frame) == start + length
    return encoding.decode(frame[start:])


class Reading:
    """A client's view of one session, which accepts no gap, no repeat and no change."""

    def __init__(self) -> None:
        self.epoch: str | None = None
        self.offset: int | None = None
        self.text = ""
        self.caught_up = 0
        self.modes: list[str] = []
        self.sequence: dict[str, int] = {}

    def take(self, frame: dict[str, Any]) -> None:
        match frame["type"]:
            case "resumed":
                self.modes.append(frame["mode"])
                if frame["mode"] == "gone":
                    return
                if frame["mode"] == "replay":
                    assert self.offset is None or frame["from"] == self.offset + 1
                    self.offset = frame["from"] - 1
                else:
                    self.offset = frame["at"]
                    self.sequence.clear()
                    self.text = text_of_state(frame["state"])
                self.epoch = frame["epoch"]
                self.caught_up = 0
            case "event":
                self._event(frame)
            case "caught_up":
                assert frame["offset"] == self.offset
                self.caught_up += 1
                assert self.caught_up == 1

    def _event(self, frame: dict[str, Any]) -> None:
        first = frame.get("first_offset", frame["offset"])
        assert frame["epoch"] == self.epoch
        assert self.offset is not None and first == self.offset + 1, f"{first} after {self.offset}"
        assert frame["offset"] >= first
        event = frame["event"]
        if "sequence_number" in event:
            last = self.sequence.get(event["response_id"])
            if last is not None:
                assert event["sequence_number"] == last + frame["offset"] - first + 1
            self.sequence[event["response_id"]] = event["sequence_number"]
        self.offset = frame["offset"]
        match event["type"]:
            case "response.output_text.delta":
                self.text += event["delta"]
            case "content.retracted":
                self.text = self.text[: event["start"]] + event["replacement"] + self.text[event["end"] :]


def text_of_state(state: dict[str, Any]) -> str:
    items: Sequence[dict[str, Any]] = [*state["items"], *(item for one in state["open"] for item in one["output"])]
    return "".join(part["text"] for item in items for part in item["content"] if item["role"] == "assistant")


def ok(command: ActorCommand, offset: int | None = None) -> Ok:
    return Ok(id=CommandId(command.id), session=command.session, offset=offset)


def point(offset: int | None = None, epoch: str | None = None) -> ResumePoint:
    return ResumePoint(session=SessionId("s"), offset=offset, epoch=None if epoch is None else Epoch(epoch))
