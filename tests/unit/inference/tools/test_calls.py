"""Calls of tools over HTTP: room, breakers, addresses that were looked at, keys, retries."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import msgspec
import pytest

from inference.tools.breaker import FAILURES_MAX, PAUSE_S, CircuitBreaker
from inference.tools.gates import SHARED_PAUSE_S, SHARED_S, TENANT_CALLS_MAX, ToolGates
from inference.tools.opening import CALL_S
from inference.tools.outbound import ToolHttpClient, ToolUnanswered, ToolUnreached
from inference.tools.tool_set import ToolSet
from sessions.metrics import Metrics
from sessions.model.types import CallId, ResponseId, SessionId, SessionKey, TenantId
from sessions.public_addresses import AddressRules
from sessions.server_tools import ToolRequest, ToolResult
from tests.support.doors.tool_service import ToolService, opened_tools, reply, tools_toml
from tests.support.mcp.opened import request_of
from tests.support.virtual_time import run

# -- gates
UNKNOWN, DONE = ToolResult(outcome="unknown", output=""), ToolResult(outcome="done", output="x")


def gates() -> ToolGates:
    return ToolGates(Metrics().histograms("tool_call_duration_seconds", "", CALL_S, "tool"))


async def through(gate: ToolGates, result: ToolResult, *, concurrency: int = 1) -> str:
    async def work() -> ToolResult:
        return result

    return (await gate.through(request_of("a"), concurrency=concurrency, timeout_s=0.05, work=work)).outcome


async def test_without_room_nothing_is_sent_and_a_tenants_calls_leave_room_for_the_next() -> None:
    gate, held = gates(), asyncio.Event()

    async def work() -> ToolResult:
        await held.wait()
        return DONE

    async def done() -> ToolResult:
        return DONE

    def call(tool: str) -> asyncio.Task[ToolResult]:
        return asyncio.create_task(gate.through(request_of(tool), concurrency=1, timeout_s=9, work=work))

    calls = [call("a")]
    await asyncio.wait(calls, timeout=0.01)
    assert await through(gate, DONE) == "not_sent", "the tool has no room"
    calls += [call(f"t{number}") for number in range(1, TENANT_CALLS_MAX)]
    await asyncio.wait(calls, timeout=0.01)
    full = await gate.through(request_of("b"), concurrency=1, timeout_s=0.05, work=done)
    assert full.outcome == "not_sent", "and the tenant has none at any other"
    other = gate.through(request_of("b", tenant=TenantId("other")), concurrency=1, timeout_s=9, work=done)
    assert (await other).outcome == "done"
    held.set()
    assert {(await each).outcome for each in calls} == {"done"} == {await through(gate, DONE)}


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


# -- outbound
LOOPBACK = AddressRules(["127.0.0.0/8"])


@pytest.fixture
async def service() -> AsyncIterator[ToolService]:
    async with ToolService() as made:
        yield made


@pytest.fixture
async def client() -> AsyncIterator[ToolHttpClient]:
    async with ToolHttpClient() as made:
        yield made


async def send(
    client: ToolHttpClient, url: str, rules: AddressRules = LOOPBACK, timeout_s: float = 60.0
) -> tuple[int, bytes, bool]:
    return await client.send("POST", url, rules, body=b"{}", headers={}, timeout_s=timeout_s, bytes_max=100)


@pytest.mark.parametrize(
    "address", ["127.0.0.1", "10.0.0.1", "169.254.169.254", "::1", "::ffff:10.0.0.1", "64:ff9b::a9fe:a9fe"]
)
async def test_a_name_that_leads_inside_is_not_asked(address: str) -> None:
    async def resolve(host: str, port: int) -> Sequence[str]:
        return ["93.184.216.34", address]

    async with ToolHttpClient(resolve=resolve) as client:
        with pytest.raises(ToolUnreached, match="not permitted"):
            await send(client, "https://weather.example/", AddressRules())


async def test_what_was_looked_at_is_what_is_connected_to(service: ToolService) -> None:
    asked: list[str] = []

    async def resolve(host: str, port: int) -> Sequence[str]:
        asked.append(host)
        return ["127.0.0.1"] if len(asked) == 1 else ["10.0.0.1"]

    async with ToolHttpClient(resolve=resolve) as client:
        assert (await send(client, f"{service.url}/x"))[0] == 200
    assert asked == ["127.0.0.1"], "resolved once for a connection"


async def test_a_redirect_is_not_followed_and_a_flood_is_cut(client: ToolHttpClient, service: ToolService) -> None:
    service.answer = lambda asked: reply({}, 302, headers=f"location: {service.url}/y\r\n")
    assert (await send(client, f"{service.url}/x"))[0] == 302 and len(service.asked) == 1
    service.answer = lambda asked: b"HTTP/1.1 200 x\r\n\r\n" + b"a" * 1_000_000
    assert await send(client, f"{service.url}/x") == (200, b"a" * 100, True)


async def test_one_that_lies_hangs_or_is_not_there(client: ToolHttpClient, service: ToolService) -> None:
    service.answer = lambda asked: b"HTTP/1.1 200 x\r\ncontent-length: 50\r\n\r\nshort"
    with pytest.raises(ToolUnanswered):
        await send(client, f"{service.url}/x")
    service.answer = lambda asked: b"nonsense\r\n\r\n"
    with pytest.raises(ToolUnanswered):
        await send(client, f"{service.url}/x")
    service.hold = asyncio.Event()
    with pytest.raises(ToolUnanswered, match="in time"):
        await send(client, f"{service.url}/x", timeout_s=0.2)
    service.hold.set()
    with pytest.raises(ToolUnreached):
        await send(client, "http://127.0.0.1:9/x")


# -- http tools
@pytest.fixture
async def tools(service: ToolService, tmp_path: Path) -> AsyncIterator[ToolSet]:
    secret = 'headers.authorization = {env = "TOOL_SECRET", prefix = "Bearer "}\n'
    text = tools_toml(
        service,
        keyed='idempotency = "key"\ntimeout_s = 0.5\n' + secret,
        plain="timeout_s = 0.3\n",
        got='method = "GET"\nheaders.a = {env = "NOT_SET"}\n',
        asked='method = "GET"\n',
    )
    async with opened_tools(tmp_path / "tools.toml", text) as made:
        yield made


def request(name: str, key: str = "call_1") -> ToolRequest:
    return ToolRequest(
        key=SessionKey(TenantId("acme"), SessionId("s")),
        response_id=ResponseId("r"),
        call_id=CallId("c"),
        name=name,
        arguments='{"city": "Rome", "n": 1}',
        execution_id=key,
    )


async def call(tools: ToolSet, name: str) -> ToolResult:
    return await tools.call(request(name))


async def test_errors_say_nothing_of_addresses_or_secrets(tools: ToolSet, service: ToolService) -> None:
    port = str(service.port)
    missing = await call(tools, "got")
    assert missing.outcome == "not_sent" and "NOT_SET" not in missing.output and service.asked == []
    service.answer = lambda asked: reply({}, 302, headers="location: http://10.0.0.1/\r\n")
    moved = await call(tools, "plain")
    assert moved.outcome == "failed" and "10.0.0.1" not in moved.output and port not in moved.output
    service.answer = lambda asked: b"HTTP/1.1 200 x\r\n\r\n" + b"\xff\x00" * 100_000
    flood = await call(tools, "plain")
    assert flood.outcome == "done" and "cut off" in flood.output and "\0" not in flood.output
    assert (await call(tools, "nothing")).outcome == "not_sent"


async def test_one_that_keeps_failing_is_left_alone(tools: ToolSet, service: ToolService) -> None:
    service.answer = lambda asked: reply({}, 500)
    for _ in range(FAILURES_MAX):
        await call(tools, "plain")
    held = await call(tools, "plain")
    assert held.outcome == "not_sent" and "too often" in held.output and len(service.asked) == FAILURES_MAX
    service.answer = lambda asked: reply({}, 404)
    for _ in range(FAILURES_MAX + 1):
        assert (await call(tools, "asked")).output.startswith("http_status 404"), "that is an answer"


async def test_what_no_address_can_have_is_known_not_to_have_been_sent(tools: ToolSet, service: ToolService) -> None:
    """It was sent to nobody, and its outcome called unknown."""
    for arguments in (json.dumps({"city": "a" * 100_000}), '{"city": "\\ud800"}'):
        refused = await tools.call(msgspec.structs.replace(request("asked"), arguments=arguments))
        assert refused.outcome == "not_sent" and refused.output.startswith("tool_unavailable: its arguments"), refused
    assert service.asked == []
    await tools.call(msgspec.structs.replace(request("asked"), arguments='{"a&b\\r\\nc": "=&#"}'))
    assert service.asked[0].target == "/asked?a%26b%0D%0Ac=%3D%26%23"


def test_after_failures_in_a_row_none_is_sent_for_a_while_and_then_one() -> None:
    breaker = CircuitBreaker()
    for _ in range(FAILURES_MAX - 1):
        breaker.record(success=False, now=0.0)
    breaker.record(success=True, now=0.0)
    for _ in range(FAILURES_MAX):
        assert breaker.permits(1.0)
        breaker.record(success=False, now=1.0)
    assert not breaker.permits(1.0 + PAUSE_S - 0.1)
    assert breaker.permits(1.0 + PAUSE_S) and not breaker.permits(1.0 + PAUSE_S), "one alone is tried"
    breaker.record(success=True, now=40.0)
    assert breaker.permits(40.0) and breaker.permits(40.0)
