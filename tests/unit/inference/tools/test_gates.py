"""What calls of all tools pass: room, and the breaker."""

from __future__ import annotations

import asyncio

import pytest

from inference.tools.gates import SHARED_PAUSE_S, SHARED_S, TENANT_CALLS_MAX, ToolGates
from inference.tools.opening import CALL_S
from sessions.metrics import Metrics
from sessions.model.types import TenantId
from sessions.server_tools import ToolResult
from tests.support.mcp.opened import request_of
from tests.support.virtual_time import run

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


class Shared:
    """Stands in for the breakers of a cluster; while `answers` is not set its calls hang."""

    def __init__(self) -> None:
        self.noted: list[bool] = []
        self.calls = 0
        self.permitted = True
        self.answers = asyncio.Event()
        self.answers.set()

    async def permits(self, tenant: TenantId, tool: str, *, failures_max: int, pause_s: float) -> bool:
        self.calls += 1
        await self.answers.wait()
        return self.permitted

    async def record(self, tenant: TenantId, tool: str, *, success: bool, failures_max: int, pause_s: float) -> None:
        self.calls += 1
        await self.answers.wait()
        self.noted.append(success)


def shared_gates() -> tuple[ToolGates, Shared]:
    shared = Shared()
    return ToolGates(Metrics().histograms("tool_call_duration_seconds", "", CALL_S, "tool"), shared), shared


def test_shared_breakers_that_hang_hold_no_call_up_for_long_and_no_result_at_all() -> None:
    async def hung() -> None:
        gate, shared = shared_gates()
        clock = asyncio.get_running_loop().time
        shared.answers.clear()
        begun_at = clock()
        assert await through(gate, DONE) == "done"
        assert clock() == pytest.approx(begun_at + SHARED_S)
        calls = shared.calls
        assert await through(gate, DONE) == "done" and shared.calls == calls, "a pause from the failure on"
        await asyncio.sleep(SHARED_PAUSE_S)
        shared.answers.set()
        assert await through(gate, DONE) == "done" and shared.calls > calls

    async def noted_late() -> None:
        gate, shared = shared_gates()

        async def work() -> ToolResult:
            shared.answers.clear()
            return DONE

        begun_at = asyncio.get_running_loop().time()
        result = await gate.through(request_of("a"), concurrency=1, timeout_s=9, work=work)
        assert result is DONE and asyncio.get_running_loop().time() == begun_at and not shared.noted
        shared.answers.set()
        await gate.close()
        assert shared.noted == [True]

    run(hung())
    run(noted_late())
