"""The values that the journal stores and returns: heads, appends, pages. The port that uses them is in
`sessions.ports`."""

from __future__ import annotations

from typing import Literal

import msgspec

from sessions.model.audit import Audited
from sessions.model.commands import Ok
from sessions.model.events import Record
from sessions.model.push import PushNotice
from sessions.model.reviews import Case
from sessions.model.types import (
    NEVER,
    CommandId,
    Epoch,
    Json,
    Principal,
    ResponseId,
    SessionKey,
    TenantId,
    UnixMs,
    Usage,
)


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """The row that fences a log: it says who may append (`fence`) and at which offset (`top`).

    `top` 0 means that the session was claimed but nothing was ever written: for readers it does not exist.
    `incarnation` is the journal's at the last grant; the epoch is valid only while the two are equal.
    """

    key: SessionKey
    epoch: Epoch
    fence: int
    incarnation: str
    top: int
    open: bool = False  # some turn is open: a sweep finishes it if its owner is lost
    owner: str = ""  # replica/activation at the last grant, for people to read
    user: str | None = None
    model: str = ""
    title: str | None = None
    metadata: dict[str, Json] = {}
    listed: bool = True
    created_at: UnixMs
    updated_at: UnixMs
    deleted_at: UnixMs | None = None


class HeadPatch(msgspec.Struct, frozen=True, kw_only=True):
    """All descriptive columns of a head, written in the transaction of the append that carries them."""

    open: bool
    user: str | None
    model: str
    title: str | None
    metadata: dict[str, Json]
    listed: bool = True
    deleted_at: UnixMs | None = None


class CommandRecord(msgspec.Struct, frozen=True, kw_only=True):
    """An applied command with its answer (I5). Kept for 24 h."""

    principal_id: str
    command_id: CommandId
    digest: bytes
    answer: Ok
    at: UnixMs


class UsageRow(msgspec.Struct, frozen=True, kw_only=True):
    """The usage of one response, written in the transaction of its terminal event. A response has only one row, however
    often it is written.

    `cost` is in picos of `currency`, by the price list `price_version` (`sessions.billing.prices`). Both texts are ""
    if the model has no price.
    """

    response_id: ResponseId
    principal: Principal
    model: str
    usage: Usage
    status: str
    recomputed_tokens: int
    withheld_tokens: int
    at: UnixMs
    price_version: str = ""
    currency: str = ""
    cost: int = 0


class ResponsePlace(msgspec.Struct, frozen=True):
    """A response's session, and the offset of its first record (queued or created)."""

    key: SessionKey
    offset: int


class Snapshot(msgspec.Struct, frozen=True):
    """The machine's state, folded up to and including `offset`. It is derived from the log, which decides; it may be
    missing."""

    offset: int
    body: bytes


class Due(msgspec.Struct, frozen=True, kw_only=True):
    """The sessions to purge: those that are older than one of these times, for that time's reason. NEVER as a time
    switches its reason off.

    `tenant` restricts them to this tenant's, and `user` to this end user's of them; `besides` excludes these tenants'.
    """

    deleted_before: UnixMs
    unlisted_before: UnixMs = NEVER
    idle_before: UnixMs = NEVER
    tenant: TenantId | None = None
    user: str | None = None
    besides: tuple[TenantId, ...] = ()

    def reason(
        self, *, user: str | None, top: int, listed: bool, open: bool, updated_at: int, deleted_at: int | None
    ) -> Literal["empty", "deleted", "unlisted", "idle"] | None:
        """Returns why a session is to be purged; None if it is not. A deleted session never stays longer than it would
        have."""
        if self.user not in (None, user):
            return None
        if top == 0:
            return "empty" if updated_at < self.deleted_before else None
        if deleted_at is not None and deleted_at < self.deleted_before:
            return "deleted"
        if open:
            return None
        if not listed and updated_at < self.unlisted_before:
            return "unlisted"
        return "idle" if updated_at < self.idle_before else None


class Append(msgspec.Struct, frozen=True, kw_only=True):
    """One atomic write for one session: afterwards all of it is durable, or nothing.

    `records` get the offsets top+1 ... top+len(records). They may be empty: then only the other rows are written, under
    the same fence check.
    """

    key: SessionKey
    fence: int
    top: int
    records: tuple[Record, ...] = ()
    commands: tuple[CommandRecord, ...] = ()
    head: HeadPatch | None = None
    usage: tuple[UsageRow, ...] = ()
    reviews: tuple[Case, ...] = ()  # opened by it; for cases that exist already see `sessions.model.reviews`
    snapshot: Snapshot | None = None
    audit: tuple[Audited, ...] = ()  # rows for the tenant's audit log
    push: PushNotice | None = None  # for the devices of a user who does not read
    at: UnixMs


class Loaded(msgspec.Struct, frozen=True):
    """Everything that an actor needs to be restored: the newest snapshot, the records behind it, recent commands.

    `commands` are those of the last 24 h, newest last, at most `COMMANDS_LOADED_MAX`. `commands_complete` is False if
    older ones were left out; `find_command` finds those.
    """

    head: Head
    snapshot: Snapshot | None
    records: tuple[Record, ...]
    commands: tuple[CommandRecord, ...]
    commands_complete: bool


COMMANDS_LOADED_MAX = 1024


class Page(msgspec.Struct, frozen=True):
    """Consecutive records of a log. `head` was read in the same transaction, so `head.top` holds for the page."""

    head: Head
    records: tuple[Record, ...]
