"""APNs on the wire: what a message says, how its token is signed and kept, and what follows of Apple's answers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from sessions.model.errors import Forbidden, Unavailable
from sessions.model.push import KEPT_MS, ApnsTarget
from sessions.model.types import UnixMs
from sessions.public_addresses import AddressRules
from tests.support.doors.apple_service import APP, KEY_ID, TEAM, AppleService, tls_pair
from tests.support.stores.push_rows import a_delivery
from transport.push.apns import PRODUCTION, SANDBOX, TOKEN_KEPT_MS, TOKEN_REMADE_MS, Apns, ApnsKey
from transport.push.outbound import OutboundAnswer, OutboundClient
from transport.push.send_result import topic_of

DEVICE = ApnsTarget(token="0a" * 32)
LOOPBACK = AddressRules(["127.0.0.0/8"])


def now() -> UnixMs:
    return UnixMs(time.time_ns() // 1_000_000)


def over(outbound: OutboundClient, service: AppleService, **more: Any) -> Apns:
    return Apns(ApnsKey(service.key, KEY_ID, TEAM), APP, outbound, **{"url": service.url, **more})


async def test_a_message_by_tls_with_apples_name(tmp_path: Path) -> None:
    async def resolve(host: str, port: int) -> Sequence[str]:
        return ["127.0.0.1"]

    served, trusted = tls_pair(tmp_path)
    async with (
        AppleService(served) as service,
        OutboundClient(LOOPBACK, resolve=resolve, http2=True, tls=trusted) as outbound,
    ):
        delivery, apns = a_delivery(DEVICE, cause="approval"), over(outbound, service)
        results = await asyncio.gather(*(apns.send(delivery, DEVICE, now()) for _ in range(3)))
        assert [each.outcome for each in results] == ["sent"] * 3 and service.connections == 1
        told = service.told[0]
        assert told.device == DEVICE.token
        assert told.said == {
            "aps": {
                "alert": {"loc-key": "sessile_approval"},
                "sound": "default",
                "thread-id": topic_of(delivery.key),
                "mutable-content": 1,
            },
            "sessile": {
                "v": 1,
                "id": "resp_1:7",
                "cause": "approval",
                "session": "sess_ünï",
                "response": "resp_1",
                "offset": 7,
            },
        }
        assert told.headers["apns-collapse-id"] == topic_of(delivery.key) and told.headers["apns-topic"] == APP
        assert told.headers["apns-expiration"] == str((delivery.at + KEPT_MS) // 1000)
        assert told.headers["apns-priority"] == "10" and told.headers["apns-push-type"] == "alert"
        assert len({each.headers["apns-id"] for each in service.told}) == 1, "sent again it is the same message"
        assert set(told.claims) == {"iss", "iat"} and told.claims["iss"] == TEAM
    async with AppleService(served) as service, OutboundClient(LOOPBACK, resolve=resolve, http2=True) as outbound:
        with pytest.raises(Unavailable):  # who it is vouched for by nobody that the system trusts
            await over(outbound, service).send(a_delivery(DEVICE), DEVICE, now())
        assert service.requests == 0


@pytest.mark.parametrize(
    ("status", "reason", "headers", "outcome", "after_s"),
    [
        (410, "Unregistered", {}, "gone", 0.0),
        (410, "ExpiredToken", {}, "gone", 0.0),
        (400, "BadDeviceToken", {}, "gone", 0.0),
        (400, "DeviceTokenNotForTopic", {}, "gone", 0.0),
        (400, "PayloadEmpty", {}, "refused", 0.0),
        (404, "BadPath", {}, "refused", 0.0),
        (413, "PayloadTooLarge", {}, "refused", 0.0),
        (403, "InvalidProviderToken", {}, "later", 0.0),
        (429, "TooManyRequests", {"retry-after": "30"}, "later", 30.0),
        (500, "InternalServerError", {}, "later", 0.0),
        (503, "Shutdown", {"retry-after": "7"}, "later", 7.0),
    ],
)
async def test_what_follows_of_an_answer(
    status: int, reason: str, headers: dict[str, str], outcome: str, after_s: float
) -> None:
    async with AppleService() as service, OutboundClient(LOOPBACK, http2=True) as outbound:
        service.answer = lambda device: (status, {"reason": reason}, headers)
        assert await over(outbound, service).send(a_delivery(DEVICE), DEVICE, now()) == (outcome, after_s, reason)


async def test_a_key_that_apple_does_not_know_costs_no_device() -> None:
    async with AppleService() as service, OutboundClient(LOOPBACK, http2=True) as outbound:
        strangers = ApnsKey(ec.generate_private_key(ec.SECP256R1()), KEY_ID, TEAM)
        result = await Apns(strangers, APP, outbound, url=service.url).send(a_delivery(DEVICE), DEVICE, now())
        assert result == ("later", 0.0, "InvalidProviderToken")
        service.answer = lambda device: (0, {}, {})
        with pytest.raises(Unavailable):
            await over(outbound, service).send(a_delivery(DEVICE), DEVICE, now())
    async with OutboundClient(http2=True) as outbound:
        with pytest.raises(Forbidden):  # where Apple's place is taken, it is still no place inside the network
            await over(outbound, service).send(a_delivery(DEVICE), DEVICE, now())


async def test_a_token_is_kept_as_long_as_apple_wants() -> None:
    key = ApnsKey(ec.generate_private_key(ec.SECP256R1()), KEY_ID, TEAM)
    at = now()
    first = key.token(at)
    assert key.token(UnixMs(at + TOKEN_KEPT_MS - 1)) == first
    key.expired(UnixMs(at + TOKEN_REMADE_MS - 1))
    assert key.token(UnixMs(at + 1)) == first, "a new one more often than every 20 minutes is refused"
    key.expired(UnixMs(at + TOKEN_REMADE_MS))
    second = key.token(UnixMs(at + TOKEN_REMADE_MS))
    assert second != first and key.token(UnixMs(at + TOKEN_REMADE_MS + TOKEN_KEPT_MS)) != second


async def test_which_server_of_apples_a_device_is_of() -> None:
    urls = []

    class Outbound(OutboundClient):
        async def post(self, url: str, body: bytes, headers: Any, *, answer_bytes: int = 0) -> OutboundAnswer:
            urls.append(url)
            return OutboundAnswer(410, "", b"[1")

    async with Outbound() as outbound:
        apns = Apns(ApnsKey(ec.generate_private_key(ec.SECP256R1()), KEY_ID, TEAM), APP, outbound)
        for sandbox in (False, True):
            target = ApnsTarget(token="ff" * 32, sandbox=sandbox)
            assert (await apns.send(a_delivery(target), target, now())).reason == ""
    assert urls == [f"{origin}/3/device/{'ff' * 32}" for origin in (PRODUCTION, SANDBOX)]
