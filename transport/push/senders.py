"""Sends a message by the push service that its device is reached through."""

from __future__ import annotations

from typing import assert_never

from sessions.model.push import ApnsTarget, FcmTarget, PushDelivery, PushKind, PushSubscription, WebPushTarget
from sessions.model.types import UnixMs
from transport.push.apns import Apns
from transport.push.fcm import Fcm
from transport.push.send_result import SendResult
from transport.push.web_push import WebPush


class Senders:
    """The senders of the push services that this server has keys for."""

    def __init__(self, web_push: WebPush | None = None, apns: Apns | None = None, fcm: Fcm | None = None) -> None:
        self._web_push, self._apns, self._fcm = web_push, apns, fcm

    @property
    def kinds(self) -> tuple[PushKind, ...]:
        all_kinds: tuple[tuple[PushKind, object], ...] = (
            ("web_push", self._web_push),
            ("apns", self._apns),
            ("fcm", self._fcm),
        )
        return tuple(kind for kind, sender in all_kinds if sender is not None)

    async def send(self, delivery: PushDelivery, to: PushSubscription, now: UnixMs) -> SendResult:
        match to.target:
            case WebPushTarget() as browser if self._web_push is not None:
                return await self._web_push.send(delivery, browser, now)
            case ApnsTarget() as device if self._apns is not None:
                return await self._apns.send(delivery, device, now)
            case FcmTarget() as device if self._fcm is not None:
                return await self._fcm.send(delivery, device, now)
            case WebPushTarget() | ApnsTarget() | FcmTarget():  # a replica with the key may take it, or this one later
                return SendResult("later", reason="no_key")
            case other:
                assert_never(other)
