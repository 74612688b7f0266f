"""What the gRPC tests share: the door, and a conversation as a client writes it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import grpc
import grpc.aio

from inference.simulated import SimulatedOptions
from sessions.model.types import Principal
from sessions.ports import Engine
from tests.support.doors.assembly import Assembly, assembled
from transport.grpc_api import sessile_pb2 as pb
from transport.grpc_api.server import GrpcServer
from transport.grpc_api.sessile_pb2_grpc import SessionsStub
from transport.grpc_api.status import ERROR_KEY

ENDS = ("response_completed", "response_incomplete", "response_failed")


class Door(NamedTuple):
    assembly: Assembly
    server: GrpcServer
    channel: grpc.aio.Channel
    stub: Any

    def converse(self, session: str, **opening: Any) -> Talk:
        return Talk(self.stub.Converse(), pb.Open(session=session, **opening))

    async def history(self, session: str, **asked: Any) -> list[pb.ConverseReply]:
        return [reply async for reply in self.stub.History(pb.HistoryRequest(session=session, **asked))]


class Talk:
    """One `Converse` stream. `seen` has everything that came."""

    def __init__(self, call: Any, opening: pb.Open) -> None:
        self.call = call
        self.seen: list[pb.ConverseReply] = []
        self._opening: pb.Open | None = opening

    async def say(self, **command: Any) -> None:
        await self._open()
        await self.call.write(pb.ConverseRequest(command=pb.Command(**command)))

    async def hang_up(self) -> None:
        """Closes this side: no command follows."""
        await self._open()
        await self.call.done_writing()

    async def read(self) -> pb.ConverseReply | None:
        """The next reply; None at the end. Raises AioRpcError for one that is not OK."""
        await self._open()
        reply = await self.call.read()
        if reply is grpc.aio.EOF:
            code = await self.call.code()
            if code is not grpc.StatusCode.OK:
                raise grpc.aio.AioRpcError(
                    code,
                    await self.call.initial_metadata(),
                    await self.call.trailing_metadata(),
                    await self.call.details(),
                )
            return None
        assert isinstance(reply, pb.ConverseReply)
        self.seen.append(reply)
        return reply

    async def until(self, wanted: Callable[[pb.ConverseReply], bool]) -> pb.ConverseReply:
        while (reply := await self.read()) is not None:
            if wanted(reply):
                return reply
        raise AssertionError(f"the stream ended behind {self.seen}")

    async def rest(self) -> list[pb.ConverseReply]:
        while await self.read() is not None:
            pass
        return self.seen

    async def _open(self) -> None:
        if self._opening is not None:
            opening, self._opening = self._opening, None
            await self.call.write(pb.ConverseRequest(open=opening))


def events(replies: list[pb.ConverseReply]) -> list[pb.Event]:
    return [reply.event for reply in replies if reply.WhichOneof("reply") == "event"]


def text(replies: list[pb.ConverseReply]) -> str:
    return "".join(
        event.response_output_text_delta.delta
        for event in events(replies)
        if event.WhichOneof("event") == "response_output_text_delta"
    )


def has(kind: str) -> Callable[[pb.ConverseReply], bool]:
    """A reply of a kind: of the reply itself, or of the event in it."""
    return lambda reply: kind in (reply.WhichOneof("reply"), reply.event.WhichOneof("event"))


def error_of(error: grpc.aio.AioRpcError) -> pb.Error:
    """The whole error beside a status."""
    (found,) = [value for key, value in error.trailing_metadata() or () if key == ERROR_KEY]
    assert isinstance(found, bytes)
    return pb.Error.FromString(found)


@asynccontextmanager
async def opened(
    engine: SimulatedOptions | Engine | None = None, keys: Mapping[str, Principal] | None = None
) -> AsyncIterator[Door]:
    async with assembled(engine=engine, keys=keys) as assembly:
        server = GrpcServer(assembly.gateway, host="127.0.0.1", port=0)
        assert await server.start()
        try:
            async with grpc.aio.insecure_channel(server.address) as channel:
                yield Door(assembly, server, channel, SessionsStub(channel))
        finally:
            await server.stop()
