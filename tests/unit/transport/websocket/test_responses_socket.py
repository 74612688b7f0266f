"""A Responses socket without a socket, in front of an application that a test writes."""

from __future__ import annotations

import asyncio
import json
import tracemalloc
from typing import Any

import pytest
from websockets.frames import Frame, Opcode

from sessions.model.errors import BadInput, SessileError
from tests.support.doors.socketless import SocketlessClient
from tests.support.doors.transport import gateway_over, memory_sessions
from transport.protocol.connection import ConnectionLimits
from transport.websocket import responses_frames, upgraded
from transport.websocket.connections import WebSocketConnections
from transport.websocket.responses_frames import read_frame
from transport.websocket.responses_socket import ResponsesConnection

CREATE = {"type": "response.create", "input": "x"}
RESPONSE = {"id": "resp_1", "status": "completed", "output": []}
PENDING = {"id": "steer_3", "response_id": "resp_3", "status": "pending", "required_input": []}


class App:
    """An application that answers with a stream of events, one after each `go`, and to steers that they wait."""

    def __init__(self) -> None:
        self.go = asyncio.Semaphore(0)
        self.scopes: list[Any] = []
        self.sent = 0
        self.left = asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.scopes.append(scope)
        await receive()
        if scope["path"].endswith("/steer"):
            await send({"type": "http.response.start", "status": 200, "headers": []})
            steered = {**PENDING, "previous_response_id": scope["path"].split("/")[3]}
            await send({"type": "http.response.body", "body": json.dumps(steered).encode()})
            return
        listening = asyncio.create_task(receive())
        listening.add_done_callback(lambda _: self.left.set())
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for number, kind in enumerate(("created", "output_text.delta", "output_text.delta", "completed")):
            await self.go.acquire()
            event = {"type": f"response.{kind}", "sequence_number": number, "response": RESPONSE}
            chunk = f"event: response.{kind}\ndata: {json.dumps(event)}\n\n".encode()
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
            self.sent += 1
        listening.cancel()


class Client(SocketlessClient[ResponsesConnection]):
    def __init__(self, connections: WebSocketConnections) -> None:
        connection = connections.protocol("/v1/responses?x=1", "127.0.0.1")
        assert isinstance(connection, ResponsesConnection)
        super().__init__(connection, "/v1/responses")

    def kinds(self) -> list[str]:
        return [json.loads(bytes(frame.data))["type"] for frame in self.frames() if frame.opcode is Opcode.TEXT]


async def settled() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


@pytest.fixture
async def app() -> App:
    return App()


@pytest.fixture
async def client(app: App) -> Client:
    gateway = gateway_over(await memory_sessions())
    return Client(WebSocketConnections(gateway, ConnectionLimits(), 10, app=app))


@pytest.mark.parametrize(("steered", "followed"), [("resp_1", ["/v1/responses/resp_3"]), ("resp_2", [])])
async def test_what_goes_on_from_another_response_is_not_written_here(
    client: Client, app: App, steered: str, followed: list[str]
) -> None:
    """A steer for a response of another connection had this one write what followed there."""
    client.send(CREATE)
    app.go.release()
    await settled()
    client.send({"type": "response.steer", "previous_response_id": steered, "input": "in French"})
    await settled()
    for _ in range(3):
        app.go.release()
    await settled()
    assert client.kinds()[:2] == ["response.created", "response.steer.accepted"]
    assert [scope["path"] for scope in app.scopes if scope["method"] == "GET"] == followed
    client.connection.connection_lost(None)


async def test_a_cancel_right_behind_a_turn_ends_it(client: Client, app: App) -> None:
    """It was refused, and the answer written to its end."""
    client.send(CREATE)
    client.send({"type": "response.cancel"})
    await settled()
    assert client.kinds() == [] and [scope["path"] for scope in app.scopes] == ["/v1/responses"]
    app.go.release()
    await settled()
    assert app.scopes[-1]["path"] == "/v1/responses/resp_1/cancel"
    client.connection.connection_lost(None)


async def test_parts_of_large_messages_have_a_bound_over_all_connections(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One key may have 10,000 connections, and each kept up to 4 MiB for as long as it liked."""
    monkeypatch.setattr(upgraded, "MESSAGE_BYTES_MAX", 150_000)
    connections = WebSocketConnections(gateway_over(await memory_sessions()), ConnectionLimits(), 10, app=app)
    first, second, third = (Client(connections) for _ in range(3))
    for each, bound in ((first, 90_000), (second, 190_000)):
        each.connection.data_received(Frame(Opcode.TEXT, b" " * 90_000, fin=False).serialize(mask=True))
        await settled()
        assert connections.message_bytes <= bound
    assert first.frames() == []
    *_, close = second.frames()
    assert close.opcode is Opcode.CLOSE and int.from_bytes(close.data[:2]) == 1013
    third.send(CREATE)
    app.go.release()
    await settled()
    assert third.kinds() == ["response.created"]
    for each in (first, second, third):
        each.connection.connection_lost(None)
    assert connections.message_bytes == 0


async def test_who_does_not_read_holds_the_stream_up_and_is_closed_in_time(client: Client, app: App) -> None:
    connection = client.connection
    client.send(CREATE)
    app.go.release()
    await settled()
    connection.pause_writing()
    for _ in range(3):
        app.go.release()
    await settled()
    assert app.sent == 1 and not client.transport.reading
    connection.resume_writing()
    await settled()
    assert app.sent == 4 and client.transport.reading
    client.frames()
    connection.pause_writing()
    connection.elapsed(asyncio.get_running_loop().time() + ConnectionLimits().timing.slow_reader_s)
    (close,) = client.frames()
    assert close.opcode is Opcode.CLOSE and int.from_bytes(close.data[:2]) == 4408
    connection.connection_lost(None)


async def test_a_silent_peer_is_pinged_and_then_closed(client: Client) -> None:
    connection, timing = client.connection, ConnectionLimits().timing
    now = asyncio.get_running_loop().time()
    connection.elapsed(now + timing.heartbeat_s + 0.1)
    (ping,) = client.frames()
    assert ping.opcode is Opcode.PING
    client.flush()  # websockets' client has answered
    client.frames()
    connection.elapsed(asyncio.get_running_loop().time() + timing.heartbeat_s - 1)
    assert client.frames() == []
    connection.elapsed(asyncio.get_running_loop().time() + timing.silence_s + 1)
    (close,) = client.frames()
    assert int.from_bytes(close.data[:2]) == 4412
    connection.connection_lost(None)


async def test_one_that_takes_too_long_is_left_at_the_end_of_the_time(client: Client, app: App) -> None:
    client.send(CREATE)
    await settled()
    client.connection.goaway("deploy", 5000)
    client.connection.elapsed(asyncio.get_running_loop().time() + 6)
    (close,) = client.frames()
    assert int.from_bytes(close.data[:2]) == 1012
    client.connection.connection_lost(None)


def frame(**fields: Any) -> responses_frames.ResponsesFrame:
    return read_frame(json.dumps(fields).encode())


def test_what_waits_takes_no_more_than_its_text() -> None:
    given = read_frame(b'{"type": "response.create", "input": [' + b"[]," * 100_000 + b"[]]}")
    tracemalloc.start()
    kept = read_frame(given.data)
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept == given and size < 100_000


@pytest.mark.parametrize(
    "data", [b"[]", b"x", b'{"type": "response.cancel"', b'{"type": 7}', b'{"type": "response.cancel", "a": \xff"}']
)
def test_what_is_no_frame_is_bad_input(data: bytes) -> None:
    with pytest.raises(BadInput):
        read_frame(data)


def test_text_that_is_no_text_is_bad_input_when_its_turn_comes() -> None:
    with pytest.raises(BadInput):
        responses_frames.turn_request(read_frame(b'{"type": "response.create", "input": "\xff"}'))


@pytest.mark.parametrize("name", ["", "a/b", "../x", "é", "x" * 129, 7, None])
def test_a_name_never_leads_elsewhere(name: Any) -> None:
    with pytest.raises(SessileError):
        responses_frames.steer_request(frame(type="response.steer", previous_response_id=name, input="x"))
    with pytest.raises(SessileError):
        responses_frames.turn_request(frame(type="response.retrieve", response_id=name))


def test_commands_take_no_more_than_they_know() -> None:
    for given in (
        frame(type="response.steer", previous_response_id="r", input="x", temperature=1),
        frame(type="response.cancel", stream=True),
    ):
        with pytest.raises(BadInput) as refused:
            if given.type == "response.steer":
                responses_frames.steer_request(given)
            else:
                responses_frames.cancel_request(given, "r")
        assert refused.value.code == "unknown_parameter"


@pytest.mark.parametrize("body", [b"", b"no json", b"[]", b'{"error": 1}'])
def test_an_answer_that_is_none_is_an_error_all_the_same(body: bytes) -> None:
    assert responses_frames.failed_event(500, body)["error"]["code"] == "internal_error"


def test_an_error_inside_a_stream_gets_a_status() -> None:
    shown = b'{"type":"error","code":"unauthorized","message":"m","param":null,"sequence_number":4}'
    event = json.loads(responses_frames.stream_error(shown))
    assert (event["status"], event["error"]["code"], event["sequence_number"]) == (401, "unauthorized", 4)


def test_only_data_leaves_a_chunk() -> None:
    assert responses_frames.payload_of(b'id: 3\nevent: x\ndata: {"a": 1}\n\n') == b'{"a": 1}'
    assert responses_frames.payload_of(b": still here\n\n") is None
    assert responses_frames.payload_of(b"data: [DONE]\n\n") is None
