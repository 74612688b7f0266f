"""Reflection v1 has the descriptors of v1alpha under another name; health is kept from nobody by strangers."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import grpc
import pytest
from grpc_health.v1 import health_pb2

from transport.auth.connection_shares import ConnectionShares
from transport.grpc_api import public_services
from transport.grpc_api.public_services import HealthCalls


class Caller:
    """A call of health from an address; its message comes when `message` is set."""

    def __init__(self, address: str, message: bytes | None = None) -> None:
        self.address = address
        self.message: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self.status: grpc.StatusCode | None = None
        if message is not None:
            self.message.set_result(message)

    async def read(self) -> bytes:
        return await self.message

    def set_code(self, status: grpc.StatusCode) -> None:
        self.status = status

    def set_details(self, details: str) -> None:
        assert details

    def set_trailing_metadata(self, trailing: tuple[Any, ...]) -> None:
        assert trailing == ()


class Sessions:
    def client(self, context: Any) -> str:
        return str(context.address)


async def test_strangers_who_hold_all_calls_of_health_keep_no_probe_out(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("READS_MAX", "CALLS_MAX"):
        monkeypatch.setattr(public_services, name, 4)
    calls = HealthCalls(cast(Any, Sessions()), ConnectionShares())
    watching = asyncio.Event()

    async def check(request: Any, context: Any) -> str:
        if request.service == "watch":
            await watching.wait()
        return "serving"

    answer: Any = calls.answering(check)
    watch = health_pb2.HealthCheckRequest(service="watch").SerializeToString()
    for message in (None, watch):  # messages that never come, and calls that last
        strangers = [Caller(f"192.0.2.{number}", message) for number in (1, 2, 1, 3)]
        held = [asyncio.create_task(answer(None, each)) for each in strangers]
        await asyncio.sleep(0)
        assert await answer(None, Caller("198.51.100.7", b"")) == "serving"
        await held[0]
        assert [each.status for each in strangers] == [grpc.StatusCode.UNAVAILABLE, None, None, None]
        for task in held:
            task.cancel()
        await asyncio.gather(*held, return_exceptions=True)
