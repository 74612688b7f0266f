"""Calls of HTTP tools: keys, retries, time, room, and what is said of a failure."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from inference.tools.breaker import FAILURES_MAX
from inference.tools.tool_set import ToolSet
from sessions.model.types import CallId, ResponseId, SessionId, SessionKey, TenantId
from sessions.server_tools import ToolRequest, ToolResult
from tests.support.doors.tool_service import ToolService, opened_tools, reply, tools_toml


@pytest.fixture
async def service() -> AsyncIterator[ToolService]:
    async with ToolService() as made:
        yield made


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
