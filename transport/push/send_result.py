"""What follows of a push service's answer to one message."""

from __future__ import annotations

import hashlib
from base64 import urlsafe_b64encode
from typing import Final, Literal, NamedTuple, Protocol

import msgspec

from sessions.model.push import KEPT_MS, PushDelivery, PushSubscription
from sessions.model.types import SessionKey, UnixMs

RETRY_AFTER_MAX_S: Final = 3600.0
REASON_MAX: Final = 64


class SendResult(NamedTuple):
    """The outcome of sending one message. `gone`: the device has no subscription any more. `refused`: the push service
    would not take this message at a later try either. `later`: it may be tried again."""

    outcome: Literal["sent", "gone", "refused", "later"]
    after_s: float = 0.0  # what the push service asks for; 0: nothing
    reason: str = ""  # in the push service's words, for logs


class PushSender(Protocol):
    async def send(self, delivery: PushDelivery, to: PushSubscription, now: UnixMs) -> SendResult:
        """Sends a notice to a device. Raises Forbidden for an address that must not be sent to, Unavailable if the push
        service does not answer."""
        ...


def notice_id(delivery: PushDelivery) -> str:
    """Returns the id of a notice, which is the same each time that the notice is sent."""
    return f"{delivery.notice.response_id}:{delivery.notice.offset}"


def notice_fields(delivery: PushDelivery) -> dict[str, str | int]:
    """Returns the fields of a notice, which hold no text of the conversation."""
    notice = delivery.notice
    return {
        "v": 1,
        "id": notice_id(delivery),
        "cause": notice.cause,
        "session": delivery.key.session,
        "response": notice.response_id,
        "offset": notice.offset,
    }


def push_payload(delivery: PushDelivery) -> bytes:
    return msgspec.json.encode(notice_fields(delivery))


def topic_of(key: SessionKey) -> str:
    """Returns the topic of a session's notices: 32 characters of base64url that reveal nothing about the session. Of
    undelivered messages with the same topic a push service keeps only the newest."""
    digest = hashlib.sha256("\0".join(key).encode()).digest()
    return urlsafe_b64encode(digest[:24]).decode()


def expires_s(delivery: PushDelivery) -> int:
    """Returns the time, in unix seconds, at which a push service may drop a notice that it could not deliver."""
    return (delivery.at + KEPT_MS) // 1000


def retry_after_s(retry_after: str) -> float:
    return min(float(retry_after), RETRY_AFTER_MAX_S) if retry_after.isdecimal() else 0.0


def shown_reason(text: object) -> str:
    """Returns what a push service calls a failure, for logs; "" if it is no plain word."""
    if isinstance(text, str) and len(text) <= REASON_MAX and text.isascii() and text.replace("_", "").isalnum():
        return text
    return ""
