"""Which turns wait for what is brought up ahead of them."""

from __future__ import annotations

import asyncio

import pytest

from inference.tokens import as_tokens
from inference.warming import Warmings
from tests.support.engines.kv import key
from tests.support.virtual_time import settled, virtual

PROMPT = as_tokens(range(100))
EDITED = as_tokens([*range(49), *range(500, 600)])


@virtual
async def test_a_turn_waits_for_what_is_mostly_its_own_prompt() -> None:
    warmings = Warmings()
    with warmings.of(key("a"), PROMPT):
        assert key("a") in warmings and key("b") not in warmings
        waiting = asyncio.ensure_future(warmings.settled(key("a"), as_tokens(range(120))))
        await settled()
        assert not waiting.done()
        await warmings.settled(key("a"), EDITED)
        await warmings.settled(key("b"), PROMPT)
    await waiting
    assert key("a") not in warmings
    await warmings.settled(key("a"), PROMPT)


@virtual
async def test_one_that_fails_keeps_nobody_waiting() -> None:
    warmings = Warmings()
    with pytest.raises(OSError, match="away"), warmings.of(key("a"), PROMPT):
        waiting = asyncio.ensure_future(warmings.settled(key("a"), PROMPT))
        await settled()
        raise OSError("away")
    await waiting
