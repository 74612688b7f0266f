"""Breakers of tools that two replicas share on Valkey, as their gates use them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from actors.limits.tool_breakers import ValkeyBreakers
from inference.tools.breaker import FAILURES_MAX, PAUSE_S
from inference.tools.gates import ToolGates
from inference.tools.opening import CALL_S
from sessions.metrics import Metrics
from sessions.model.errors import Unavailable
from sessions.model.types import TenantId
from sessions.server_tools import ToolResult
from testbed.valkey_server import Server
from tests.support.mcp.opened import request_of

pytestmark = pytest.mark.cluster
UNKNOWN, DONE = ToolResult(outcome="unknown", output=""), ToolResult(outcome="done", output="x")
ACME, OTHER = TenantId("acme"), TenantId("other")


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    running = Server()
    running.start()
    yield running
    running.stop()


@pytest.fixture
async def replicas(server: Server) -> AsyncIterator[tuple[ToolGates, ToolGates]]:
    client = server.client()
    client.flushall()
    client.close()
    shared = [ValkeyBreakers(server.unix_url) for _ in range(2)]
    one, two = (ToolGates(Metrics().histograms("calls", "", CALL_S, "tool"), each) for each in shared)
    yield one, two
    for breakers in shared:
        await breakers.close()


def end_pauses(server: Server) -> None:
    client = server.client()
    for key in client.scan_iter("*:tool_breakers:*"):
        client.hincrby(key, "u", -int(PAUSE_S * 1000) - 1)
    client.close()


async def through(gates: ToolGates, result: ToolResult, tenant: TenantId = ACME, tool: str = "a") -> str:
    async def work() -> ToolResult:
        return result

    request = request_of(tool, tenant=tenant)
    outcome = (await gates.through(request, concurrency=4, timeout_s=60, work=work)).outcome
    await gates.close()  # the outcome is noted behind its result
    return outcome


async def test_a_tool_that_failed_at_one_replica_gets_no_calls_from_another(
    server: Server, replicas: tuple[ToolGates, ToolGates]
) -> None:
    one, two = replicas
    for number in range(FAILURES_MAX):
        assert await through(replicas[number % 2], UNKNOWN) == "unknown"
    assert await through(one, DONE) == await through(two, DONE) == "not_sent"
    assert await through(two, DONE, OTHER) == await through(two, DONE, tool="b") == "done"
    end_pauses(server)
    assert await through(two, UNKNOWN) == "unknown"  # the one that is tried
    assert await through(one, DONE) == "not_sent"
    end_pauses(server)
    assert await through(one, DONE) == "done"
    assert await through(two, DONE) == "done"


async def test_a_success_between_ends_the_row(replicas: tuple[ToolGates, ToolGates]) -> None:
    one, two = replicas
    for _ in range(FAILURES_MAX - 1):
        await through(one, UNKNOWN)
    assert await through(two, DONE) == "done"
    assert await through(one, UNKNOWN) == "unknown"
    assert await through(two, DONE) == "done"


async def test_without_the_server_a_replica_counts_by_itself() -> None:
    gone = ValkeyBreakers("redis://127.0.0.1:1")
    with pytest.raises(Unavailable):
        await gone.permits(ACME, "a", failures_max=FAILURES_MAX, pause_s=PAUSE_S)
    gates = ToolGates(Metrics().histograms("calls", "", CALL_S, "tool"), gone)
    for _ in range(FAILURES_MAX):
        assert await through(gates, UNKNOWN) == "unknown"
    assert await through(gates, DONE) == "not_sent"
    await gone.close()
