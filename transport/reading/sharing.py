"""Shares conversations by links, and reads what was shared for who has no key.

A share is made, listed and revoked by who may command the session. What is shown of it is what people said: the texts
of users' and the model's messages on the branch that was shared, with the names of attached files, the model's name,
and the title unless it was given since; no texts of files, no instructions, no calls of tools nor their outputs, no
metadata, no ids and nobody's name. It is folded from the log at every read, so that what was taken back, and a session
that was deleted, are gone at once.

Limits, per minute: looks by one address; looks by all for tokens that were not good lately; reads of one share, of all
shares of a tenant, and of all: who has links of her own takes nothing from other tenants' readers. A tenant whose table
says `sharing = false` shows nothing.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeGuard, TypeVar

from sessions.clock import Clock
from sessions.governance.end_user_data import EndUserStore
from sessions.limits import Bucket, TenantLimits
from sessions.machine.item_tree import ancestors
from sessions.machine.state import State
from sessions.model.audit import Action, Audited
from sessions.model.errors import Conflict, Forbidden, Limited, NotFound
from sessions.model.journal_types import Head
from sessions.model.shares import TOKEN_BYTES, ShareId, ShareLink, ShareStore, share_not_found, token_hash_of
from sessions.model.types import ItemId, Json, Message, Principal, SessionKey, TenantId
from transport.auth.client_addresses import address_group
from transport.reading.log_reader import LogReader, visible

READS_PER_MINUTE: Final = 6_000
READS_PER_TENANT: Final = 600
READS_PER_SHARE: Final = 120
READS_PER_ADDRESS: Final = 60  # in a minute
UNKNOWN_PER_MINUTE: Final = 6_000
TENANTS_MAX: Final = 10_000  # remembered; the one that was read longest ago is forgotten first
KNOWN_MAX: Final = 4_096  # tokens that were good lately; the one that was read longest ago is forgotten first
ADDRESSES_MAX: Final = 10_000  # remembered; the one that read longest ago is forgotten first

K = TypeVar("K")
V = TypeVar("V")


class ReadRate:
    """The limits of how often shared conversations are read. `clock` is monotonic, in seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._all = Bucket(READS_PER_MINUTE, clock() * 1000)
        self._unknown = Bucket(UNKNOWN_PER_MINUTE, clock() * 1000)
        self._known: OrderedDict[bytes, tuple[TenantId, Bucket]] = OrderedDict()  # by token hash
        self._tenants: OrderedDict[TenantId, Bucket] = OrderedDict()
        self._addresses: OrderedDict[str, Bucket] = OrderedDict()

    def take_look(self, address: str | None, token_hash: bytes) -> None:
        """Counts an attempt to read a share: for its address, and as a read if the token was valid lately, otherwise
        among the attempts with unknown tokens. Raises Limited."""
        now_ms, name = self._clock() * 1000, address_group(address)
        one = self._addresses.get(name) or Bucket(READS_PER_ADDRESS, now_ms)
        _take(one, READS_PER_ADDRESS, now_ms)
        _remember(self._addresses, name, one, ADDRESSES_MAX)
        known = self._known.get(token_hash)
        if known is None:
            _take(self._unknown, UNKNOWN_PER_MINUTE, now_ms)
        else:
            self._take_read(token_hash, *known)

    def take_read(self, token_hash: bytes, tenant: TenantId) -> None:
        """Counts a read by a token that was just found to be valid; `take_look` counts the later reads by this token.
        Raises Limited."""
        if token_hash not in self._known:
            self._take_read(token_hash, tenant, Bucket(READS_PER_SHARE, self._clock() * 1000))

    def _take_read(self, token_hash: bytes, tenant: TenantId, share: Bucket) -> None:
        now_ms = self._clock() * 1000
        whole = self._tenants.get(tenant) or Bucket(READS_PER_TENANT, now_ms)
        _take(share, READS_PER_SHARE, now_ms)
        _take(whole, READS_PER_TENANT, now_ms)
        _take(self._all, READS_PER_MINUTE, now_ms)
        _remember(self._known, token_hash, (tenant, share), KNOWN_MAX)
        _remember(self._tenants, tenant, whole, TENANTS_MAX)

    def forget(self, token_hash: bytes) -> None:
        """Forgets that a token was valid, because it is not any more."""
        self._known.pop(token_hash, None)


def _remember(remembered: OrderedDict[K, V], name: K, value: V, at_most: int) -> None:
    remembered[name] = value
    remembered.move_to_end(name)
    if len(remembered) > at_most:
        remembered.popitem(last=False)


def _take(bucket: Bucket, ceiling: int, now_ms: float) -> None:
    bucket.look(ceiling, now_ms)
    if wait_ms := bucket.wait_ms(1):
        raise Limited(
            "rate_limited", "Too many reads of shared conversations: try again in a while.", retry_after_ms=wait_ms
        )
    bucket.take(1)


@dataclass(frozen=True, eq=False, repr=False)
class ConversationShares:
    """Makes, lists, revokes and reads share links. `table` returns a tenant's limits; None: nothing is limited."""

    store: ShareStore
    end_users: EndUserStore
    logs: LogReader
    table: Callable[[TenantId], TenantLimits | None]
    rate: ReadRate
    clock: Clock

    async def share(self, principal: Principal, key: SessionKey, leaf: ItemId | None) -> tuple[ShareLink, str]:
        """Makes a share link of the branch that ends in `leaf` (None: in the newest item). Returns it with its token.
        Raises Forbidden, NotFound, Gone, Conflict, Limited."""
        head, state = await self._seen(principal, key)
        if not self._allowed(key.tenant):
            raise Forbidden("sharing_disabled", "This tenant shares no conversations by links.")
        item_id = branch_end(state, leaf)
        token = secrets.token_urlsafe(TOKEN_BYTES)
        share = ShareLink(
            id=ShareId(f"shr_{self.clock.new_id()}"),
            key=key,
            token_hash=token_hash_of(token),
            item_id=item_id,
            offset=state.top,
            created_at=self.clock.now_ms(),
            created_by=principal.id,
        )
        await self.store.add(share, self._row("session.shared", principal, head, share.id))
        return share, token

    async def shares(self, principal: Principal, key: SessionKey) -> list[ShareLink]:
        """Returns the share links of a session, newest first. Raises NotFound, Gone."""
        await self._seen(principal, key)
        return await self.store.of_session(key)

    async def revoke(self, principal: Principal, key: SessionKey, share_id: ShareId) -> None:
        """Revokes a share link, so that nobody can read it any more. Raises NotFound, Gone."""
        head, _ = await self._seen(principal, key)
        if not await self.store.remove(key, share_id, self._row("session.unshared", principal, head, share_id)):
            raise share_not_found()

    async def read(self, token: str, address: str | None) -> dict[str, Json]:
        """Returns the shared conversation for a token. Raises Limited; NotFound for whatever else is wrong."""
        token_hash = token_hash_of(token)
        self.rate.take_look(address, token_hash)
        share = await self.store.find(token_hash)
        if share is None or not self._allowed(share.key.tenant):
            self.rate.forget(token_hash)
            raise share_not_found()
        self.rate.take_read(token_hash, share.key.tenant)
        try:
            head, state = await self.logs.fold(share.key, in_thread=True)
        except NotFound as error:
            raise share_not_found() from error
        if head.deleted_at is not None or state.deleted or share.item_id not in state.items:
            raise share_not_found()
        if head.user is not None:
            erasure = await self.end_users.find(share.key.tenant, head.user)
            if erasure is not None and erasure.done_at is None:
                raise share_not_found()
        return shared_conversation(state, share)

    def _allowed(self, tenant: TenantId) -> bool:
        table = self.table(tenant)
        return table is None or table.sharing

    async def _seen(self, principal: Principal, key: SessionKey) -> tuple[Head, State]:
        head, state = await self.logs.fold(key, in_thread=True)
        visible(principal, key, head.user, head.deleted_at is not None)
        return head, state

    def _row(self, action: Action, principal: Principal, head: Head, share_id: ShareId) -> Audited:
        detail = {"share": share_id}
        return Audited(
            action=action, at=self.clock.now_ms(), by=principal, user=head.user, session=head.key.session, detail=detail
        )


def branch_end(state: State, leaf: ItemId | None) -> ItemId:
    """Returns the last item that a share link shows: `leaf`, or the newest complete one. Raises NotFound, Conflict."""
    if leaf is not None:
        if leaf not in state.items:
            raise NotFound("item_not_found", f"There is no item {leaf!r} in this session.", param="item_id")
        if state.made_by.get(leaf) in state.open:
            raise Conflict("response_in_progress", "Wait until the response has ended.", retryable=True)
    end = leaf if leaf is not None else state.newest
    whole = [item for item in ancestors(state, end) if state.made_by.get(item.id) not in state.open]
    if not any(_shown(item) for item in whole):
        raise Conflict("nothing_to_share", "There is no message to share in this session yet.")
    return whole[0].id


def shared_conversation(state: State, share: ShareLink) -> dict[str, Any]:
    branch = [item for item in ancestors(state, share.item_id) if _shown(item)][::-1]
    info = state.info
    assert info is not None
    messages = [
        {
            "role": item.role,
            "text": item.words,
            "files": [*(file.filename for file in item.files), *("image" for _ in item.images)],
            "created_at": item.created_at,
        }
        for item in branch
    ]
    return {
        "object": "shared_conversation",
        "title": info.title if state.titled_at <= share.offset else None,
        "model": info.model,
        "created_at": info.created_at,
        "shared_at": share.created_at,
        "messages": messages,
    }


def _shown(item: object) -> TypeGuard[Message]:
    return (
        isinstance(item, Message)
        and item.role in ("user", "assistant")
        and bool(item.words or item.files or item.images)
    )
