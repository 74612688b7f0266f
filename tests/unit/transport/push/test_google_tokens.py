"""Tokens of a service account: one exchange for all who wait, kept until its end, and not asked for without end."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from sessions.model.errors import BadInput, SessileError, Unavailable
from sessions.model.types import UnixMs
from sessions.public_addresses import AddressRules
from tests.support.doors.apple_service import key_pem
from tests.support.doors.google_service import GoogleService
from transport.push.google_tokens import AWAY_MS, GoogleTokens, read_service_account
from transport.push.outbound import OutboundClient


def now() -> UnixMs:
    return UnixMs(time.time_ns() // 1_000_000)


@pytest.fixture
async def service() -> AsyncIterator[GoogleService]:
    async with GoogleService() as service:
        yield service


async def test_one_exchange_for_all_and_another_before_its_end(service: GoogleService, tmp_path: Path) -> None:
    async with OutboundClient(AddressRules(["127.0.0.0/8"])) as outbound:
        tokens = GoogleTokens(*read_service_account(str(service.account_file(tmp_path))), outbound)
        at = now()
        assert set(await asyncio.gather(*(tokens.token(at) for _ in range(20)))) == service.given
        assert service.exchanges == 1
        await tokens.token(UnixMs(at + 3500_000))
        assert service.exchanges == 1
        await tokens.token(UnixMs(at + 3540_000))
        assert service.exchanges == 2
        tokens.drop("another")
        await tokens.token(at)
        assert service.exchanges == 2


@pytest.mark.parametrize(
    "answer",
    [
        (400, {"error": "invalid_grant"}, {}),
        (200, {"access_token": "a\r\nx: y", "expires_in": 3600}, {}),
        (200, {"access_token": "", "expires_in": 3600}, {}),
        (200, {"expires_in": 3600}, {}),
        (200, {"access_token": "a" * 20_000, "expires_in": 3600}, {}),
        (302, {}, {"location": "https://elsewhere.example/"}),
    ],
)
async def test_what_is_no_token_is_not_used_nor_asked_for_by_each(
    service: GoogleService, tmp_path: Path, answer: Any
) -> None:
    async with OutboundClient(AddressRules(["127.0.0.0/8"])) as outbound:
        tokens = GoogleTokens(*read_service_account(str(service.account_file(tmp_path))), outbound)
        service.exchange, at = lambda: answer, now()
        failures = await asyncio.gather(*(tokens.token(at) for _ in range(20)), return_exceptions=True)
        assert all(isinstance(each, Unavailable) for each in failures) and service.exchanges == 1
        service.exchange = lambda: None
        assert await tokens.token(UnixMs(at + AWAY_MS)) in service.given


async def test_an_account_that_is_none_is_refused_with_what_to_do(service: GoogleService, tmp_path: Path) -> None:
    other = key_pem(ec.generate_private_key(ec.SECP256R1())).decode()
    cases: list[tuple[dict[str, Any], str]] = [
        ({"type": "authorized_user"}, "service_account"),
        ({"project_id": "../x"}, "project_id"),
        ({"project_id": "x/y?z"}, "project_id"),
        ({"private_key": "no key"}, "no private key"),
        ({"private_key": other}, "no RSA key"),
        ({"client_email": 7}, "no service account's JSON"),
    ]
    for more, words in cases:
        with pytest.raises(BadInput, match=words) as refused:
            read_service_account(str(service.account_file(tmp_path, **more)))
        assert "Firebase" in refused.value.public_message and "BEGIN" not in refused.value.public_message
    file = service.account_file(tmp_path)
    file.write_text(json.dumps(service.account())[:-20])
    with pytest.raises(SessileError, match="no service account"):
        read_service_account(str(file))
