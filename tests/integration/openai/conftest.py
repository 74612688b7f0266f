"""A whole server in this process with the simulated engine, and OpenAI's own SDK in front of it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import openai
import pytest

from inference.simulated import SimulatedOptions
from tests.support.doors.openai_server import Serving, serving


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
