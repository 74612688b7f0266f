"""One conversation over gRPC: what it writes, in which order, and when it ends."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc.aio
import pytest

from sessions.model.errors import BadInput
from sessions.model.events import SessionDeleted
from sessions.model.types import LOCAL_PRINCIPAL
from tests.support.doors.transport import FakeSessions, answering, begun, created, delta, gateway_over, memory_sessions
from transport.grpc_api import sessile_pb2 as pb
from transport.grpc_api.converse import ConverseCall


class Stream:
    """A client that sends what it is given and then closes its side."""

    def __init__(self, *requests: pb.ConverseRequest) -> None:
        self.requests = list(requests)
        self.replies: list[pb.ConverseReply] = []

    async def read(self) -> Any:
        return self.requests.pop(0) if self.requests else grpc.aio.EOF

    async def write(self, message: pb.ConverseReply) -> None:
        self.replies.append(message)

    @property
    def kinds(self) -> list[str | None]:
        return [reply.WhichOneof("reply") for reply in self.replies]


async def conversed(sessions: FakeSessions, *requests: pb.ConverseRequest) -> Stream:
    stream, gateway = Stream(*requests), gateway_over(sessions)
    opening = pb.Open(session="s", position=pb.Position(offset=0))
    await ConverseCall(gateway, LOCAL_PRINCIPAL, stream, opening).run_whole(asyncio.Event())
    assert len(gateway.feeds) == 0
    return stream


def create(id: str) -> pb.ConverseRequest:
    return pb.ConverseRequest(command=pb.Command(response_create=pb.ResponseCreate(id=id)))


async def test_a_client_that_only_reads_gets_the_log_to_its_top() -> None:
    sessions = await memory_sessions()
    await sessions.append("s", created(), *begun(), delta("a", 3))
    assert (await conversed(sessions)).kinds == ["resumed", *["event"] * 5, "caught_up"]


async def test_an_answer_comes_behind_its_events_and_the_stream_ends_with_the_response() -> None:
    sessions = await memory_sessions()
    await sessions.append("s", created())
    answering(sessions)
    stream = await conversed(sessions, create("c1"))
    (ok,) = [reply.ok for reply in stream.replies if reply.WhichOneof("reply") == "ok"]
    before = [reply.event.offset for reply in stream.replies[: stream.kinds.index("ok")] if reply.event.offset]
    assert ok.id == "c1" and before[-1] >= ok.offset
    assert stream.replies[-1].event.WhichOneof("event") == "response_completed" or stream.kinds[-1] == "ok"


async def test_a_wrong_command_is_answered_and_the_stream_goes_on() -> None:
    sessions = await memory_sessions()
    await sessions.append("s", created())
    unnamed, making = create(""), pb.ConverseRequest(command=pb.Command(session_create=pb.SessionCreate(id="c")))
    stream = await conversed(sessions, unnamed, making, pb.ConverseRequest(command=pb.Command()))
    assert sorted(str(kind) for kind in stream.kinds if kind == "error") == ["error"] * 3
    with pytest.raises(BadInput):
        await conversed(sessions, pb.ConverseRequest(open=pb.Open(session="s")))


async def test_a_deleted_session_ends_it() -> None:
    sessions = await memory_sessions()
    await sessions.append("s", created())
    await sessions.append("s", SessionDeleted())
    stream = await conversed(sessions)
    assert stream.replies[-1].event.offset == 2 or stream.kinds[-1] == "caught_up"
