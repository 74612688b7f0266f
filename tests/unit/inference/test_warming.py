"""Which turns wait for what is brought up ahead of them."""

from __future__ import annotations

import asyncio

import pytest

from inference.tokens import as_tokens
from inference.warming import Warmings
from tests.support.engines.kv import key
from tests.support.virtual_time import settled, virtual

PROMPT = as_tokens(range(100))


@virtual
async def test_one_that_fails_keeps_nobody_waiting() -> None:
    warmings = Warmings()
    with pytest.raises(OSError, match="away"), warmings.of(key("a"), PROMPT):
        waiting = asyncio.ensure_future(warmings.settled(key("a"), PROMPT))
        await settled()
        raise OSError("away")
    await waiting
