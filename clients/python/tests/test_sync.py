"""The sync facade: the same session from a thread without a loop."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import AsyncIterator

import pytest
from fake_server import FakeServer

from sessile_client import Busy, Event, Limits, Lost, Phase, SessionGone, Snapshot, sync


@pytest.fixture
async def server() -> AsyncIterator[FakeServer]:
    async with FakeServer() as running:
        yield running


def client_of(server: FakeServer) -> sync.Client:
    return sync.Client(server.url, limits=Limits(backoff_first_s=0.001), rng=random.Random(4))


async def test_a_conversation(server: FakeServer) -> None:
    def talk() -> None:
        with client_of(server) as client:
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
        with client_of(server) as client:
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
        with client_of(server) as client:
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
    client = client_of(server)
    with pytest.raises(AttributeError):
        client.link = None  # type: ignore[assignment]
    assert sync.Client.error.__doc__ == "Why the client has stopped, if it has."
    with pytest.raises(Lost):
        client.ready()
