"""One `Converse` stream: a reader of one session's log, and the commands of whoever reads.

    open ──> resumed ──> events ... caught_up ──> events as they come
              commands ──> ok, each behind the events up to its offset

Invariants:
* One message is written at a time, and the cursor stands still while its reader does not read: gRPC's flow control is
  the window, and nothing is kept for a slow reader.
* Between a `resumed` and the next one, offsets follow each other without a hole.
* The answer to a command is written after every event up to its offset, so that nothing of a cancelled response follows
  the answer to its cancel.
* A command that was begun goes on whatever becomes of the stream. Unanswered are at most `COMMANDS_MAX`; more are not
  read from the stream.

The stream ends by itself when the session is deleted, or when its client has closed its side, has every answer, and no
response that it began is open. Does not know metadata and statuses (`transport.grpc_api.service`).
"""

from __future__ import annotations

import asyncio
from typing import Any, Final, Protocol

import grpc.aio
import structlog

from sessions.model.commands import ActorCommand, Ok, ResponseCancel
from sessions.model.errors import BadInput, Internal, SessileError
from sessions.model.events import Record, ResponseCompleted, ResponseFailed, ResponseIncomplete
from sessions.model.types import Epoch, Principal, ResponseId, SessionId, SessionKey
from transport.gateway import Gateway
from transport.grpc_api import sessile_pb2 as pb
from transport.grpc_api import translate
from transport.grpc_api.detached_work import start_detached
from transport.grpc_api.status import command_error
from transport.openai.log_cursor import LogCursor, StaleCursor
from transport.protocol.delta_merge import Span, merged
from transport.quotas import Arrival
from transport.reading.feeds import MERGE_FROM
from transport.reading.log_reader import ResumePlan
from transport.tasks import Tasks

COMMANDS_MAX: Final = 32
ENDED: Final = (ResponseCompleted, ResponseIncomplete, ResponseFailed)
EVERYTHING: Final = 1 << 60  # no answer waits any more

log = structlog.get_logger(__name__)


class ReplyStream(Protocol):
    """The stream of a call, as far as `EventStreamer` uses it. Both methods raise when the call has ended."""

    async def read(self) -> Any:
        """Returns the next request, or `grpc.aio.EOF` at the end of the stream."""

    async def write(self, message: pb.ConverseReply) -> None: ...


class EventStreamer:
    """Writes the events of one session's log to a gRPC stream."""

    def __init__(self, stream: ReplyStream, cursor: LogCursor) -> None:
        self.position = 0
        self._stream = stream
        self._cursor = cursor
        self._writing = asyncio.Lock()
        self._caught_up = False

    async def write(self, reply: pb.ConverseReply) -> None:
        async with self._writing:
            await self._stream.write(reply)

    async def run(self, standing: ResumePlan, *, live: bool) -> None:
        while True:
            await self._resume(standing)
            try:
                async for batch in self._cursor.batches(self.position, live=live):
                    await self._batch(standing, batch)
                if not live:
                    await self._catch_up(self.position)
                return
            except StaleCursor:
                if self._cursor.epoch != standing.epoch:
                    standing = await self._cursor.standing(standing.epoch, max(1, self.position))
                else:
                    standing = await self._cursor.standing(None, None)

    async def _resume(self, standing: ResumePlan) -> None:
        session, position = self._cursor.key.session, standing.position
        resumed = pb.Resumed(mode=standing.mode, epoch=standing.epoch, reason=standing.reason)
        if standing.mode == "replay":
            resumed.from_offset, resumed.top = position + 1, standing.top
        else:
            resumed.at = position
            resumed.state.CopyFrom(translate.state_of(session, standing.epoch, position, standing.state or {}))
        self.position = position
        self._caught_up = False
        await self.write(pb.ConverseReply(resumed=resumed))
        await self.moved(())
        await self._catch_up(standing.top)

    async def _batch(self, standing: ResumePlan, batch: tuple[Record, ...]) -> None:
        session = self._cursor.key.session
        spans = merged(batch) if len(batch) >= MERGE_FROM else (Span(record, None) for record in batch)
        for span in spans:
            await self.write(pb.ConverseReply(event=translate.event_of(session, standing.epoch, span)))
            self.position = span.record.offset
            await self.moved((span.record,))
            await self._catch_up(standing.top)

    async def _catch_up(self, top: int) -> None:
        if not self._caught_up and self.position >= top:
            self._caught_up = True
            await self.write(pb.ConverseReply(caught_up=pb.CaughtUp(offset=self.position)))

    async def moved(self, records: tuple[Record, ...]) -> None:
        """Is called after `position` has changed: with the records that were written, or with none after a resume."""


class ConverseCall(EventStreamer):
    """One `Converse` stream: its events out, its commands in."""

    def __init__(self, gateway: Gateway, principal: Principal, stream: ReplyStream, opening: pb.Open) -> None:
        key = SessionKey(principal.tenant, SessionId(opening.session))
        super().__init__(stream, LogCursor(gateway, principal, key))
        self._gateway = gateway
        self._principal = principal
        self._opening = opening
        self._tasks = Tasks()
        self._room = asyncio.Semaphore(COMMANDS_MAX)
        self._running: set[asyncio.Future[Ok]] = set()
        self._held: list[tuple[int, pb.ConverseReply]] = []  # answers that follow an offset
        self._unanswered = 0
        self._begun: set[ResponseId] = set()  # by this stream, and not ended
        self._ended: set[ResponseId] = set()  # since a command that has no answer yet was begun
        self._hung_up = False  # the client's side is closed
        self._over = asyncio.Event()

    async def run_whole(self, leaving: asyncio.Event) -> None:
        """Runs the stream to its end. `leaving` is set if the server shuts down; an end without it means that the
        client left. Raises SessileError."""
        left = False
        try:
            position = self._opening.position
            epoch = Epoch(position.epoch) if position.HasField("epoch") else None
            offset = position.offset if position.HasField("offset") else None
            standing = await self._cursor.standing(epoch, offset)
            await self._converse(standing)
        except asyncio.CancelledError:
            left = not leaving.is_set()
            raise
        except grpc.aio.BaseError as error:  # the call ended while something was read or written
            left = True
            raise asyncio.CancelledError from error
        finally:
            self._cursor.close()
            if left and self._opening.cancel_on_leave:
                self._cancel_started_turns()
            await self._tasks.close()

    async def _converse(self, standing: ResumePlan) -> None:
        streaming = asyncio.create_task(self.run(standing, live=True))
        receiving = asyncio.create_task(self._take_in())
        over = asyncio.create_task(self._over.wait())
        every = {streaming, receiving, over}
        waiting: set[asyncio.Task[Any]] = set(every)
        try:
            while True:
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
                if streaming in done:  # the session was deleted: commands under way are answered, then it is over
                    self.position = EVERYTHING
                    await self.moved(())
                    self._hung_up = True
                    self._settle()
                if over in done:
                    return
        finally:
            for task in every:
                task.cancel()
            await asyncio.gather(*every, return_exceptions=True)

    # -- commands ---------------------------------------------------------------------------------------------------

    async def _take_in(self) -> None:
        while True:
            await self._room.acquire()
            request = await self._stream.read()
            if request is grpc.aio.EOF:
                self._hung_up = True
                self._settle()
                return
            if request.WhichOneof("request") != "command":
                raise BadInput("invalid_request", "A conversation is opened once; what follows are commands.")
            field = request.command.WhichOneof("command")
            message = getattr(request.command, field) if field is not None else None
            id = message.id if message is not None else ""
            self._unanswered += 1
            try:
                arrival = Arrival(is_exempt=field == "response_cancel")
                await self._gateway.arrive(self._principal, arrival)
                self._begin(self._command(field, message), id)
            except SessileError as error:
                self._tasks.start(self._reply(pb.ConverseReply(error=command_error(id, error)), None))

    def _command(self, field: str | None, message: Any) -> ActorCommand:
        if field is None:
            raise BadInput("unknown_type", "This is no command that the server knows.")
        if field == "session_create":
            raise BadInput("invalid_request", "A conversation has its session: make one with Create.")
        if not message.id:
            raise BadInput("invalid_request", "id is missing.", param="id")
        return translate.command_of(message, field, id="", session=self._cursor.key.session)

    def _begin(self, command: ActorCommand, id: str) -> None:
        running = start_detached(self._gateway.tasks, self._gateway.execute(self._principal, command))
        self._running.add(running)
        self._tasks.start(self._answer(running, id, begins=not isinstance(command, ResponseCancel)))

    async def _answer(self, running: asyncio.Future[Ok], id: str, *, begins: bool) -> None:
        try:
            ok = await asyncio.shield(running)
        except SessileError as error:
            await self._reply(pb.ConverseReply(error=command_error(id, error)), None)
        except Exception:
            log.exception("command_failed", id=id)
            failure = Internal("internal_error", "The server failed to carry this out.")
            await self._reply(pb.ConverseReply(error=command_error(id, failure)), None)
        else:
            if begins and ok.response_id is not None and ok.response_id not in self._ended:
                self._begun.add(ok.response_id)
            message = pb.Ok()
            translate.fill(message, ok)
            until = self._cursor.top if ok.offset is None else ok.offset
            self._cursor.expect(until)
            await self._reply(pb.ConverseReply(ok=message), until)
        finally:
            self._running.discard(running)

    async def _reply(self, reply: pb.ConverseReply, until: int | None) -> None:
        """Writes the answer to a command: at once if the event at offset `until` was written or `until` is None, else
        after that event."""
        if until is not None and self.position < until:
            self._held.append((until, reply))
        else:
            await self.write(reply)
            self._answered()

    async def _catch_up(self, top: int) -> None:
        await super()._catch_up(top)
        self._settle()

    async def moved(self, records: tuple[Record, ...]) -> None:
        for record in records:
            if isinstance(record.event, ENDED):
                self._begun.discard(record.event.response_id)
                if self._unanswered:
                    self._ended.add(record.event.response_id)
        if not records:  # resumed: a state says what these wait for, and their offsets may be of another epoch
            free, self._held = self._held, []
        else:
            free = [held for held in self._held if held[0] <= self.position]
            self._held = [held for held in self._held if held[0] > self.position]
        for _, reply in free:
            await self.write(reply)
            self._answered()
        self._settle()

    def _answered(self) -> None:
        self._unanswered -= 1
        self._room.release()
        if not self._unanswered:
            self._ended.clear()
        self._settle()

    def _settle(self) -> None:
        deleted = self.position == EVERYTHING
        reached = self._caught_up and self.position >= self._cursor.top
        if self._hung_up and not self._unanswered and (deleted or (reached and not self._begun)):
            self._over.set()

    # -- leaving ----------------------------------------------------------------------------------------------------

    def _cancel_started_turns(self) -> None:
        """Starts a task of the gateway that cancels the open responses which commands of this stream began, also those
        of commands that have no answer yet."""
        gateway, principal, key = self._gateway, self._principal, self._cursor.key
        running, begun = list(self._running), list(self._begun)

        async def cancel() -> None:
            answers = await asyncio.gather(*running, return_exceptions=True)
            answered = [each.response_id for each in answers if isinstance(each, Ok) and each.response_id is not None]
            await gateway.cancel(principal, key.session, (*begun, *answered), id_prefix="grpc")

        gateway.tasks.start(cancel())
