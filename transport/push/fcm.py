"""FCM: a message for an app that registered with Firebase Cloud Messaging, over its HTTP v1 interface.

What is shown is a text of the app's own (`body_loc_key` on Android, `loc-key` on Apple devices); beside it are ids. Of
the same session only the newest message waits (`collapse_key`) and is shown (`tag`).

Source: Google, "FCM HTTP v1: projects.messages", "ErrorCode".
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import msgspec

from sessions.model.push import FcmTarget, PushDelivery
from sessions.model.types import UnixMs
from transport.push.apns import apns_payload, loc_key
from transport.push.google_tokens import GoogleTokens
from transport.push.outbound import OutboundClient
from transport.push.send_result import SendResult, expires_s, notice_fields, retry_after_s, shown_reason, topic_of

FCM: Final = "https://fcm.googleapis.com"
ANSWER_BYTES: Final = 16 * 1024
BUSY_S: Final = 60.0  # what Google asks for where a 429 brings no Retry-After
GONE: Final = frozenset({"UNREGISTERED", "SENDER_ID_MISMATCH"})


class Fcm:
    def __init__(self, tokens: GoogleTokens, project: str, outbound: OutboundClient, *, url: str = FCM) -> None:
        self._tokens, self._outbound = tokens, outbound
        self._url = f"{url}/v1/projects/{project}/messages:send"

    async def send(self, delivery: PushDelivery, target: FcmTarget, now: UnixMs) -> SendResult:
        """Sends a notice to a device that is registered with Firebase. Raises Forbidden for an address inside the
        network, Unavailable if Google does not answer."""
        token = await self._tokens.token(now)
        headers = {"authorization": f"Bearer {token}", "content-type": "application/json"}
        answer = await self._outbound.post(
            self._url, fcm_message(delivery, target, now), headers, answer_bytes=ANSWER_BYTES
        )
        if answer.status == 200:
            return SendResult("sent")
        failure, after_s = _failure(answer.body), retry_after_s(answer.retry_after)
        if failure.code in GONE or failure.is_of_token or (answer.status == 404 and failure.status == "NOT_FOUND"):
            return SendResult("gone", reason=failure.code or failure.status)
        match answer.status:
            case 401:
                self._tokens.drop(token)
                return SendResult("later", after_s, failure.code or failure.status)
            case 429:
                return SendResult("later", after_s or BUSY_S, failure.code or failure.status)
            case status if status in (403, 404) or status >= 500:  # the account or the address, and not the device
                return SendResult("later", after_s, failure.code or failure.status)
        return SendResult("refused", reason=failure.code or failure.status)


def fcm_message(delivery: PushDelivery, target: FcmTarget, now: UnixMs) -> bytes:
    topic, expires = topic_of(delivery.key), expires_s(delivery)
    android = {
        "collapse_key": topic,
        "priority": "NORMAL" if delivery.notice.cause == "answer" else "HIGH",
        "ttl": f"{max(expires - now // 1000, 0)}s",
        "notification": {"body_loc_key": loc_key(delivery), "tag": topic},
    }
    apple = {
        "headers": {"apns-collapse-id": topic, "apns-expiration": str(expires), "apns-priority": "10"},
        "payload": msgspec.Raw(apns_payload(delivery)),
    }
    data = {name: str(value) for name, value in notice_fields(delivery).items()}
    return msgspec.json.encode({"message": {"token": target.token, "data": data, "android": android, "apns": apple}})


class _Failure(NamedTuple):
    status: str = ""
    code: str = ""  # FCM's own
    is_of_token: bool = False  # the token is not even one


def _failure(body: bytes) -> _Failure:
    try:
        error = msgspec.json.decode(body)["error"]
        details: list[dict[str, Any]] = [each for each in error.get("details", []) if isinstance(each, dict)]
        codes = [shown_reason(each.get("errorCode")) for each in details]
        violations = [one for each in details for one in each.get("fieldViolations", []) if isinstance(one, dict)]
        return _Failure(
            shown_reason(error.get("status")),
            next(filter(None, codes), ""),
            any(one.get("field") == "message.token" for one in violations),
        )
    except (msgspec.DecodeError, UnicodeDecodeError, LookupError, TypeError, AttributeError):
        return _Failure()
