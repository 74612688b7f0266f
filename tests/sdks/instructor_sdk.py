"""Instructor: structured answers by tools, by JSON schema and by responses; streamed in parts."""

from __future__ import annotations

from typing import Any, Literal

import instructor
import pytest
from openai import AsyncOpenAI
from pydantic import BaseModel


class City(BaseModel):
    city: Literal["Rome", "Oslo"]
    size: int


MESSAGES: Any = [{"role": "user", "content": "Where is it?"}]
MODES = [
    instructor.Mode.TOOLS,
    instructor.Mode.TOOLS_STRICT,
    instructor.Mode.JSON_SCHEMA,
    instructor.Mode.RESPONSES_TOOLS,
]


def made(base_url: str, key: str, mode: instructor.Mode) -> Any:
    return instructor.from_openai(AsyncOpenAI(base_url=base_url, api_key=key, max_retries=0), mode=mode)


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.value)
async def test_an_answer_is_of_its_model(base_url: str, key: str, model: str, mode: instructor.Mode) -> None:
    client = made(base_url, key, mode)
    found = await client.chat.completions.create(model=model, messages=MESSAGES, response_model=City, max_retries=0)
    assert isinstance(found, City)


async def test_it_is_streamed_in_parts(base_url: str, key: str, model: str) -> None:
    client = made(base_url, key, instructor.Mode.TOOLS)
    parts = client.chat.completions.create_partial(model=model, messages=MESSAGES, response_model=City)
    last = None
    async for part in parts:
        last = part
    assert last is not None and last.city in ("Rome", "Oslo")
