"""A whole server in this process with the simulated engine, and OpenAI's own SDK in front of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import httpx
import openai
import pytest

from actors.hosting.orphan_policy import OrphanPolicy
from inference.simulated import SimulatedOptions
from sessions.model.types import SessionKey
from tests.support.doors.openai_server import Serving, serving
from tests.support.doors.tool_service import ToolService, reply


@pytest.fixture
def options() -> SimulatedOptions:
    return SimulatedOptions(step_base_s=0.001, answer_tokens_mean=24)


@pytest.fixture
async def server(options: SimulatedOptions) -> AsyncIterator[Serving]:
    async with serving(options) as made:
        yield made


@pytest.fixture
async def client(server: Serving) -> AsyncIterator[openai.AsyncOpenAI]:
    async with server.client() as made:
        yield made


@pytest.fixture
async def http(server: Serving) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=server.server.url, timeout=60) as made:
        yield made


@pytest.fixture
async def service() -> AsyncIterator[ToolService]:
    """A service of tools that says how warm it is."""
    async with ToolService() as made:
        made.answer = lambda asked: reply({"degrees": 18})
        yield made


@pytest.fixture
def unread(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """An event that is set when a session's last reader has left, behind what the orphan policy does after no time."""
    begin, left = OrphanPolicy.unread, asyncio.Event()

    def noted(policy: OrphanPolicy, key: SessionKey) -> None:
        begin(policy, key)
        asyncio.get_running_loop().call_later(0.001, left.set)

    monkeypatch.setattr(OrphanPolicy, "unread", noted)
    return left
