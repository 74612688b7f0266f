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
    """`gone`: the device has no subscription any more. `refused`: this message will not do, and no repeat will."""

    outcome: Literal["sent", "gone", "refused", "later"]
    after_s: float = 0.0  # what the push service asks for; 0: nothing
    reason: str = ""  # in the push service's words, for logs


class PushSender(Protocol):
    async def send(self, delivery: PushDelivery, to: PushSubscription, now: UnixMs) -> SendResult:
        """Raises Forbidden for an address that is not to be sent to, Unavailable where the push service is away."""
        ...


def notice_id(delivery: PushDelivery) -> str:
    """Names the notice, however often it comes."""
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
    """Returns the topic of a session's notices, of which a push service keeps the newest only: 32 characters of
    base64url, which say nothing of the session."""
    digest = hashlib.sha256("\0".join(key).encode()).digest()
    return urlsafe_b64encode(digest[:24]).decode()


def expires_s(delivery: PushDelivery) -> int:
    """Returns when a push service that could not deliver a notice may drop it, in seconds since 1970."""
    return (delivery.at + KEPT_MS) // 1000


def retry_after_s(retry_after: str) -> float:
    return min(float(retry_after), RETRY_AFTER_MAX_S) if retry_after.isdecimal() else 0.0


def shown_reason(text: object) -> str:
    """Returns what a push service calls a failure, for logs; "" if it is no plain word."""
    if isinstance(text, str) and len(text) <= REASON_MAX and text.isascii() and text.replace("_", "").isalnum():
        return text
    return ""
