"""A whole server in this process, and Anthropic's own SDK in front of it. Its import takes seconds, so that only the
worker that has these tests pays for it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import pytest

from inference.simulated import SimulatedOptions
from tests.support.doors.openai_server import Serving, serving

if TYPE_CHECKING:
    import anthropic


@pytest.fixture
async def server() -> AsyncIterator[Serving]:
    async with serving(SimulatedOptions(step_base_s=0.001, answer_tokens_mean=24)) as made:
        yield made


@pytest.fixture
async def client(server: Serving) -> AsyncIterator[anthropic.AsyncAnthropic]:
    import anthropic

    async with anthropic.AsyncAnthropic(base_url=server.server.url, api_key="none", max_retries=0) as made:
        yield made
