"""Implements the calls of `sessile.proto`: authenticates the caller, runs the operation, maps errors to statuses.

Every call is admitted by its metadata as an HTTP request is by its headers, before its message is received: each method
is served as one whose client streams, which is the same on the wire, and reads its message when its caller is known. It
takes a place among those of its address and its key, gets a request id, and ends with a status of the one table.
Unary commands run to their end whatever becomes of the call; their caller's deadline ends its waiting only. Does not
know sockets (`transport.grpc_api.server`).
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any, Final, TypeVar
from urllib.parse import unquote

import grpc
import grpc.aio
import structlog
from google.protobuf.message import DecodeError, EncodeError

from sessions.model.authorization import acting_for
from sessions.model.errors import BadInput, Internal, SessileError
from sessions.model.types import SESSION_ID_PATTERN, Epoch, Principal, SessionId, SessionKey
from transport.auth.connection_shares import ConnectionShares, Place, key_of
from transport.gateway import Gateway
from transport.grpc_api import sessile_pb2 as pb
from transport.grpc_api import sessile_pb2_grpc as made
from transport.grpc_api import translate
from transport.grpc_api.converse import ConverseCall, EventStreamer
from transport.grpc_api.detached_work import run_unless_set, start_detached
from transport.grpc_api.message_size import check_size, malformed
from transport.grpc_api.status import refuse, trailing_of
from transport.loop_turns import LoopTurns
from transport.openai.log_cursor import LogCursor
from transport.quotas import Arrival
from transport.websocket.handshake import USER_HEADER, bearer, single_value

LIST_MAX: Final = 100
LIST_DEFAULT: Final = 20
CALL: Final = Arrival()
CROSSING_S: Final = 1.0  # for the first message of a caller who is refused

_REQUEST_ID: Final = re.compile(r"^[A-Za-z0-9_.:-]{1,64}$")
_SESSION: Final = re.compile(SESSION_ID_PATTERN)
_KINDS: Final[dict[bool, Callable[..., Any]]] = {  # whether the server streams; each reads its messages by itself
    False: grpc.stream_unary_rpc_method_handler,
    True: grpc.stream_stream_rpc_method_handler,
}
T = TypeVar("T")
Context = grpc.aio.ServicerContext[Any, Any]
Metadata = Mapping[str, Sequence[str]]

log = structlog.get_logger(__name__)


class SessionsService(made.SessionsServicer):
    """Implements `sessile.v1.Sessions`, with a method for each of the service's calls. A method receives its message,
    as bytes, only after the caller's key was checked. When `leaving` is set, conversations end. `shares` bounds the
    running calls of each address and key."""

    def __init__(self, gateway: Gateway, leaving: asyncio.Event, shares: ConnectionShares) -> None:
        self._gateway = gateway
        self._leaving = leaving
        self._shares = shares
        self._turns = LoopTurns()

    # -- commands ---------------------------------------------------------------------------------------------------

    async def Create(self, _: Any, context: Context) -> pb.Ok | None:
        return await self._command("session_create", pb.SessionCreate, context)

    async def Send(self, _: Any, context: Context) -> pb.Ok | None:
        return await self._command("message_create", pb.MessageCreate, context)

    async def Edit(self, _: Any, context: Context) -> pb.Ok | None:
        return await self._command("message_edit", pb.MessageEdit, context)

    async def Respond(self, _: Any, context: Context) -> pb.Ok | None:
        return await self._command("response_create", pb.ResponseCreate, context)

    async def Cancel(self, _: Any, context: Context) -> pb.Ok | None:
        return await self._command("response_cancel", pb.ResponseCancel, context)

    async def Steer(self, _: Any, context: Context) -> pb.Ok | None:
        return await self._command("response_steer", pb.ResponseSteer, context)

    async def AnswerTool(self, _: Any, context: Context) -> pb.Ok | None:
        return await self._command("tool_output", pb.ToolOutput, context)

    async def Update(self, _: Any, context: Context) -> pb.Ok | None:
        return await self._command("session_update", pb.SessionUpdate, context)

    async def Delete(self, _: Any, context: Context) -> pb.Ok | None:
        return await self._command("session_delete", pb.SessionDelete, context)

    async def Warm(self, _: Any, context: Context) -> pb.Ok | None:
        return await self._command("session_warm", pb.SessionWarm, context)

    async def Appeal(self, _: Any, context: Context) -> pb.Ok | None:
        return await self._command("review_appeal", pb.ReviewAppeal, context)

    async def Rate(self, _: Any, context: Context) -> pb.Ok | None:
        return await self._command("feedback_set", pb.FeedbackSet, context)

    async def Compact(self, _: Any, context: Context) -> pb.Ok | None:
        return await self._command("session_compact", pb.SessionCompact, context)

    async def UndoCompaction(self, _: Any, context: Context) -> pb.Ok | None:
        return await self._command("compaction_undo", pb.CompactionUndo, context)

    async def Pin(self, _: Any, context: Context) -> pb.Ok | None:
        return await self._command("item_pin", pb.ItemPin, context)

    async def Approve(self, _: Any, context: Context) -> pb.Ok | None:
        return await self._command("tool_approve", pb.ToolApprove, context)

    async def _command(self, field: str, kind: Any, context: Context) -> pb.Ok | None:
        async def work(principal: Principal) -> pb.Ok:
            self._gateway.check_draining()
            request = await self._read(kind, context, principal)
            command = translate.command_of(request, field, id=f"grpc_{self._gateway.new_id()}", session=None)
            ok = await asyncio.shield(start_detached(self._gateway.tasks, self._gateway.execute(principal, command)))
            message = pb.Ok()
            translate.fill(message, ok)
            return message

        return await self.answer(context, work, arrival=Arrival(is_exempt=field == "response_cancel"))

    # -- questions --------------------------------------------------------------------------------------------------

    async def Get(self, _: Any, context: Context) -> pb.State | None:
        async def work(principal: Principal) -> pb.State:
            request = await self._read(pb.GetRequest, context, principal)
            done = await self._gateway.get(principal, "", session_of(request.session))
            assert done.session is not None and done.epoch is not None and done.offset is not None
            return translate.state_of(done.session, done.epoch, done.offset, done.state or {})

        return await self.answer(context, work)

    async def List(self, _: Any, context: Context) -> pb.ListReply | None:
        async def work(principal: Principal) -> pb.ListReply:
            request = await self._read(pb.ListRequest, context, principal)
            limit = request.limit if request.HasField("limit") else LIST_DEFAULT
            if not 1 <= limit <= LIST_MAX:
                raise BadInput("invalid_request", f"limit: Expected 1 to {LIST_MAX}.", param="limit")
            after = session_of(request.after, "after") if request.HasField("after") else None
            listed = await self._gateway.list(principal, "", limit, after)
            reply = pb.ListReply(has_more=listed.has_more, last_id=listed.last_id)
            for each in listed.data:
                translate.fill(reply.data.add(), each)
            return reply

        return await self.answer(context, work)

    # -- streams ----------------------------------------------------------------------------------------------------

    async def History(self, _: Any, context: Context) -> None:
        async def work(principal: Principal) -> None:
            self._gateway.check_draining()
            request = await self._read(pb.HistoryRequest, context, principal)
            key = SessionKey(principal.tenant, session_of(request.session))
            position = request.position
            epoch = Epoch(position.epoch) if position.HasField("epoch") else None
            offset = position.offset if position.HasField("offset") else None
            with LogCursor(self._gateway, principal, key) as cursor:
                standing = await cursor.standing(epoch, offset if request.HasField("position") else 0)
                await run_unless_set(self._leaving, EventStreamer(context, cursor).run(standing, live=request.follow))

        await self.answer(context, work)

    async def Converse(self, _: Any, context: Context) -> None:
        async def work(principal: Principal) -> None:
            self._gateway.check_draining()
            stream = DecodedStream(context, self._turns, key_of(principal))
            first = await stream.read()
            if first is grpc.aio.EOF or first.WhichOneof("request") != "open":
                raise BadInput("invalid_request", "A conversation begins with `open`.", param="open")
            session_of(first.open.session)
            conversation = ConverseCall(self._gateway, principal, stream, first.open)
            await run_unless_set(self._leaving, conversation.run_whole(self._leaving))

        await self.answer(context, work, speaks=True)

    # -- any --------------------------------------------------------------------------------------------------------

    async def answer(
        self,
        context: Context,
        work: Callable[[Principal], Awaitable[T]],
        *,
        speaks: bool = False,
        arrival: Arrival = CALL,
    ) -> T | None:
        """Authenticates the caller and runs `work` with their principal. Returns its result, or None after the call was
        refused with a status. If the client `speaks` first, its first message is received before a refusal: otherwise
        gRPC would show the client an error of its own instead of our status."""
        self._gateway.count("grpc_calls")
        place: Place | None = None
        metadata = _metadata(context)
        try:
            client = self.client(context)
            if not self._gateway.access.open:
                place = self._shares.open(client, plain=False)
            principal = self._principal(metadata, client)
            if place is not None:
                place.authenticated(principal)
            await self._gateway.arrive(principal, arrival)
            return await self._work(context, self._request_id(metadata), principal, work)
        except SessileError as error:  # of a caller who is not let in; no message of theirs was received
            if speaks and place is not None:
                with suppress(TimeoutError, grpc.aio.BaseError, grpc.aio.UsageError):
                    await asyncio.wait_for(context.read(), CROSSING_S)
            # its initial metadata would be a frame of its own
            refuse(context, error, (("x-request-id", self._request_id(metadata)), *trailing_of(error)))
            return None
        finally:
            if place is not None:
                place.close()

    async def _work(
        self, context: Context, request_id: str, principal: Principal, work: Callable[[Principal], Awaitable[T]]
    ) -> T | None:
        """Runs `work` and returns its result. If it raises, ends the call with the error's status and returns None."""
        await context.send_initial_metadata((("x-request-id", request_id),))
        with structlog.contextvars.bound_contextvars(request_id=request_id):
            try:
                return await work(principal)
            except SessileError as error:
                refuse(context, error, trailing_of(error))
            except grpc.aio.BaseError:
                raise  # the call is over
            except Exception:
                log.exception("call_failed")
                failure = Internal("internal_error", "The server failed to carry this out.")
                refuse(context, failure, trailing_of(failure))
            return None

    async def _read(self, kind: Any, context: Context, principal: Principal) -> Any:
        """Reads the one message of a call. Raises BadInput, TooLarge."""
        return await read_decoded(kind, context, self._turns, key_of(principal))

    def _request_id(self, metadata: Metadata) -> str:
        given = metadata.get("x-request-id", ())
        return given[0] if len(given) == 1 and _REQUEST_ID.match(given[0]) else f"req_{self._gateway.new_id()}"

    def client(self, context: Context) -> str | None:
        """Returns the caller's IP address: the peer's, or the one that a trusted proxy forwards; None if it is
        unknown."""
        forwarded = _metadata(context).get("x-forwarded-for", ())
        return self._gateway.access.origins.proxies.client(_address(str(context.peer())), forwarded)

    def _principal(self, metadata: Metadata, client: str | None) -> Principal:
        principal = self._gateway.access.authenticate(bearer(metadata.get("authorization", ())), client, with_body=True)
        return acting_for(principal, single_value(metadata.get(USER_HEADER, ())))


def register(service: SessionsService, server: grpc.aio.Server) -> None:
    """Adds the methods of `sessile.proto` to a server, which hands them their messages undecoded."""
    descriptor = pb.DESCRIPTOR.services_by_name["Sessions"]
    handlers = {
        each.name: _KINDS[each.server_streaming](getattr(service, each.name), response_serializer=_serialized)
        for each in descriptor.methods
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(descriptor.full_name, handlers),))
    server.add_registered_method_handlers(descriptor.full_name, handlers)


def _serialized(message: Any) -> bytes:
    try:
        data: bytes = message.SerializeToString()
    except EncodeError as error:
        raise translate.too_deep() from error
    return data


def decoded(kind: Any, data: Any) -> Any:
    """Decodes a message of this kind. Raises BadInput if the call has no message or a malformed one."""
    if data is grpc.aio.EOF:
        raise BadInput("invalid_request", f"There is no {kind.DESCRIPTOR.name} in this call.")
    check_size(kind, data)
    try:
        return kind.FromString(data)
    except DecodeError as error:
        raise malformed(kind) from error


async def read_decoded(kind: Any, context: Context, turns: LoopTurns, caller: Hashable, *, more: bool = False) -> Any:
    """Reads a message of this kind, and decodes it when it is the caller's turn on the loop: large ones that come at
    once do not hold it together. With `more` it returns EOF where no message follows; else it raises BadInput, as for
    one that is malformed."""
    data = await context.read()
    if data is not grpc.aio.EOF:
        await turns.turn(caller, len(data))
    elif more:
        return data
    return decoded(kind, data)


class DecodedStream:
    """The requests of a `Converse` call, decoded as they are read. Implements `ReplyStream`."""

    def __init__(self, context: Context, turns: LoopTurns, caller: Hashable) -> None:
        self._context = context
        self._turns = turns
        self._caller = caller
        self.write = context.write

    async def read(self) -> Any:
        return await read_decoded(pb.ConverseRequest, self._context, self._turns, self._caller, more=True)


@lru_cache(maxsize=1024)
def _address(peer: str) -> str | None:
    """Returns the IP address in a peer's name; None for a unix socket. gRPC writes `ipv4:127.0.0.1:4711`,
    `ipv6:%5B::1%5D:4711`, `unix:...`."""
    kind, _, rest = peer.partition(":")
    host = unquote(rest).rpartition(":")[0].strip("[]")
    return host if kind in ("ipv4", "ipv6") else None


def _metadata(context: Context) -> Metadata:
    """Returns the text values of a call's metadata, by name."""
    named: dict[str, list[str]] = {}
    for key, value in context.invocation_metadata() or ():
        if isinstance(value, str):
            named.setdefault(key, []).append(value)
    return named


def session_of(name: str, param: str = "session") -> SessionId:
    """Returns `name` as a session id. Raises BadInput, about the parameter `param`, if it is not a valid one."""
    if not _SESSION.match(name):
        raise BadInput("invalid_request", f"{param}: Expected 1 to 64 of A-Z, a-z, 0-9, _ and -.", param=param)
    return SessionId(name)
