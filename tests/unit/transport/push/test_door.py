"""What a device may subscribe with."""

from __future__ import annotations

import msgspec
import pytest

from sessions.model.errors import BadInput
from sessions.model.push import ApnsTarget, FcmTarget, QuietHours, WebPushTarget
from sessions.public_addresses import AddressRules
from tests.support.doors.push_service import PushService, vapid_key
from transport.push.door import PushDoor


def test_keys_and_addresses_are_looked_at() -> None:
    door = PushDoor(vapid_key().public, AddressRules())
    service = PushService()
    service.port = 1
    good = WebPushTarget(endpoint="https://push.example/x", **service.device("phone")["keys"])
    door.check(good, QuietHours(start=0, end=1, time_zone="UTC"))
    for change, param in (
        ({"endpoint": "https://[::1"}, "endpoint"),
        ({"p256dh": "A" * 87}, "keys.p256dh"),
        ({"p256dh": "ü"}, "keys.p256dh"),
        ({"auth": "AAAA"}, "keys.auth"),
        ({"auth": "ü"}, "keys.auth"),
    ):
        with pytest.raises(BadInput) as refused:
            door.check(msgspec.structs.replace(good, **change), None)
        assert refused.value.param == param
    for zone in ("", "/etc/passwd", "Nowhere"):
        with pytest.raises(BadInput):
            door.check(good, QuietHours(start=0, end=1, time_zone=zone))


def test_tokens_of_apps_are_looked_at_and_only_kinds_that_are_sent_are_taken() -> None:
    door = PushDoor("", AddressRules(), ("apns", "fcm"))
    door.check(ApnsTarget(token="0a" * 32), None)
    door.check(FcmTarget(token="c" * 11 + ":APA91b_-" + "x" * 140), None)
    hostile = ("", "0a" * 31, "0A" * 32, "0a" * 101, "0a" * 32 + "\n", "../" * 30, "0a" * 32 + "/../x", "ü" * 64)
    for token in hostile:
        with pytest.raises(BadInput) as refused:
            door.check(ApnsTarget(token=token), None)
        assert refused.value.param == "token"
    for token in ("", "x" * 31, "x" * 2049, "x" * 40 + '"', "x" * 40 + "\r\n", "../" * 30):
        with pytest.raises(BadInput):
            door.check(FcmTarget(token=token), None)
    with pytest.raises(BadInput) as refused:
        door.check(WebPushTarget(endpoint="https://push.example/x", p256dh="", auth=""), None)
    assert refused.value.param == "kind" and "apns, fcm" in refused.value.public_message
