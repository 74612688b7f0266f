"""The whole client over real sockets, against a scripted server."""

from __future__ import annotations

import asyncio
import json
import random
import threading
from collections.abc import AsyncIterator, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from fake_server import FakeServer

from sessile_client import (
    Busy,
    Client,
    CommandTimeout,
    ConnectionStopped,
    Event,
    FileStore,
    Limits,
    Lost,
    MemoryStore,
    Phase,
    SessionGone,
    Snapshot,
    TooManyCommands,
    WireError,
    sync,
)
from sessile_client._model_notice import model_notice

#: reconnecting waits next to nothing, so that tests do not
QUICK = Limits(backoff_first_s=0.001, backoff_max_s=0.01)


@pytest.fixture
async def server() -> AsyncIterator[FakeServer]:
    async with FakeServer() as running:
        yield running


def client_of(server: FakeServer, **options: Any) -> Client:
    return Client(server.url, **{"limits": QUICK, "rng": random.Random(3), **options})


async def test_awaiting_a_response_waits_for_its_acceptance_only(server: FakeServer) -> None:
    server.hold_after = 1
    async with client_of(server) as client:
        session = await client.create_session()
        response = await session.send("hi")
        assert response.id is not None
        assert response.item_id is not None
        assert response.status in ("waiting", "in_progress")
        server.release()
        assert await response.text() == "you said hi "
        assert response.status == "completed"
        assert response.usage == {"input_tokens": 3, "output_tokens": 2}


async def test_a_snapshot_in_mid_answer_keeps_the_text_whole(server: FakeServer) -> None:
    server.hold_after = 2
    async with client_of(server) as client:
        session = await client.create_session()
        response = session.send("a b c")
        pieces: list[str] = []
        async for piece in response:
            pieces.append(piece)
            if "".join(pieces) == "you said ":
                server.logs[session.id].trimmed = 10_000
                server.cut()
                server.release()
        assert "".join(pieces) == "you said a b c "


async def test_an_answer_that_ended_behind_a_snapshot_is_still_given(server: FakeServer) -> None:
    async with client_of(server) as client:
        session = await client.create_session()
        log = server.logs[session.id]
        log.trimmed = 10_000
        server.silent = {"hello"}  # the next connection stays mute until the answer is whole
        response = session.send("all at once")
        await response
        server.cut()
        await server.until(lambda: log.events[-1]["type"] == "response.completed")
        server.silent = set()
        server.cut()
        assert await response.text() == "you said all at once "


async def test_a_reader_of_events_who_lags_gets_a_snapshot(server: FakeServer) -> None:
    limits = Limits(backoff_first_s=0.001, events_max=5)
    async with client_of(server, limits=limits) as client:
        session = await client.create_session()
        reader = session.events()
        await anext(reader)
        await session.send("a long enough answer to overflow the buffer").text()
        entry = await anext(reader)
        assert isinstance(entry, Snapshot)
        assert entry.mode == "lagged"
        assert entry.offset == session.offset


async def test_pieces_go_on_after_a_retraction_and_text_has_it(server: FakeServer) -> None:
    server.hold_after = 2
    async with client_of(server) as client:
        session = await client.create_session()
        response = session.send("all")
        pieces: list[str] = []
        async for piece in response:
            pieces.append(piece)
            if "".join(pieces) == "you said ":
                span = {"start": 0, "end": 3, "replacement": "somebody", "category": "x", "content_index": 0}
                ids = {"response_id": response.id, "item_id": response.output[0].id}
                server.logs[session.id].put({"type": "content.retracted", **ids, **span})
                server.release()
        assert "".join(pieces) == "you said all "
        assert await response.text() == "somebody said all "


async def test_sessions_are_listed_page_by_page(server: FakeServer) -> None:
    async with client_of(server) as client:
        for index in range(5):
            await client.create_session(f"ses_{index}", title=str(index))
        listed = [info async for info in client.sessions(page=2)]
        assert [info.id for info in listed] == [f"ses_{index}" for index in (4, 3, 2, 1, 0)]
        assert listed[0].title == "4"
        assert sum(frame["type"] == "session.list" for frame in server.received) == 3


async def test_a_detached_session_raises_lost(server: FakeServer) -> None:
    server.hold_after = 0
    async with client_of(server) as client:
        session = await client.create_session()
        response = await session.send("hi")
        waiting = asyncio.ensure_future(response.text())
        await asyncio.sleep(0)
        await session.close()
        with pytest.raises(Lost):
            await waiting
        await server.until(lambda: any(frame["type"] == "unsubscribe" for frame in server.received))


async def test_closing_ends_every_wait(server: FakeServer) -> None:
    server.silent = {"session.get"}
    async with client_of(server) as client:
        session = await client.create_session()
        waiting = asyncio.ensure_future(session.get())
        await server.until(lambda: any(frame["type"] == "session.get" for frame in server.received))
    with pytest.raises(Lost):
        await waiting
    with pytest.raises(Lost):
        await session.get()


async def test_no_answer_in_time_is_said_to_be_unknown(server: FakeServer) -> None:
    server.silent = {"session.get"}
    async with client_of(server, limits=Limits(command_timeout_s=0.05)) as client:
        session = await client.create_session()
        with pytest.raises(CommandTimeout) as timeout:
            await session.get()
        assert timeout.value.command_id == server.received[-1]["id"]


async def test_the_number_of_unanswered_commands_is_bounded(server: FakeServer) -> None:
    server.silent = {"session.warm"}
    async with client_of(server, limits=Limits(commands_max=40)) as client:
        session = await client.create_session()
        warming = [asyncio.ensure_future(session.warm()) for _ in range(40)]
        await server.until(lambda: sum(f["type"] == "session.warm" for f in server.received) == 24)
        with pytest.raises(TooManyCommands):
            await session.warm()
        await client.close()
        results = await asyncio.gather(*warming, return_exceptions=True)
        assert all(isinstance(result, Lost) for result in results)


async def test_what_cannot_be_sent_is_refused_at_once(server: FakeServer) -> None:
    async with client_of(server, limits=Limits(command_bytes_max=2000)) as client:
        session = await client.create_session()
        with pytest.raises(WireError, match="over 2000"):
            session.send("x" * 3000)
        with pytest.raises(WireError, match="beyond"):
            session.send("x", seed=2**53)
        with pytest.raises(WireError, match="encoded"):
            session.send("x", seed=float("nan"), stop=object())
        assert await session.send("still fine").text() == "you said still fine "


async def test_a_server_that_is_not_ours_stops_the_client() -> None:
    async def not_found(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    listener = await asyncio.start_server(not_found, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    async with listener, Client(f"ws://127.0.0.1:{port}/v1/ws", limits=QUICK) as client:
        with pytest.raises(ConnectionStopped) as stopped:
            await client.ready()
        assert stopped.value.http_status == 404


async def test_a_key_function_is_asked_for_every_attempt(server: FakeServer) -> None:
    keys = iter(["one", "two", "three"])

    async def key() -> str:
        return next(keys)

    async with client_of(server, api_key=key) as client:
        await client.ready()
        await server.close_all(4402)
        await server.until(lambda: server.dialled == 2)
        await client.ready()
        assert next(keys) == "three"


@pytest.mark.parametrize("kind", ["memory", "file"])
async def test_a_new_process_goes_on_where_the_old_one_stopped(server: FakeServer, kind: str, tmp_path: Path) -> None:
    store = MemoryStore() if kind == "memory" else FileStore(tmp_path / "positions")
    server.hold_after = 2
    async with client_of(server, store=store) as client:
        session = await client.create_session()
        async for text in session.send("a b").texts():
            if text == "you said ":
                break
        position = session.offset
    server.received.clear()
    server.release()
    store = store if kind == "memory" else FileStore(tmp_path / "positions")
    async with client_of(server, store=store) as client:
        again = await client.session(session.id)
        subscribed = next(f for f in server.received if f["type"] in ("subscribe", "hello") and "ession" in str(f))
        entry = subscribed.get("resume", [subscribed])[0]
        assert (entry["epoch"], entry["offset"]) == ("ep_1", position)
        response_id = next(iter(again.view.responses))
        assert await again.response(response_id).text() == "you said a b "
        await again.delete()
        assert [entry async for entry in again.events()]
        assert again.phase is Phase.DELETED
    assert await store.load(session.id) is None


def test_an_unknown_option_is_refused() -> None:
    with pytest.raises(TypeError, match="speed"):
        Client("ws://127.0.0.1", speed=1)  # type: ignore[call-arg]


async def test_what_the_model_reads_can_be_chosen(server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[tuple[str, dict[str, Any]]] = []

    async def command(type_: str, *, command_id: str | None = None, **fields: Any) -> dict[str, Any]:
        assert fields.pop("session") == session.id
        sent.append((type_, fields))
        return {"compaction_id": "cmp_1"}

    async with client_of(server) as client:
        session = await client.create_session()
        monkeypatch.setattr(client, "command", command)
        assert await session.compact() == "cmp_1"
        await session.compact(keep_turns=0, item_id="item_1")
        await session.undo_compaction()
        await session.undo_compaction("cmp_1")
        await session.pin("item_1")
        await session.pin("item_1", False)
    assert sent == [
        ("session.compact", {}),
        ("session.compact", {"keep_turns": 0, "item_id": "item_1"}),
        ("compaction.undo", {}),
        ("compaction.undo", {"compaction_id": "cmp_1"}),
        ("item.pin", {"item_id": "item_1", "pinned": True}),
        ("item.pin", {"item_id": "item_1", "pinned": False}),
    ]


class Models(HTTPServer):
    body: Any
    keys: list[str | None]


class Handler(BaseHTTPRequestHandler):
    server_of_model_notice: Models

    def do_GET(self) -> None:
        self.server.keys.append(self.headers["authorization"])
        if self.server.body == "elsewhere":
            self.send_response(302)
            self.send_header("location", f"http://localhost:{self.server.server_address[1]}/stolen")
        else:
            self.send_response(200 if self.path == "/v1/models" else 404)
        self.end_headers()
        self.wfile.write(json.dumps(self.server.body).encode())

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def server_of_model_notice() -> Iterator[Models]:
    with Models(("127.0.0.1", 0), Handler) as made:
        made.keys, made.body = [], {"data": [{"id": "m", "notice": "This is a toy."}]}
        thread = threading.Thread(target=made.serve_forever, args=(0.01,))
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def test_the_notice_is_read_with_the_key(server_of_model_notice: Models) -> None:
    url = f"ws://127.0.0.1:{server_of_model_notice.server_address[1]}/v1/ws"
    assert model_notice(url, "sk-1") == "This is a toy."
    assert model_notice(url) == "This is a toy." and server_of_model_notice.keys == ["Bearer sk-1", None]


@pytest.mark.parametrize("body", [{}, {"data": []}, {"data": [{"id": "m"}]}, {"data": [{"notice": None}]}, [], 5])
def test_where_there_is_none_nothing_is_shown(server_of_model_notice: Models, body: Any) -> None:
    server_of_model_notice.body = body
    assert model_notice(f"ws://127.0.0.1:{server_of_model_notice.server_address[1]}/v1/ws") is None


def test_a_key_follows_no_redirect(server_of_model_notice: Models) -> None:
    server_of_model_notice.body = "elsewhere"
    assert model_notice(f"ws://127.0.0.1:{server_of_model_notice.server_address[1]}/v1/ws", "sk-1") is None
    assert server_of_model_notice.keys == ["Bearer sk-1"]


def test_no_server_is_no_trouble() -> None:
    assert model_notice("ws://127.0.0.1:1/v1/ws") is None
    assert model_notice("file:///etc/passwd") is None


def sync_client_of(server: FakeServer) -> sync.Client:
    return sync.Client(server.url, limits=Limits(backoff_first_s=0.001), rng=random.Random(4))


async def test_a_conversation(server: FakeServer) -> None:
    def talk() -> None:
        with sync_client_of(server) as client:
            client.ready(5)
            session = client.create_session(title="T")
            assert "".join(session.send("one two")) == "you said one two "
            second = session.send("three").accepted(5)
            assert second.text(5) == "you said three "
            assert second.status == "completed"
            assert second.usage is not None
            assert [item.text for item in session.items] == ["one two", "you said one two ", "three", "you said three "]
            assert session.title == "T"
            assert second.item_id is not None
            assert session.edit(second.item_id, "four").text(5) == "you said four "
            assert session.regenerate().wait(5).status == "completed"
            assert not session.cancel()
            assert session.get()["offset"] == session.offset
            session.warm()
            session.update(title="U")
            assert [info.id for info in client.sessions(page=1)] == [session.id]
            session.delete()
            kinds = [e.type for e in session.events() if isinstance(e, Event)]
            assert kinds in ([], ["session.deleted"])
            assert session.phase is Phase.DELETED

    await asyncio.to_thread(talk)


async def test_leaving_an_iteration_cancels_nothing(server: FakeServer) -> None:
    server.hold_after = 1
    loop = asyncio.get_running_loop()

    def talk() -> None:
        with sync_client_of(server) as client:
            session = client.create_session()
            response = session.send("and on")
            for text in response:
                assert text == "you "
                break
            events = session.events()
            assert isinstance(next(events), Snapshot)
            loop.call_soon_threadsafe(server.release)
            assert response.text(5) == "you said and on "
            assert response.text_so_far == "you said and on "
            assert list(response.texts())[-1] == "you said and on "
            assert session.response(response.id or "").text(5) == "you said and on "

    await asyncio.to_thread(talk)


async def test_errors_come_through(server: FakeServer) -> None:
    server.hold_after = 0

    def talk() -> None:
        with sync_client_of(server) as client:
            with pytest.raises(SessionGone):
                client.session("ses_none")
            session = client.create_session()
            response = session.send("hi").accepted()
            with pytest.raises(Busy):
                session.send("again").accepted()
            with pytest.raises(TimeoutError):
                response.wait(0.01)
            assert response.cancel()
            assert response.incomplete_reason == "cancelled"
        with pytest.raises(Lost):
            client.create_session()
        with pytest.raises(Lost):
            session.send("late")

    await asyncio.to_thread(talk)
    assert not [thread for thread in threading.enumerate() if thread.name == "sessile-client"]


def test_what_is_read_cannot_be_set_and_keeps_its_documentation(server: FakeServer) -> None:
    client = sync_client_of(server)
    with pytest.raises(AttributeError):
        client.link = None  # type: ignore[assignment]
    assert sync.Client.error.__doc__ == "Why the client has stopped, if it has."
    with pytest.raises(Lost):
        client.ready()
