"""What calls of all tools pass: room, and the breaker."""

from __future__ import annotations

import asyncio

from inference.tools.gates import TENANT_CALLS_MAX, ToolGates
from inference.tools.opening import CALL_S
from sessions.metrics import Metrics
from sessions.model.types import TenantId
from sessions.server_tools import ToolResult
from tests.support.mcp.opened import request_of

UNKNOWN, DONE = ToolResult(outcome="unknown", output=""), ToolResult(outcome="done", output="x")


def gates() -> ToolGates:
    return ToolGates(Metrics().histograms("tool_call_duration_seconds", "", CALL_S, "tool"))


async def through(gate: ToolGates, result: ToolResult, *, concurrency: int = 1) -> str:
    async def work() -> ToolResult:
        return result

    return (await gate.through(request_of("a"), concurrency=concurrency, timeout_s=0.05, work=work)).outcome


async def test_without_room_nothing_is_sent() -> None:
    gate, held = gates(), asyncio.Event()

    async def work() -> ToolResult:
        await held.wait()
        return DONE

    first = asyncio.create_task(gate.through(request_of("a"), concurrency=1, timeout_s=9, work=work))
    await asyncio.wait((first,), timeout=0.01)
    assert await through(gate, DONE) == "not_sent"
    held.set()
    assert (await first).outcome == "done" and await through(gate, DONE) == "done"


async def test_one_tenants_calls_leave_room_for_anothers() -> None:
    gate, held = gates(), asyncio.Event()

    async def work() -> ToolResult:
        await held.wait()
        return DONE

    async def done() -> ToolResult:
        return DONE

    def call(number: int) -> asyncio.Task[ToolResult]:
        made = gate.through(request_of(f"t{number}"), concurrency=1, timeout_s=9, work=work)
        return asyncio.create_task(made)

    calls = [call(number) for number in range(TENANT_CALLS_MAX)]
    await asyncio.wait(calls, timeout=0.01)
    assert await through(gate, DONE) == "not_sent"
    other = gate.through(request_of("a", tenant=TenantId("other")), concurrency=1, timeout_s=9, work=done)
    assert (await other).outcome == "done"
    held.set()
    assert {(await each).outcome for each in calls} == {"done"}
