"""A message for one device: what is in it, how its service answers, and what follows of that."""

from __future__ import annotations

from typing import Any

import pytest

from sessions.model.push import PushDelivery, PushNotice, PushSubscription, WebPushTarget, push_id
from sessions.model.types import ResponseId, SessionId, SessionKey, TenantId, UnixMs
from tests.support.doors.push_service import PushService, vapid_key
from transport.push.outbound import OutboundClient, parse_networks
from transport.push.send_result import RETRY_AFTER_MAX_S
from transport.push.web_push import WebPush

NOW = UnixMs(1_800_000_000_000)
KEY = SessionKey(TenantId("acme"), SessionId("sess_ünï"))


def a_target(device: dict[str, Any]) -> WebPushTarget:
    return WebPushTarget(endpoint=device["endpoint"], **device["keys"])


def a_subscription(target: WebPushTarget) -> PushSubscription:
    whose = (KEY.tenant, "ana")
    return PushSubscription(id=push_id(*whose, target), tenant=whose[0], user=whose[1], target=target, created_at=NOW)


def a_delivery(subscription: PushSubscription, **more: Any) -> PushDelivery:
    notice = PushNotice(
        **{"user": "ana", "cause": "tool_call", "response_id": ResponseId("resp_1"), "offset": 7, **more}
    )
    return PushDelivery(
        key=KEY, subscription_id=subscription.id, subscription=subscription, notice=notice, at=NOW, attempts=1
    )


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
async def test_what_follows_of_an_answer(status: int, headers: dict[str, str], outcome: str, after_s: float) -> None:
    async with PushService() as service, OutboundClient(parse_networks(["127.0.0.0/8"])) as outbound:
        service.answer = lambda device: (status, headers)
        target = a_target(service.device("phone"))
        subscription = a_subscription(target)
        result = await WebPush(vapid_key(), outbound).send(a_delivery(subscription), target, NOW)
        assert (result.outcome, result.after_s) == (outcome, after_s)
