"""Push: a device that reads nothing at the moment is sent a message when an answer is there, or waits for its user.

    answer ends, nobody reads ─► row of the outbox, in the append itself ─► relay ─► push service ─► device

A subscription is a device's of one end user: where messages for it go, and the keys that they are encrypted for. The
outbox has one row for each session and subscription: a later answer takes the place of one that was not sent yet. What
is sent has ids only, no word of the conversation.

Invariants: a row is written in the transaction of the answer's end, so that each that nobody reads is in it once; it
is taken out when it was sent, when a device has read that far, or when it is too old to be of use.

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
KEPT_MS: Final = 24 * 3_600_000  # what could not be sent for so long is of no use
MINUTES_A_DAY: Final = 24 * 60

Minute = Annotated[int, msgspec.Meta(ge=0, lt=MINUTES_A_DAY)]


class WebPushTarget(msgspec.Struct, frozen=True, kw_only=True, tag="web_push"):
    """Where a browser's push service takes messages, and what they are encrypted for (RFC 8291); base64url."""

    endpoint: str
    p256dh: str
    auth: str


class ApnsTarget(msgspec.Struct, frozen=True, kw_only=True, tag="apns"):
    """An app on an Apple device: its token, in lower-case hexadecimal. `sandbox`: of an app that a developer built."""

    token: str
    sandbox: bool = False


class FcmTarget(msgspec.Struct, frozen=True, kw_only=True, tag="fcm"):
    """An app that registered with Firebase Cloud Messaging."""

    token: str


PushTarget = WebPushTarget | ApnsTarget | FcmTarget


class QuietHours(msgspec.Struct, frozen=True, kw_only=True):
    """From minute `start` of the day to minute `end`, over midnight where it is less, in a time zone of IANA's."""

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
    """That something is there for a session's user; `offset` is where the log shows it."""

    user: str
    cause: PushCause
    response_id: ResponseId
    offset: int


class PushDelivery(msgspec.Struct, frozen=True, kw_only=True):
    """A row of the outbox, claimed for some time. No `subscription`: it has ended, or cannot be read any more."""

    key: SessionKey
    subscription_id: PushId
    subscription: PushSubscription | None
    notice: PushNotice
    at: UnixMs  # when the answer ended
    attempts: int  # this one counted


class PushStore(Protocol):
    """Subscriptions and the outbox of a journal. All raise Unavailable; writes OutcomeUnknown too."""

    async def subscriptions(self, tenant: TenantId, user: str) -> list[PushSubscription]:
        """A user's, the oldest first."""
        ...

    async def subscribe(self, subscription: PushSubscription) -> None:
        """Adds one or replaces it. The same device for another user ends: it has one. Raises Limited beyond
        `SUBSCRIPTIONS_MAX`."""
        ...

    async def unsubscribe(self, tenant: TenantId, user: str, push_id: PushId) -> bool:
        """Takes it away with what waits for it. False: there was none."""
        ...

    async def claim(self, now: UnixMs, *, until: UnixMs, limit: int) -> list[PushDelivery]:
        """Rows that are due, for whoever asks first; they are due again at `until`, unless they are settled."""
        ...

    async def settle(self, delivery: PushDelivery) -> None:
        """Takes a row out, unless a later notice stands in it by now."""
        ...

    async def postpone(self, delivery: PushDelivery, until: UnixMs) -> None:
        """Has it due at another time; likewise."""
        ...

    async def read_to(self, key: SessionKey, offset: int) -> None:
        """A device has read the log so far: nobody needs to be told of it."""
        ...


def subscriber_of(principal: Principal) -> str:
    """Whose subscriptions a principal sees and changes. Raises BadInput for a key that speaks for nobody."""
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
    """What names the device: a URL of its push service, or a token with its kind."""
    return target.endpoint if isinstance(target, WebPushTarget) else f"{kind_of(target)}:{target.token}"


def address_hash(target: PushTarget) -> bytes:
    """What a device is found by. A plain hash will do: push services make addresses and tokens that nobody guesses."""
    return hashlib.sha256(address_of(target).encode()).digest()


def push_id(tenant: TenantId, user: str, target: PushTarget) -> PushId:
    """The same for the same device and user, so that an app may subscribe at every start."""
    whose = hashlib.sha256("\0".join((tenant, user, address_of(target))).encode())
    return PushId(f"push_{whose.hexdigest()[:24]}")


def too_many_subscriptions() -> Limited:
    return Limited(
        "quota_exceeded", f"A user has push on {SUBSCRIPTIONS_MAX} devices at most: end one first.", retryable=False
    )


def subscription_not_found(name: str) -> NotFound:
    return NotFound("subscription_not_found", f"You have no push subscription {name!r}.", param="subscription")
