"""Turns of requests that change the same thing of a tenant."""

from __future__ import annotations

import asyncio

import pytest

from sessions.model.errors import Limited
from sessions.model.types import TenantId
from transport.tenant_turns import TenantTurns

ACME, BETA = TenantId("acme"), TenantId("beta")


async def test_one_of_a_tenant_has_its_turn_few_wait_and_nothing_stays() -> None:
    turns, order, leave = TenantTurns(waiting_max=2), list[str](), asyncio.Event()

    async def change(tenant: TenantId, name: str) -> None:
        async with turns.turn(tenant):
            order.append(name)
            await leave.wait()

    tasks = [asyncio.create_task(change(ACME, name)) for name in ("a", "b", "c")]
    tasks.append(asyncio.create_task(change(BETA, "other")))
    await asyncio.sleep(0)
    assert order == ["a", "other"]
    with pytest.raises(Limited) as error:
        await change(ACME, "d")
    assert error.value.code == "rate_limited" and error.value.retry_after_ms
    tasks[1].cancel()
    leave.set()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert order == ["a", "other", "c"]
    assert not turns._locks and not turns._present
