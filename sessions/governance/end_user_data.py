"""Exports and erases everything of one end user, and records erasures.

    export    memories, files with their content, sessions (deleted ones too, as long as they are stored), items,
              usage, rows of the audit log
    erasure   requested ─► sessions deleted ─► KV erased at every replica ─► keys destroyed ─► logs purged ─► done

An erasure is of what existed when it was requested: later sessions are not part of it. Its row exists until all is
done, so whatever dies in between, a replica goes on; each of its steps can be repeated. The row has the user's name
until then, and a pseudonym afterwards (`sessions.model.audit`). What remains is usage without the name, and the audit
log, which never had it.

Who carries it out: `actors.maintenance.erasure`. Who may ask for it: `sessions.model.authorization`.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import AsyncIterator
from typing import Any, Final, NamedTuple, Protocol
from urllib.parse import urlsplit

import msgspec

from sessions.billing.metering import UsageQuery, UsageStore, entry_public
from sessions.machine.client_state import client_state
from sessions.machine.state import State, apply, begin
from sessions.model.audit import Audited, AuditLog, public
from sessions.model.errors import Internal
from sessions.model.journal_types import Head
from sessions.model.knowledge.files import FileQuery, FileStore, StoredFile
from sessions.model.memories import MemoryId, UserMemory
from sessions.model.push import PushStore, PushSubscription, WebPushTarget, kind_of
from sessions.model.types import SessionKey, TenantId, UnixMs
from sessions.ports import Journal

PAGE: Final = 200
RECORDS: Final = 1024
RECORD_BYTES: Final = 1024 * 1024


class Erasure(msgspec.Struct, frozen=True, kw_only=True):
    """The erasure of one end user. `user` is their name until it is done, then a pseudonym. `released` are the replicas
    that have erased their KV of the user."""

    tenant: TenantId
    user: str
    asked_at: UnixMs
    asked_by: str
    released: tuple[str, ...] = ()
    done_at: UnixMs | None = None


class EndUserStore(Protocol):
    """The end users in the journal's database. All methods raise Unavailable; those that write also OutcomeUnknown."""

    async def heads(self, tenant: TenantId, user: str, *, after: SessionKey | None, limit: int) -> list[Head]:
        """Returns all stored sessions of an end user, deleted and unlisted ones too, in key order."""
        ...

    async def request_erasure(self, erasure: Erasure, audited: Audited) -> Erasure:
        """Stores an erasure with its audit row, and returns it; if one is under way, that one is returned unchanged.
        The user's memories are deleted at once, because sessions that are created before it is done would begin with
        them."""
        ...

    async def find(self, tenant: TenantId, user: str) -> Erasure | None:
        """Returns the newest erasure of an end user, by their name; None if there is none."""
        ...

    async def pending(self, *, limit: int) -> list[Erasure]:
        """Returns the erasures of all tenants that are not done, oldest first."""
        ...

    async def released(self, erasure: Erasure, replica: str) -> Erasure:
        """Notes that a replica has erased the user's KV; returns the erasure with it."""
        ...

    async def memories(self, tenant: TenantId, user: str) -> list[UserMemory]:
        """Returns an end user's memories, the oldest first."""
        ...

    async def add_memory(self, memory: UserMemory) -> None:
        """Adds a memory. Raises Limited beyond `MEMORIES_MAX`."""
        ...

    async def change_memory(
        self, tenant: TenantId, user: str, memory_id: MemoryId, *, text: str, at: UnixMs
    ) -> UserMemory | None:
        """Changes a memory's text. Returns the changed memory; None if it does not exist."""
        ...

    async def remove_memory(self, tenant: TenantId, user: str, memory_id: MemoryId) -> bool:
        """Removes a memory. Returns False if there was none."""
        ...

    async def finish(self, erasure: Erasure, audited: Audited) -> None:
        """Completes an erasure: takes the user's name out of usage, then, in one transaction, out of API keys (active
        ones are revoked) and of the erasure, deletes memories that were added meanwhile, and writes the audit row. Does
        nothing if the erasure is done already."""
        ...


class KeptForUsers(NamedTuple):
    """The stores of what end users have besides their conversations."""

    push: PushStore
    files: FileStore


async def heads_of(personal: EndUserStore, tenant: TenantId, user: str) -> AsyncIterator[Head]:
    after: SessionKey | None = None
    while heads := await personal.heads(tenant, user, after=after, limit=PAGE):
        for head in heads:
            yield head
        after = heads[-1].key


async def export_user_data(
    tenant: TenantId,
    user: str,
    *,
    personal: EndUserStore,
    kept: KeptForUsers,
    journal: Journal,
    usage: UsageStore,
    audit: AuditLog,
    at: UnixMs,
) -> AsyncIterator[dict[str, Any]]:
    """Yields the objects of an export, one for each line. The last one has the counts of the others, which shows
    whether the stream was cut off. Retracted text is left out. Raises Unavailable."""
    yield {"object": "user.export", "tenant": tenant, "user": user, "at": at}
    kinds = ("sessions", "items", "memories", "push_subscriptions", "files", "responses", "audit_rows")
    counts = dict.fromkeys(kinds, 0)
    for memory in await personal.memories(tenant, user):
        yield {"object": "memory", **memory_fields(memory)}
        counts["memories"] += 1
    for subscription in await kept.push.subscriptions(tenant, user):
        yield {"object": "push_subscription", **push_fields(subscription)}
        counts["push_subscriptions"] += 1
    async for file in _files_of(kept.files, tenant, user, at):
        yield {"object": "file", **file_fields(file)}
        counts["files"] += 1
        index = 0
        async for chunk in kept.files.read(file):
            yield {"object": "file.content", "file": file.id, "index": index, "data": b64encode(chunk).decode()}
            index += 1
    async for head in heads_of(personal, tenant, user):
        state = await _state(journal, head.key)
        if state is None:
            continue
        shown = client_state(state)
        items = shown.pop("items")
        names = ("epoch", "top", "listed", "created_at", "updated_at", "deleted_at")
        about = {name: getattr(head, name) for name in names}
        yield {"object": "session", "id": head.key.session, **shown, **about}
        counts["sessions"] += 1
        for item in items:
            yield {"object": "item", "session": head.key.session, "item": item}
            counts["items"] += 1
    after = 0
    while entries := await usage.entries(UsageQuery(tenant=tenant, user=user), after=after, limit=PAGE):
        for entry in entries:
            yield entry_public(entry)
        counts["responses"] += len(entries)
        after = entries[-1].seq
    names_in_rows, after = audit.sealer.pseudonyms(tenant, user), 0
    while rows := await audit.rows(tenant, after=after, limit=PAGE, about=names_in_rows):
        for row in rows:
            yield public(row)
        counts["audit_rows"] += len(rows)
        after = rows[-1].seq
    yield {"object": "user.exported", "tenant": tenant, "user": user, **counts}


async def _files_of(files: FileStore, tenant: TenantId, user: str, now: UnixMs) -> AsyncIterator[StoredFile]:
    query = FileQuery(tenant=tenant, user=user, limit=PAGE, newest_first=False)
    while page := await files.files(query, now):
        for file in page:
            yield file
        query = msgspec.structs.replace(query, after=page[-1].id)


def file_fields(file: StoredFile) -> dict[str, Any]:
    """Returns a file in the form that its user sees."""
    names = ("id", "filename", "purpose", "media_type", "size", "sha256", "created_at", "expires_at")
    return {name: getattr(file, name) for name in names}


async def _state(journal: Journal, key: SessionKey) -> State | None:
    """Returns the state of a session from its whole log; None if it was purged meanwhile, or nothing was ever
    written."""
    state: State | None = None
    while True:
        page = await journal.read(
            key, after=state.top if state is not None else 0, limit=RECORDS, bytes_max=RECORD_BYTES
        )
        if page is None or page.head.top == 0:
            return None
        if state is None:
            state = begin(page.head, None)
        for record in page.records:
            apply(state, record)
        if state.top >= page.head.top:
            return state
        if not page.records:
            raise Internal("internal_error", "The log of this session has a hole.")


def memory_fields(memory: UserMemory) -> dict[str, Any]:
    """Returns a memory in the form that its user sees."""
    return {
        "id": memory.id,
        "text": memory.text,
        "created_at": memory.created_at,
        "updated_at": memory.updated_at,
    }


def push_fields(subscription: PushSubscription) -> dict[str, Any]:
    """Returns a subscription in the form that its user sees. It has only the push service's name of an address, and
    nothing of a token, because who knows all of it can take over the device."""
    quiet, target = subscription.quiet, subscription.target
    kind = kind_of(target)
    return {
        "id": subscription.id,
        "kind": kind,
        "service": (urlsplit(target.endpoint).hostname or "") if isinstance(target, WebPushTarget) else kind,
        "label": subscription.label,
        "quiet_hours": None if quiet is None else msgspec.to_builtins(quiet),
        "created_at": subscription.created_at,
    }


def status(erasure: Erasure, user: str) -> dict[str, Any]:
    """Returns an erasure as the API shows it."""
    done = erasure.done_at is not None
    return {
        "object": "user.erasure",
        "tenant": erasure.tenant,
        "user": user,
        "status": "done" if done else "under_way",
        "asked_at": erasure.asked_at,
        "done_at": erasure.done_at,
    }
