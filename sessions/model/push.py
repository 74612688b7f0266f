"""Push: a device that reads nothing at the moment gets a message when an answer is complete, or waits for its user.

    answer ends, nobody reads ─► row of the outbox, in the append itself ─► relay ─► push service ─► device

A subscription belongs to a device of one end user: the address for its messages, and the keys that they are encrypted
for. The outbox has one row for each session and subscription: a later answer replaces one that was not sent yet. A
message has ids only, and no word of the conversation.

Invariants: a row is written in the transaction of the answer's end, so that each answer that nobody reads gets one; it
is deleted when it was sent, when a device has read the log so far, or when it is too old to be of use.

Does not know how messages are sent (`transport.push`), how rows are stored, nor who may subscribe.
"""

from __future__ import annotations

import hashlib
from typing import Annotated, Final, Literal, NewType, Protocol

import msgspec

from sessions.model.errors import BadInput, Limited, NotFound
from sessions.model.types import Principal, ResponseId, SessionKey, TenantId, UnixMs

PushId = NewType("PushId", str)
PushCause = Literal["answer", "tool_call", "approval"]
PushKind = Literal["web_push", "apns", "fcm"]

SUBSCRIPTIONS_MAX: Final = 16  # of one user
GRACE_MS: Final = 2_000  # a device that was only cut off has come back and read by then
KEPT_MS: Final = 24 * 3_600_000  # a notice that could not be sent for so long is dropped
MINUTES_A_DAY: Final = 24 * 60

Minute = Annotated[int, msgspec.Meta(ge=0, lt=MINUTES_A_DAY)]


class WebPushTarget(msgspec.Struct, frozen=True, kw_only=True, tag="web_push"):
    """A browser's address at its push service, and the keys that messages are encrypted for (RFC 8291); base64url."""

    endpoint: str
    p256dh: str
    auth: str


class ApnsTarget(msgspec.Struct, frozen=True, kw_only=True, tag="apns"):
    """An app on an Apple device: its token, in lower-case hexadecimal digits. `sandbox`: the app is a developer's
    build."""

    token: str
    sandbox: bool = False


class FcmTarget(msgspec.Struct, frozen=True, kw_only=True, tag="fcm"):
    """An app that is registered with Firebase Cloud Messaging."""

    token: str


PushTarget = WebPushTarget | ApnsTarget | FcmTarget


class QuietHours(msgspec.Struct, frozen=True, kw_only=True):
    """The hours without push: from minute `start` of the day to minute `end` (past midnight if that is less), in an
    IANA time zone."""

    start: Minute
    end: Minute
    time_zone: str


class PushSubscription(msgspec.Struct, frozen=True, kw_only=True):
    id: PushId
    tenant: TenantId
    user: str
    target: PushTarget
    label: str = ""  # what the user calls the device
    quiet: QuietHours | None = None
    created_at: UnixMs


class PushNotice(msgspec.Struct, frozen=True, kw_only=True):
    """A notice that something awaits a session's user; `offset` is that of the event in the log."""

    user: str
    cause: PushCause
    response_id: ResponseId
    offset: int


class PushDelivery(msgspec.Struct, frozen=True, kw_only=True):
    """A row of the outbox, claimed for some time. `subscription` is None if it has ended, or cannot be read any
    more."""

    key: SessionKey
    subscription_id: PushId
    subscription: PushSubscription | None
    notice: PushNotice
    at: UnixMs  # when the answer ended
    attempts: int  # including this one


class PushStore(Protocol):
    """The push subscriptions and the outbox of a journal. All methods raise Unavailable; those that write also
    OutcomeUnknown."""

    async def subscriptions(self, tenant: TenantId, user: str) -> list[PushSubscription]:
        """Returns an end user's subscriptions, the oldest first."""
        ...

    async def subscribe(self, subscription: PushSubscription) -> None:
        """Adds or replaces a subscription. If the device has a subscription for another user, that one is removed.
        Raises Limited beyond `SUBSCRIPTIONS_MAX`."""
        ...

    async def unsubscribe(self, tenant: TenantId, user: str, push_id: PushId) -> bool:
        """Removes a subscription with the notices that wait for it. Returns False if there was none."""
        ...

    async def claim(self, now: UnixMs, *, until: UnixMs, limit: int) -> list[PushDelivery]:
        """Claims due rows and returns them; another caller does not get them. Rows that are not settled become due
        again at `until`."""
        ...

    async def settle(self, delivery: PushDelivery) -> None:
        """Removes a row, unless a later notice has replaced it meanwhile."""
        ...

    async def postpone(self, delivery: PushDelivery, until: UnixMs) -> None:
        """Makes a row due at `until`, unless a later notice has replaced it meanwhile."""
        ...

    async def read_to(self, key: SessionKey, offset: int) -> None:
        """Drops a session's notices up to `offset`, because a device has read the log so far."""
        ...


def subscriber_of(principal: Principal) -> str:
    """Returns the end user whose subscriptions a principal sees and changes. Raises BadInput for a key without one."""
    if principal.user is None:
        raise BadInput(
            "user_required",
            "Push is for an end user's devices: use a key of theirs, or name them with X-Sessile-User.",
            param="user",
        )
    return principal.user


def kind_of(target: PushTarget) -> PushKind:
    match target:
        case WebPushTarget():
            return "web_push"
        case ApnsTarget():
            return "apns"
        case FcmTarget():
            return "fcm"


def address_of(target: PushTarget) -> str:
    """Returns a text that identifies the device: a URL of its push service, or the kind of target followed by its
    token."""
    return target.endpoint if isinstance(target, WebPushTarget) else f"{kind_of(target)}:{target.token}"


def address_hash(target: PushTarget) -> bytes:
    """Returns the hash by which a device's row is found. A plain hash is enough, because nobody can guess push
    services' addresses and tokens."""
    return hashlib.sha256(address_of(target).encode()).digest()


def push_id(tenant: TenantId, user: str, target: PushTarget) -> PushId:
    """Returns the id of a subscription. It is always the same for the same device and user, so that an app may
    subscribe at each start."""
    whose = hashlib.sha256("\0".join((tenant, user, address_of(target))).encode())
    return PushId(f"push_{whose.hexdigest()[:24]}")


def too_many_subscriptions() -> Limited:
    return Limited(
        "quota_exceeded", f"A user has push on {SUBSCRIPTIONS_MAX} devices at most: end one first.", retryable=False
    )


def subscription_not_found(name: str) -> NotFound:
    return NotFound("subscription_not_found", f"You have no push subscription {name!r}.", param="subscription")
