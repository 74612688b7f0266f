"""Each device by the push service that it is reached through."""

from __future__ import annotations

from typing import Any, cast

from sessions.model.push import ApnsTarget, FcmTarget, PushTarget, WebPushTarget
from tests.support.stores.journals import NOW
from tests.support.stores.push_rows import a_delivery
from transport.push.send_result import SendResult
from transport.push.senders import Senders

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
        assert (await every.send(delivery, delivery.subscription, NOW)).outcome == "sent"
        assert await Senders().send(delivery, delivery.subscription, NOW) == ("later", 0.0, "no_key")
    assert [way.sent for way in ways] == [[target] for target in TARGETS]
