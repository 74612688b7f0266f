"""Push services on the wire: what a message says, and what follows of their answers."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from sessions.model.errors import BadInput, Forbidden, SessileError, Unavailable
from sessions.model.push import (
    KEPT_MS,
    ApnsTarget,
    FcmTarget,
    PushTarget,
    WebPushTarget,
)
from sessions.model.types import UnixMs
from tests.support.doors.apple_service import APP, KEY_ID, TEAM, AppleService, key_pem, tls_pair
from tests.support.doors.google_service import PROJECT, GoogleService, failure
from tests.support.doors.push_service import PushService, vapid_key
from tests.support.stores.push_rows import a_delivery
from transport.push.apns import PRODUCTION, SANDBOX, TOKEN_KEPT_MS, TOKEN_REMADE_MS, Apns, ApnsKey
from transport.push.fcm import BUSY_S, Fcm
from transport.push.google_tokens import AWAY_MS, GoogleTokens, ServiceAccount, read_service_account
from transport.push.outbound import OutboundAnswer, OutboundClient, parse_networks
from transport.push.send_result import RETRY_AFTER_MAX_S, SendResult, retry_after_s, shown_reason, topic_of
from transport.push.senders import Senders
from transport.push.web_push import WebPush

DEVICE = ApnsTarget(token="0a" * 32)
LOOPBACK = parse_networks(["127.0.0.0/8"])


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


FCM_DEVICE = FcmTarget(token="c:APA91b" + "x" * 140)


class World(NamedTuple):
    service: GoogleService
    fcm: Fcm


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with GoogleService() as service, OutboundClient(LOOPBACK) as outbound:
        about = {name: value for name, value in service.account().items() if name != "client_id"}
        tokens = GoogleTokens(ServiceAccount(**about), service.key, outbound)
        yield World(service, Fcm(tokens, PROJECT, outbound, url=service.url))


@pytest.mark.parametrize(
    ("status", "said", "headers", "outcome", "after_s"),
    [
        (404, failure("NOT_FOUND", "UNREGISTERED"), {}, "gone", 0.0),
        (404, failure("NOT_FOUND"), {}, "gone", 0.0),
        (403, failure("PERMISSION_DENIED", "SENDER_ID_MISMATCH"), {}, "gone", 0.0),
        (400, failure("INVALID_ARGUMENT", "INVALID_ARGUMENT", "message.token"), {}, "gone", 0.0),
        (400, failure("INVALID_ARGUMENT", "INVALID_ARGUMENT", "message.android"), {}, "refused", 0.0),
        (404, {"a page": "of another server"}, {}, "later", 0.0),
        (403, failure("PERMISSION_DENIED"), {}, "later", 0.0),
        (401, failure("UNAUTHENTICATED", "THIRD_PARTY_AUTH_ERROR"), {}, "later", 0.0),
        (429, failure("RESOURCE_EXHAUSTED", "QUOTA_EXCEEDED"), {}, "later", BUSY_S),
        (429, failure("RESOURCE_EXHAUSTED", "QUOTA_EXCEEDED"), {"retry-after": "90"}, "later", 90.0),
        (503, failure("UNAVAILABLE", "UNAVAILABLE"), {"retry-after": "5"}, "later", 5.0),
        (302, {}, {"location": "https://elsewhere.example/"}, "refused", 0.0),
        (400, {"error": {"details": [1, {"fieldViolations": [2]}]}}, {}, "refused", 0.0),
        (400, {"error": {"details": {"x": 1}}}, {}, "refused", 0.0),
    ],
)
async def test_what_follows_of_an_answer_of_fcm(
    world: World, status: int, said: dict[str, Any], headers: dict[str, str], outcome: str, after_s: float
) -> None:
    world.service.answer = lambda device: (status, said, headers)
    result = await world.fcm.send(a_delivery(FCM_DEVICE), FCM_DEVICE, now())
    assert (result.outcome, result.after_s) == (outcome, after_s)


@pytest.fixture
async def service() -> AsyncIterator[GoogleService]:
    async with GoogleService() as service:
        yield service


async def test_one_exchange_for_all_and_another_before_its_end(service: GoogleService, tmp_path: Path) -> None:
    async with OutboundClient(LOOPBACK) as outbound:
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
    async with OutboundClient(LOOPBACK) as outbound:
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


def a_target(device: dict[str, Any]) -> WebPushTarget:
    return WebPushTarget(endpoint=device["endpoint"], **device["keys"])


@pytest.mark.parametrize(
    ("status", "headers", "outcome", "after_s"),
    [
        (201, {}, "sent", 0.0),
        (404, {}, "gone", 0.0),
        (410, {}, "gone", 0.0),
        (429, {"retry-after": "30"}, "later", 30.0),
        (503, {"retry-after": "Wed, 21 Oct 2026 07:28:00 GMT"}, "later", 0.0),
        (500, {"retry-after": "99999999"}, "later", RETRY_AFTER_MAX_S),
        (400, {}, "refused", 0.0),
        (413, {}, "refused", 0.0),
        (302, {"location": "https://elsewhere.example/"}, "refused", 0.0),
    ],
)
async def test_what_follows_of_an_answer_of_web_push(
    status: int, headers: dict[str, str], outcome: str, after_s: float
) -> None:
    async with PushService() as service, OutboundClient(LOOPBACK) as outbound:
        service.answer = lambda device: (status, headers)
        target = a_target(service.device("phone"))
        result = await WebPush(vapid_key(), outbound).send(a_delivery(target), target, now())
        assert (result.outcome, result.after_s) == (outcome, after_s)


def naming(*addresses: str) -> OutboundClient:
    async def resolve(host: str, port: int) -> Sequence[str]:
        return addresses

    return OutboundClient(resolve=resolve)


@pytest.mark.parametrize("address", ["10.0.0.1", "fe80::1"])
async def test_no_address_of_the_network_is_sent_to_by_number_or_by_name(address: str) -> None:
    host = f"[{address}]" if ":" in address else address
    async with naming(address) as client:
        with pytest.raises(Forbidden):
            client.check_address(f"https://{host}/x")
        with pytest.raises(Forbidden):
            await client.post("https://push.example/x", b"", {})
    async with naming("93.184.216.34", address) as client:
        with pytest.raises(Forbidden):
            await client.post("https://push.example/x", b"", {})


async def test_of_an_answer_only_the_first_bytes_are_read_and_nothing_is_unpacked() -> None:
    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 400 x\r\ncontent-encoding: gzip\r\ntransfer-encoding: chunked\r\n\r\n")
        try:
            while True:
                writer.write(b"400\r\n" + b"x" * 1024 + b"\r\n")
                await writer.drain()
        except ConnectionError:
            writer.close()

    server = await asyncio.start_server(flood, "127.0.0.1", 0)
    async with server, OutboundClient(LOOPBACK) as client:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/x"
        assert (await client.post(url, b"", {}, answer_bytes=100)).body == b"x" * 100
        assert (await client.post(url, b"", {})).body == b""


async def test_a_network_that_is_named_is_sent_to_and_a_redirect_is_not_followed() -> None:
    async with PushService() as service, OutboundClient(LOOPBACK) as client:
        service.answer = lambda device: (307, {"location": service.device("other")["endpoint"], "retry-after": "3"})
        answer = await client.post(service.device("phone")["endpoint"], b"", {"content-length": "0"})
        assert (answer.status, answer.retry_after, service.requests) == (307, "3", 1)
    with pytest.raises(BadInput, match="push_networks"):
        parse_networks(["loopback"])
    assert parse_networks(["10.0.0.0/8"]).permits_url("http://10.1.2.3/")


async def test_a_service_that_is_away_is_unavailable() -> None:
    async with PushService() as service:
        url = service.device("phone")["endpoint"]
    async with OutboundClient(LOOPBACK) as client:
        with pytest.raises(Unavailable):
            await client.post(url, b"", {})
        with pytest.raises(Unavailable):
            await client.post("https://no-such-name.invalid/x", b"", {})


BROWSER = WebPushTarget(endpoint="https://push.example/x", p256dh="k", auth="a")
TARGETS: tuple[PushTarget, ...] = (BROWSER, ApnsTarget(token="a"), FcmTarget(token="a"))


class Way:
    def __init__(self) -> None:
        self.sent: list[Any] = []

    async def send(self, delivery: Any, target: Any, now: Any) -> SendResult:
        self.sent.append(target)
        return SendResult("sent")


async def test_by_kind_and_later_where_there_is_no_key_for_it() -> None:
    ways = [Way(), Way(), Way()]
    every = Senders(*cast("Any", ways))
    assert every.kinds == ("web_push", "apns", "fcm") and Senders(apns=cast("Any", ways[1])).kinds == ("apns",)
    for target in TARGETS:
        delivery = a_delivery(target)
        assert delivery.subscription is not None
        assert (await every.send(delivery, delivery.subscription, now())).outcome == "sent"
        assert await Senders().send(delivery, delivery.subscription, now()) == ("later", 0.0, "no_key")
    assert [way.sent for way in ways] == [[target] for target in TARGETS]


def test_what_is_read_of_an_answer_has_bounds() -> None:
    for text, seconds in (("30", 30.0), ("", 0.0), ("-1", 0.0), ("9" * 300, RETRY_AFTER_MAX_S), ("soon", 0.0)):
        assert retry_after_s(text) == seconds
    assert shown_reason("BadDeviceToken") == "BadDeviceToken" and shown_reason("THIRD_PARTY_AUTH_ERROR")
    for other in ("", "a\nb", "x" * 65, "é", None, 7, {"a": 1}):
        assert shown_reason(other) == ""
