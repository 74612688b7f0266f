"""`/v1/users`: an end user's data exported as lines, and erased."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import httpx
import pytest

from sessions.model.errors import Unavailable
from sessions.model.types import SCOPES, Principal, TenantId, UnixMs
from tests.support.doors.transport import gateway_over, http_client, memory_sessions
from transport.auth.authenticator import Authenticator, key_digest
from transport.gateway import Gateway

SERVICE = Principal(tenant=TenantId("acme"), key_id="k", role="service", scopes=SCOPES)


@pytest.fixture
async def gateway() -> Gateway:
    access = Authenticator({key_digest("k"): SERVICE}, clock=lambda: 0.0, now_ms=lambda: UnixMs(1))
    return gateway_over(await memory_sessions(), access)


@pytest.fixture
async def client(gateway: Gateway) -> AsyncIterator[httpx.AsyncClient]:
    async with http_client(gateway, authorization="Bearer k") as client:
        yield client


async def test_an_export_that_breaks_ends_with_an_error(
    gateway: Gateway, client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(*_: object, **__: object) -> None:
        raise Unavailable("journal_away", "Away.")

    monkeypatch.setattr(gateway.store.usage, "entries", away)
    *_, last = (await client.get("/v1/users/ana/export")).text.splitlines()
    assert json.loads(last)["error"]["code"] == "journal_unavailable"
