"""Names of devices: the same for the same device and user."""

from __future__ import annotations

from sessions.model.push import (
    ApnsTarget,
    FcmTarget,
    PushTarget,
    WebPushTarget,
    address_hash,
    kind_of,
    push_id,
)
from sessions.model.types import TenantId

ACME = TenantId("acme")


def test_a_device_is_known_by_its_address_alone() -> None:
    one = WebPushTarget(endpoint="https://push.example/a", p256dh="k", auth="a")
    renewed = WebPushTarget(endpoint="https://push.example/a", p256dh="other", auth="other")
    other = WebPushTarget(endpoint="https://push.example/b", p256dh="k", auth="a")
    assert push_id(ACME, "ana", one) == push_id(ACME, "ana", renewed)
    assert len({push_id(ACME, "ana", one), push_id(ACME, "ana", other), push_id(ACME, "ben", one)}) == 3
    assert address_hash(one) == address_hash(renewed) != address_hash(other)


def test_a_token_is_of_its_kind() -> None:
    apple, google = ApnsTarget(token="ab" * 32), FcmTarget(token="ab" * 32)
    other: PushTarget = ApnsTarget(token="ab" * 32, sandbox=True)
    assert [kind_of(each) for each in (apple, google)] == ["apns", "fcm"]
    assert address_hash(apple) != address_hash(google) and push_id(ACME, "ana", apple) != push_id(ACME, "ana", google)
    assert address_hash(apple) == address_hash(other), "a device is of one of Apple's servers"
