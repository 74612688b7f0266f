"""The `Bot` of the Python client against a whole server in this process."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from sessile_client import Bot, Client, FileInbox, FileStore, InvalidRequest, Limits, MemoryInbox

from inference.simulated import SimulatedOptions
from sessions.model.types import SessionId, SessionKey, TenantId
from tests.support.doors.openai_server import Serving, serving

QUICK = Limits(backoff_first_s=0.01, backoff_max_s=0.05)
WEATHER: dict[str, Any] = {
    "type": "function",
    "name": "weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}


class Wall:
    """A platform: messages by name, and every text that each one had."""

    def __init__(self) -> None:
        self.messages: dict[str, list[str]] = {}
        self.drawn = asyncio.Event()

    async def post(self, conversation: str, text: str) -> str:
        name = f"{conversation}/{len(self.messages)}"
        self.messages[name] = [text]
        return name

    async def edit(self, conversation: str, message: str, text: str) -> None:
        assert message.startswith(f"{conversation}/")
        self.messages[message].append(text)
        self.drawn.set()


@pytest.fixture
async def server() -> AsyncIterator[Serving]:
    async with serving(SimulatedOptions(step_base_s=0.002, answer_tokens_mean=30)) as made:
        yield made


def client_of(server: Serving, store: FileStore | None = None) -> Client:
    return Client(server.server.url.replace("http", "ws") + "/v1/ws", limits=QUICK, store=store)


async def said(server: Serving, session: str) -> list[tuple[str, str]]:
    """What the journal has of a session: (role, text)."""
    done = await server.gateway.logs.state(
        server.gateway.access.authenticate(None), SessionKey(TenantId("local"), SessionId(session))
    )
    return [(item.role, item.text) for item in done[1]["items"] if hasattr(item, "role")]


async def test_a_webhook_that_is_delivered_twice_is_answered_once(server: Serving) -> None:
    wall = Wall()
    async with client_of(server) as client, Bot(client, wall, every_s=0.02) as bot:
        first, second = await asyncio.gather(*[bot.receive("event-1", "C1", "Hello") for _ in range(2)])
        assert (first, second) == (True, False)
        assert await bot.receive("event-2", "C1", "And?") is True
        assert await bot.receive("event-3", "C2", "Elsewhere") is True
        await bot.idle()
        assert await bot.receive("event-1", "C1", "Hello") is False
        await bot.idle()
        log = await said(server, bot.session_of("C1"))
        assert [role for role, _ in log] == ["user", "assistant", "user", "assistant"]
        assert [texts[-1] for name, texts in wall.messages.items() if name.startswith("C1/")] == [log[1][1], log[3][1]]
        assert len(wall.messages) == 3
        for texts in wall.messages.values():
            assert texts[0] == "…" and all(texts[-1].startswith(text) for text in texts[1:])
        assert client._sessions == {}, "what nobody reads is let go"


async def test_a_bot_that_was_killed_goes_on_in_the_same_message(server: Serving, tmp_path: Path) -> None:
    server.engine.script.append("word " * 120)
    wall = Wall()
    async with client_of(server) as client, Bot(client, wall, every_s=0.01, inbox=FileInbox(tmp_path)) as bot:
        assert await bot.receive("event-1", "C1", "Hello")
        await wall.drawn.wait()
        # its tasks end with it, as they would with its process
        for task in bot._tasks:
            task.cancel()
    (message,) = wall.messages
    async with client_of(server) as client, Bot(client, wall, every_s=0.01, inbox=FileInbox(tmp_path)) as bot:
        await bot.idle()
        assert await bot.receive("event-1", "C1", "Hello") is False
        log = await said(server, bot.session_of("C1"))
    assert [role for role, _ in log] == ["user", "assistant"]
    assert list(wall.messages) == [message] and wall.messages[message][-1] == log[1][1] == "word " * 120
    assert await FileInbox(tmp_path).unfinished() == []


async def test_deliveries_and_positions_may_share_a_folder(server: Serving, tmp_path: Path) -> None:
    async with client_of(server, FileStore(tmp_path)) as client:
        session = await client.create_session()
        await session.send("Hello").text()
    inbox = FileInbox(tmp_path, keep_s=-1)  # all that is its own is old
    (position,) = tmp_path.glob("*.json")
    async with client_of(server) as client, Bot(client, Wall(), inbox=inbox) as bot:
        await bot.receive("event-1", "C1", "Hello")
        await bot.idle()
    assert await inbox.unfinished() == []
    assert list(tmp_path.glob("*.json")) == [position], "a position is nobody's old delivery"


async def test_tools_are_run_and_the_answer_goes_on(server: Serving) -> None:
    call = json.dumps({"name": "weather", "arguments": {"city": "Riga"}})
    server.engine.script += [f"<tool_call>\n{call}\n</tool_call>", "It is sunny."]
    asked: list[dict[str, Any]] = []

    async def weather(arguments: dict[str, Any]) -> str:
        asked.append(arguments)
        return "sunny"

    wall = Wall()
    tools = {"weather": (WEATHER, weather)}
    async with client_of(server) as client, Bot(client, wall, every_s=0.01, tools=tools) as bot:
        await bot.receive("event-1", "C1", "Weather?")
        await bot.idle()
    assert asked == [{"city": "Riga"}]
    assert [texts[-1] for texts in wall.messages.values()] == ["It is sunny."]


async def test_what_was_not_taken_may_be_delivered_again(server: Serving) -> None:
    wall, inbox = Wall(), MemoryInbox()
    async with client_of(server) as client, Bot(client, wall, inbox=inbox, temperature=9) as bot:
        for _ in range(2):
            with pytest.raises(InvalidRequest):
                await bot.receive("event-1", "C1", "Hello")
    assert wall.messages == {} and await inbox.unfinished() == []
