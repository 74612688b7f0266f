"""Who closes a plain stream: its answer is cancelled unless somebody else reads it, whoever else is in its session."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any, TypeVar, cast

import httpx
import msgspec
import openai
import pytest
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from actors.hosting.runtime_limits import RuntimeLimits
from inference.simulated import SimulatedOptions
from sessions.model import commands as cm
from sessions.model.events import Record, ResponseBody, ResponseCreated
from sessions.model.types import Principal, SessionId, SessionKey, TenantId
from tests.support.doors.openai_server import SIMULATED, Serving, serving
from tests.support.doors.websocket_wire import wire
from transport.http.http_connection import HttpConnection
from transport.openai.continued import TERMINAL

T = TypeVar("T")

ENDLESS = "word " * 10_000
LONG = "word " * 200
CANCELLED = {"reason": "cancelled"}
ASK: list[dict[str, Any]] = [{"role": "user", "content": "hello"}]
DOORS: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", {"messages": ASK}),
    ("/v1/completions", {"prompt": "hello", "max_tokens": 9_999}),
    ("/v1/messages", {"messages": ASK, "max_tokens": 9_999}),
    ("/v1/responses", {"input": "hello"}),
    ("/v1/responses", {"input": "hello", "store": False}),
    ("/v1/responses", {"input": "hello", "conversation": "conversation"}),
]


async def told(client: openai.AsyncOpenAI) -> list[Any]:
    """A history that ends behind an answer of ours: whoever goes on from there is in one session."""
    messages: list[Any] = [{"role": "user", "content": "hello"}]
    completion = await client.chat.completions.create(model=SIMULATED, messages=messages)
    said = completion.choices[0].message.model_dump(exclude_none=True)
    return [*messages, said, {"role": "user", "content": "go on"}]


async def heard(stream: Any, *, choices: int = 1) -> str:
    """Reads until every choice of a chat has begun to speak; the id of the (first) response."""
    speaking = set()
    async for chunk in stream:
        speaking |= {choice.index for choice in chunk.choices if choice.delta.content}
        if len(speaking) == choices:
            return "resp_" + str(chunk.id).removeprefix("chatcmpl-")
    raise AssertionError("it ended before it was heard")


async def text(stream: Any) -> str:
    """What is left of a chat's stream."""
    return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])


async def until(server: Serving, found: Callable[[Sequence[Record]], T | None]) -> T:
    """What is found in the log of the history's session, as soon as it is there."""
    session = server.sessions[0]
    changed = asyncio.Event()
    stop = server.runtime.watch(SessionKey(TenantId("local"), SessionId(session)), lambda _: changed.set())
    try:
        while (it := found(server.log(session))) is None:
            await changed.wait()
            changed.clear()
        return it
    finally:
        stop()


async def end(server: Serving, response_id: str) -> ResponseBody:
    """How a response ends."""

    def found(log: Sequence[Record]) -> ResponseBody | None:
        ends = [record.event.response for record in log if isinstance(record.event, TERMINAL)]
        return next((body for body in ends if body.id == response_id), None)

    return await until(server, found)


async def begun(server: Serving, count: int) -> list[str]:
    """The newest so many responses, when so many were begun behind the one of the history."""

    def found(log: Sequence[Record]) -> list[str] | None:
        ids = [str(record.event.response_id) for record in log if isinstance(record.event, ResponseCreated)]
        return ids[-count:] if len(ids) == 1 + count else None

    return await until(server, found)


@asynccontextmanager
async def a_websocket(server: Serving, session: str) -> AsyncIterator[None]:
    async with wire(server.server.port) as ws:
        await ws.hello(resume=[{"session": session}])
        await ws.until(type="caught_up")
        yield


@asynccontextmanager
async def the_sessions_events(server: Serving, session: str) -> AsyncIterator[None]:
    async with (
        httpx.AsyncClient(base_url=server.server.url, timeout=60) as http,
        http.stream("GET", f"/v1/sessions/{session}/events") as stream,
        aclosing(cast(AsyncGenerator[str], stream.aiter_lines())) as lines,
    ):
        async for line in lines:
            if line == "event: caught_up":
                break
        yield


async def test_of_streams_of_one_history_each_is_cancelled_by_its_own_reader(
    client: openai.AsyncOpenAI, server: Serving
) -> None:
    ask: dict[str, Any] = {"model": SIMULATED, "messages": await told(client), "stream": True}
    server.engine.script += [ENDLESS, LONG, ENDLESS]
    streams = []
    for _ in range(3):
        stream = await client.chat.completions.create(**ask)
        streams.append((stream, await heard(stream)))
    (first, closed), (second, kept), (third, also_closed) = streams
    for stream, response_id in ((first, closed), (third, also_closed)):
        await stream.close()
        assert (await end(server, response_id)).incomplete_details == CANCELLED
    rest = await text(second)
    assert (await end(server, kept)).status == "completed" and LONG.endswith(rest)


async def test_what_is_begun_beside_an_answer_is_no_reader_of_it(
    client: openai.AsyncOpenAI, server: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stop, then regenerate at once: the second request is at the actor's door when the first one's end is noticed."""
    ask: dict[str, Any] = {"model": SIMULATED, "messages": await told(client), "stream": True}
    server.engine.script += [ENDLESS, LONG]
    stream: Any = await client.chat.completions.create(**ask)
    stopped = await heard(stream)
    execute, arrived, gate = server.gateway.execute, asyncio.Event(), asyncio.Event()

    async def held(principal: Principal, command: Any, *near: Any) -> cm.Ok:
        if isinstance(command, cm.TurnCreate):
            arrived.set()
            await gate.wait()
        return await execute(principal, command, *near)

    monkeypatch.setattr(server.gateway, "execute", held)
    beginning = asyncio.create_task(client.chat.completions.create(**ask))
    await arrived.wait()
    await stream.close()
    assert (await end(server, stopped)).incomplete_details == CANCELLED
    gate.set()
    assert await text(await beginning) == LONG


async def test_a_request_that_is_not_streamed_is_cancelled_beside_others(
    client: openai.AsyncOpenAI, server: Serving
) -> None:
    ask: dict[str, Any] = {"model": SIMULATED, "messages": await told(client)}
    server.engine.script += [LONG, ENDLESS]
    stream: Any = await client.chat.completions.create(**ask, stream=True)
    kept = await heard(stream)
    whole = asyncio.create_task(client.chat.completions.create(**ask))
    _, left = await begun(server, 2)
    whole.cancel()
    await asyncio.wait((whole,))
    assert (await end(server, left)).incomplete_details == CANCELLED
    assert LONG.endswith(await text(stream)) and (await end(server, kept)).status == "completed"


async def test_all_choices_of_a_stream_are_cancelled_beside_another(
    client: openai.AsyncOpenAI, server: Serving
) -> None:
    ask: dict[str, Any] = {"model": SIMULATED, "messages": await told(client), "stream": True}
    server.engine.script += [ENDLESS, ENDLESS, LONG]
    several: Any = await client.chat.completions.create(**ask, n=2, temperature=1)
    first = await heard(several, choices=2)
    beside: Any = await client.chat.completions.create(**ask)
    kept = await heard(beside)
    choices = (await begun(server, 3))[:2]
    assert first == choices[0]
    await several.close()
    assert [(await end(server, choice)).incomplete_details for choice in choices] == [CANCELLED] * 2
    assert LONG.endswith(await text(beside)) and (await end(server, kept)).status == "completed"


@pytest.mark.parametrize(("path", "body"), DOORS)
@pytest.mark.parametrize("stream", [True, False])
async def test_nothing_is_begun_for_a_client_that_leaves_before(
    server: Serving, monkeypatch: pytest.MonkeyPatch, path: str, body: dict[str, Any], stream: bool
) -> None:
    """Thousands of requests whose clients had left were begun one by one, and others were refused meanwhile."""
    arrived, lost, gate, began = asyncio.Event(), asyncio.Event(), asyncio.Event(), list[cm.TurnCreate]()
    gateway, attachments = server.gateway, server.gateway.files.attachments
    execute, lose = gateway.execute, HttpConnection.connection_lost

    def held(work: Callable[..., Any]) -> Callable[..., Any]:
        async def wait(*args: Any, **named: Any) -> Any:
            arrived.set()
            await gate.wait()
            return await work(*args, **named)

        return wait

    async def noted(principal: Principal, command: Any, *more: Any) -> cm.Ok:
        if isinstance(command, cm.TurnCreate):
            began.append(command)
        return await execute(principal, command, *more)

    def left(connection: HttpConnection, error: Exception | None) -> None:
        lose(connection, error)
        lost.set()

    async with httpx.AsyncClient(base_url=server.server.url, timeout=60) as http:
        if "conversation" in body:
            body = {**body, "conversation": (await http.post("/v1/conversations", json={})).json()["id"]}
    monkeypatch.setattr(gateway, "check_schemas", held(gateway.check_schemas))
    monkeypatch.setattr(attachments, "units", held(attachments.units))
    monkeypatch.setattr(gateway, "execute", noted)
    monkeypatch.setattr(HttpConnection, "connection_lost", left)
    lost.clear()
    async with httpx.AsyncClient(base_url=server.server.url, timeout=60) as http:
        asking = asyncio.create_task(http.post(path, json={"model": SIMULATED, "stream": stream, **body}))
        await asyncio.wait_for(arrived.wait(), 60)
        asking.cancel()
        await asyncio.wait((asking,))
    await asyncio.wait_for(lost.wait(), 60)
    gate.set()
    await asyncio.wait_for(asyncio.gather(*server.server._state.tasks), 60)
    assert not began and not server.engine.asked


def posted(path: str, body: dict[str, Any]) -> bytes:
    """A request as it stands on the wire."""
    asked = msgspec.json.encode({"model": SIMULATED, **body})
    lines = [f"POST {path} HTTP/1.1", "host: localhost", "content-type: application/json"]
    return "\r\n".join([*lines, f"content-length: {len(asked)}", "", ""]).encode() + asked


@pytest.mark.parametrize(("path", "body"), DOORS[:5])
async def test_nothing_is_begun_for_a_request_with_a_reset_behind_it(
    server: Serving, monkeypatch: pytest.MonkeyPatch, path: str, body: dict[str, Any]
) -> None:
    """The listener had it before anybody accepted it: what was sent can be read, and then that the sender is gone."""
    answered, statuses = asyncio.Event(), list[int]()
    send = RequestResponseCycle.send

    async def noted(cycle: RequestResponseCycle, message: Any) -> None:
        statuses.append(message.get("status", 0))
        answered.set()
        await send(cycle, message)

    monkeypatch.setattr(RequestResponseCycle, "send", noted)
    with socket.create_connection(("127.0.0.1", server.server.port)) as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.sendall(posted(path, body))
    await asyncio.wait_for(answered.wait(), 60)
    assert statuses[0] == 499 and not server.engine.asked and not server.sessions


async def test_an_answer_is_cancelled_that_has_another_request_behind_it(server: Serving) -> None:
    """The next request on the connection had been read, and only that one learned that the client was gone."""
    server.engine.script.append(ENDLESS)
    request = posted("/v1/chat/completions", {"messages": ASK, "stream": True})
    reader, writer = await asyncio.open_connection("127.0.0.1", server.server.port)
    writer.write(request + b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\n\r\n")
    await asyncio.wait_for(reader.readuntil(b'"content"'), 60)
    writer.transport.abort()
    (created,) = [
        record.event for record in server.log(server.sessions[0]) if isinstance(record.event, ResponseCreated)
    ]
    assert (await asyncio.wait_for(end(server, str(created.response_id)), 60)).incomplete_details == CANCELLED


@pytest.mark.parametrize("reading", [a_websocket, the_sessions_events])
async def test_whoever_reads_the_session_reads_every_answer(
    client: openai.AsyncOpenAI, server: Serving, reading: Any
) -> None:
    ask: dict[str, Any] = {"model": SIMULATED, "messages": await told(client), "stream": True}
    server.engine.script += [LONG, LONG]
    async with reading(server, server.sessions[0]):
        streams = [await client.chat.completions.create(**ask) for _ in range(2)]
        left = [await heard(stream) for stream in streams]
        for stream in streams:
            await stream.close()
        assert [(await end(server, response_id)).status for response_id in left] == ["completed"] * 2


async def test_a_repeated_request_reads_its_answer_on(client: openai.AsyncOpenAI, server: Serving) -> None:
    ask: dict[str, Any] = {"model": SIMULATED, "messages": await told(client), "stream": True}
    key = {"Idempotency-Key": "k"}
    server.engine.script += [LONG, ENDLESS]
    first: Any = await client.chat.completions.create(**ask, extra_headers=key)
    response_id = await heard(first)
    again: Any = await client.chat.completions.create(**ask, extra_headers=key)
    plain: Any = await client.chat.completions.create(**ask)
    stopped = await heard(plain)
    await first.close()
    await plain.close()
    assert (await end(server, stopped)).incomplete_details == CANCELLED
    assert await text(again) == LONG and (await end(server, response_id)).status == "completed"


@pytest.mark.parametrize("store", [True, False])
async def test_responses_of_one_session_are_cancelled_by_their_own_readers(
    client: openai.AsyncOpenAI, server: Serving, store: bool
) -> None:
    before = await client.responses.create(model=SIMULATED, input="hello", store=store)
    question: Any = {"role": "user", "content": "go on"}
    ask: dict[str, Any] = {"model": SIMULATED, "store": store, "stream": True}
    if store:
        ask |= {"input": [question], "previous_response_id": before.id}
    else:
        said = {"role": "assistant", "content": before.output_text}
        ask["input"] = [{"role": "user", "content": "hello"}, said, question]
    server.engine.script += [ENDLESS, LONG]
    closed: Any = await client.responses.create(**ask)
    closed_id = (await anext(aiter(closed))).response.id
    kept: Any = await client.responses.create(**ask)
    await anext(aiter(kept))
    await closed.close()
    assert (await end(server, closed_id)).incomplete_details == CANCELLED
    *_, last = [event async for event in kept]
    assert last.type == "response.completed" and last.response.output_text == LONG


async def test_a_response_that_somebody_else_reads_goes_on(client: openai.AsyncOpenAI, server: Serving) -> None:
    before = await client.responses.create(model=SIMULATED, input="hello")
    ask: dict[str, Any] = {"model": SIMULATED, "input": "go on", "previous_response_id": before.id, "stream": True}
    server.engine.script += [LONG, ENDLESS]
    streams: list[Any] = [await client.responses.create(**ask) for _ in range(2)]
    shared, alone = [(await anext(aiter(stream))).response.id for stream in streams]
    reader: Any = await client.responses.retrieve(shared, stream=True)
    await anext(aiter(reader))
    for stream in streams:
        await stream.close()
    assert (await end(server, alone)).incomplete_details == CANCELLED
    *_, last = [event async for event in reader]
    assert last.type == "response.completed" and last.response.output_text == LONG


@pytest.mark.parametrize(
    ("path", "body"),
    [pytest.param(*door, marks=() if door in (DOORS[0], DOORS[4]) else pytest.mark.slow) for door in DOORS],
)
async def test_where_the_gateway_dies_an_answer_ends_that_its_client_would_have_cancelled(
    options: SimulatedOptions, monkeypatch: pytest.MonkeyPatch, unread: asyncio.Event, path: str, body: dict[str, Any]
) -> None:
    """A gateway that has died cancels nothing. An answer to a request with a key goes on for whoever repeats it."""
    limits = RuntimeLimits(attended_after_s=0.0)
    async with serving(options, runtime_limits=limits) as server, httpx.AsyncClient(timeout=60) as http:

        async def cancel(*_: Any, **__: Any) -> None:
            return None

        monkeypatch.setattr(server.gateway, "cancel", cancel)
        http.base_url = server.server.url
        for headers, text, reason in (({}, ENDLESS, "orphaned"), ({"Idempotency-Key": "k"}, LONG, None)):
            if "conversation" in body:  # one each: the first answer may have filled most of the window
                body = {**body, "conversation": (await http.post("/v1/conversations", json={})).json()["id"]}
            unread.clear()
            server.engine.script.append(text)
            ask: dict[str, Any] = {"model": SIMULATED, "stream": True, **body}
            async with http.stream("POST", path, json=ask, headers=headers) as stream:
                async with aclosing(cast(AsyncGenerator[str], stream.aiter_lines())) as lines:
                    await anext(lines)
                session = stream.headers["x-session-id"]
            await unread.wait()
            await server.ended(session)
            (*_, last) = [record.event for record in server.log(session) if isinstance(record.event, TERMINAL)]
            assert (last.response.incomplete_details or {}).get("reason") == reason
            shown = await http.get(f"/v1/responses/{last.response.id}")
            assert "attended" not in shown.text


@pytest.mark.parametrize(("path", "body"), DOORS[:5])
async def test_a_server_that_leaves_ends_its_streams_with_an_error(
    options: SimulatedOptions, path: str, body: dict[str, Any]
) -> None:
    """They were cut without a word, five seconds later. The events of a session end with the first step, answers with
    the second."""
    async with serving(options) as server, httpx.AsyncClient(base_url=server.server.url, timeout=60) as http:
        server.engine.script += [ENDLESS, ENDLESS]
        ask = {"model": SIMULATED, **body}
        async with (
            http.stream("POST", path, json={**ask, "stream": True}) as streamed,
            http.stream("GET", f"/v1/sessions/{streamed.headers['x-session-id']}/events") as followed,
        ):
            whole = asyncio.create_task(http.post(path, json=ask))
            answer = cast(AsyncGenerator[str], streamed.aiter_lines())
            async with aclosing(answer):
                await anext(answer)
                while len(server.sessions) < 2:
                    await http.get("/healthz")
                server.gateway.drain()
                assert "draining" in (await followed.aread()).decode().splitlines()[-2]
                assert "".join([await anext(answer) for _ in range(9)])
                server.gateway.drain(answers=True)
                assert "draining" in "".join([line async for line in answer][-2:])
            assert (await whole).status_code == 503 and "draining" in (await whole).text
