"""FCM on the wire: what a message says, and what follows of Google's answers."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import pytest

from sessions.model.push import FcmTarget
from sessions.model.types import UnixMs
from sessions.public_addresses import AddressRules
from tests.support.doors.google_service import PROJECT, GoogleService, failure
from tests.support.stores.push_rows import a_delivery
from transport.push.fcm import BUSY_S, Fcm
from transport.push.google_tokens import GoogleTokens, ServiceAccount
from transport.push.outbound import OutboundClient

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
