"""FCM on the wire: what a message says, and what follows of Google's answers."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import pytest

from sessions.model.push import KEPT_MS, FcmTarget
from sessions.model.types import UnixMs
from sessions.public_addresses import AddressRules
from tests.support.doors.google_service import PROJECT, GoogleService, failure
from tests.support.stores.journals import NOW
from tests.support.stores.push_rows import a_delivery
from transport.push.fcm import BUSY_S, Fcm, fcm_message
from transport.push.google_tokens import GoogleTokens, ServiceAccount
from transport.push.outbound import OutboundClient
from transport.push.send_result import topic_of

DEVICE = FcmTarget(token="c:APA91b" + "x" * 140)


def now() -> UnixMs:
    return UnixMs(time.time_ns() // 1_000_000)


class World(NamedTuple):
    service: GoogleService
    fcm: Fcm


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with GoogleService() as service, OutboundClient(AddressRules(["127.0.0.0/8"])) as outbound:
        about = {name: value for name, value in service.account().items() if name != "client_id"}
        tokens = GoogleTokens(ServiceAccount(**about), service.key, outbound)
        yield World(service, Fcm(tokens, PROJECT, outbound, url=service.url))


async def test_a_message_has_ids_and_the_names_of_texts(world: World) -> None:
    delivery, at = a_delivery(DEVICE), UnixMs(NOW + 3600_000)
    assert (await world.fcm.send(delivery, DEVICE, now())).outcome == "sent"
    (told,) = world.service.told
    topic, ids = topic_of(delivery.key), {"v": 1, "id": "resp_1:7", "cause": "tool_call", "session": "sess_ünï"}
    ids |= {"response": "resp_1", "offset": 7}
    message = told.message
    assert message["data"] == {name: str(value) for name, value in ids.items()}
    assert message["android"]["collapse_key"] == topic and message["android"]["priority"] == "HIGH"
    assert message["android"]["notification"] == {"body_loc_key": "sessile_tool_call", "tag": topic}
    assert message["apns"]["headers"]["apns-collapse-id"] == topic and message["apns"]["payload"]["sessile"] == ids
    assert set(message) == {"token", "data", "android", "apns"} and message["token"] == DEVICE.token
    left_s = KEPT_MS // 1000 - 3600
    assert f'"ttl":"{left_s}s"'.encode() in fcm_message(delivery, DEVICE, at)
    assert b'"ttl":"0s"' in fcm_message(delivery, DEVICE, UnixMs(NOW + 2 * KEPT_MS))


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
async def test_what_follows_of_an_answer(
    world: World, status: int, said: dict[str, Any], headers: dict[str, str], outcome: str, after_s: float
) -> None:
    world.service.answer = lambda device: (status, said, headers)
    result = await world.fcm.send(a_delivery(DEVICE), DEVICE, now())
    assert (result.outcome, result.after_s) == (outcome, after_s)


async def test_a_token_that_google_has_taken_back_is_exchanged_anew(world: World) -> None:
    await world.fcm.send(a_delivery(DEVICE), DEVICE, now())
    world.service.given.clear()
    assert (await world.fcm.send(a_delivery(DEVICE), DEVICE, now())).outcome == "later"
    assert (await world.fcm.send(a_delivery(DEVICE), DEVICE, now())).outcome == "sent"
    assert world.service.exchanges == 2
