"""APNs: a message for an app on an Apple device, over HTTP/2, with a token that the team's key signs.

What is shown is a text of the app's own (`loc-key`); beside it are ids. Of the same session only the newest message
waits and is shown (`apns-collapse-id`). A token signs for up to an hour, and Apple refuses teams that make new ones
more often than every 20 minutes, so one is kept for 40.

Source: Apple, "Sending notification requests to APNs", "Establishing a token-based connection to APNs", "Handling
notification responses from APNs".
"""

from __future__ import annotations

import hashlib
from typing import Final
from uuid import UUID

import jwt
import msgspec
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

from sessions.model.push import ApnsTarget, PushDelivery
from sessions.model.types import UnixMs
from transport.push.outbound import OutboundClient
from transport.push.send_result import (
    SendResult,
    expires_s,
    notice_fields,
    notice_id,
    retry_after_s,
    shown_reason,
    topic_of,
)

PRODUCTION: Final = "https://api.push.apple.com"
SANDBOX: Final = "https://api.sandbox.push.apple.com"
TOKEN_KEPT_MS: Final = 40 * 60_000
TOKEN_REMADE_MS: Final = 20 * 60_000  # one that Apple calls expired is not made anew before
ANSWER_BYTES: Final = 4096
GONE: Final = frozenset({"BadDeviceToken", "DeviceTokenNotForTopic", "ExpiredToken", "Unregistered"})


class ApnsKey:
    """Makes the tokens by which Apple recognises the sender, signed with a team's private key. Apple names the key by
    `key_id` and the team by `team`."""

    def __init__(self, key: EllipticCurvePrivateKey, key_id: str, team: str) -> None:
        self._key, self._key_id, self._team = key, key_id, team
        self._token = ""
        self._made_at = UnixMs(0)

    def token(self, now: UnixMs) -> str:
        if not self._token or now - self._made_at >= TOKEN_KEPT_MS or now < self._made_at:
            claims = {"iss": self._team, "iat": now // 1000}
            self._token = jwt.encode(claims, self._key, algorithm="ES256", headers={"kid": self._key_id})
            self._made_at = now
        return self._token

    def expired(self, now: UnixMs) -> None:
        """Drops the token because Apple calls it expired. A token younger than `TOKEN_REMADE_MS` is kept: then one of
        the clocks is wrong, and a new token would be refused too."""
        if now - self._made_at >= TOKEN_REMADE_MS:
            self._token = ""


class Apns:
    def __init__(self, key: ApnsKey, app: str, outbound: OutboundClient, *, url: str = "") -> None:
        """`app` is the app's bundle id. `outbound` must speak HTTP/2. `url`, if set, replaces the addresses of Apple's
        servers."""
        self._key, self._app, self._outbound, self._url = key, app, outbound, url

    async def send(self, delivery: PushDelivery, target: ApnsTarget, now: UnixMs) -> SendResult:
        """Sends a notice to an Apple device. Raises Forbidden for an address inside the network, Unavailable if Apple
        does not answer."""
        origin = self._url or (SANDBOX if target.sandbox else PRODUCTION)
        named = hashlib.sha256(f"{delivery.subscription_id}\0{notice_id(delivery)}".encode()).digest()
        headers = {
            "authorization": f"bearer {self._key.token(now)}",
            "apns-id": str(UUID(bytes=named[:16], version=4)),  # the same when it is sent again
            "apns-topic": self._app,
            "apns-push-type": "alert",
            "apns-priority": "10",
            "apns-expiration": str(expires_s(delivery)),
            "apns-collapse-id": topic_of(delivery.key),
            "content-type": "application/json",
        }
        answer = await self._outbound.post(
            f"{origin}/3/device/{target.token}", apns_payload(delivery), headers, answer_bytes=ANSWER_BYTES
        )
        if answer.status == 200:
            return SendResult("sent")
        reason, after_s = _reason(answer.body), retry_after_s(answer.retry_after)
        if answer.status == 410 or (answer.status == 400 and reason in GONE):
            return SendResult("gone", reason=reason)
        if reason == "ExpiredProviderToken":
            self._key.expired(now)
        if answer.status == 403 or answer.status == 429 or answer.status >= 500:  # 403: our key, and not the device
            return SendResult("later", after_s, reason)
        return SendResult("refused", reason=reason)


def apns_payload(delivery: PushDelivery) -> bytes:
    """Returns the JSON body of a message. Its `mutable-content` lets an extension of the app replace the shown text."""
    alert = {"loc-key": loc_key(delivery)}
    aps = {"alert": alert, "sound": "default", "thread-id": topic_of(delivery.key), "mutable-content": 1}
    return msgspec.json.encode({"aps": aps, "sessile": notice_fields(delivery)})


def loc_key(delivery: PushDelivery) -> str:
    """Returns the key by which the app finds the notice in its own table of texts."""
    return f"sessile_{delivery.notice.cause}"


def _reason(body: bytes) -> str:
    try:
        return shown_reason(msgspec.json.decode(body).get("reason"))
    except (msgspec.DecodeError, UnicodeDecodeError, AttributeError):
        return ""
