"""The rows of a store in memory, and the rules of the `Journal` contract as plain functions on them.

A database may be shared by many journals, each one process's way to it: a simulated replica that dies takes its journal
with it and leaves the database. `backup` and `restore` play an operator who puts an older copy back.

No threads, no clock, no chance of its own. Records are kept as objects: they are immutable.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final
from uuid import uuid4

import msgspec

from persistence.codec import encode_record
from persistence.group_commit import GroupLimits
from persistence.validation import (
    COMMANDS_KEPT_MS,
    FENCES_PER_INCARNATION,
    FIRST_KEY,
    fenced,
    purged_row,
    unknown_cursor,
)
from sessions.added_tools import AddedTools
from sessions.governance.end_user_data import Erasure
from sessions.limits import Tally
from sessions.model.api_keys import ApiKey
from sessions.model.audit import AuditEntry, AuditFloor, AuditHead, AuditRow, Sealer
from sessions.model.events import Record, ResponseCreated, ResponseQueued
from sessions.model.journal_types import (
    COMMANDS_LOADED_MAX,
    Append,
    CommandRecord,
    Due,
    Head,
    Loaded,
    Page,
    ResponsePlace,
    Snapshot,
    UsageRow,
)
from sessions.model.knowledge.files import BlobId, FileId, StoredFile
from sessions.model.memories import MemoryId, UserMemory
from sessions.model.push import GRACE_MS, PushDelivery, PushId, PushSubscription
from sessions.model.reviews import Case, ReviewId, appealed
from sessions.model.revocations import Revocation, RevocationKind
from sessions.model.shares import ShareLink
from sessions.model.types import CommandId, Epoch, ResponseId, SessionKey, TenantId, UnixMs
from sessions.tool_records import ToolRecord

_TABLES: Final = (
    "_logs",
    "_responses",
    "usage_rows",
    "relayed",
    "reviews",
    "shares",
    "subscriptions",
    "push_outbox",
    "files",
    "file_blobs",
    "api_keys",
    "revocations",
    "tool_records",
    "added_tools",
    "audit_rows",
    "audit_heads",
    "audit_floors",
    "erasures",
)


@dataclass(slots=True, eq=False, repr=False)
class _Log:
    """The rows of one session."""

    head: Head
    records: list[Record] = field(default_factory=list)
    snapshot: Snapshot | None = None
    commands: dict[tuple[str, str], CommandRecord] = field(default_factory=dict)

    def copy(self) -> _Log:
        return replace(self, records=list(self.records), commands=dict(self.commands))


class MemoryDatabase:
    """All tables of a store. Tables whose names have no underscore in front belong to the views beside the journal."""

    def __init__(self, *, new_id: Callable[[], str] = lambda: uuid4().hex) -> None:
        self._new_id = new_id
        self.write_bytes_max = GroupLimits().write_bytes_max
        self.incarnation = new_id()
        self._logs: dict[SessionKey, _Log] = {}
        self.usage_rows: dict[tuple[SessionKey, ResponseId], UsageRow] = {}
        self._responses: dict[tuple[TenantId, ResponseId], ResponsePlace] = {}
        self.relayed: dict[int, UnixMs] = {}
        self.reviews: dict[ReviewId, Case] = {}
        self.shares: dict[bytes, ShareLink] = {}  # by the hash of their tokens
        self.subscriptions: dict[tuple[TenantId, str, PushId], PushSubscription] = {}
        self.push_outbox: dict[tuple[SessionKey, PushId], tuple[UnixMs, PushDelivery]] = {}  # with its due time
        self.files: dict[tuple[TenantId, FileId], StoredFile] = {}
        self.file_blobs: dict[tuple[TenantId, BlobId], Any] = {}  # `memory.files.MemoryBlob`
        self.memories: dict[MemoryId, UserMemory] = {}
        self.api_keys: dict[str, ApiKey] = {}
        self.tool_records: dict[tuple[TenantId, str, str], ToolRecord] = {}
        self.added_tools: dict[TenantId, AddedTools] = {}
        self.revocations: dict[tuple[str, RevocationKind, str], Revocation] = {}
        self.audit_rows: dict[TenantId, list[AuditRow]] = {}
        self.audit_heads: dict[TenantId, AuditHead] = {}
        self.audit_floors: dict[TenantId, AuditFloor] = {}
        self.erasures: list[Erasure] = []
        self.sealer = Sealer(hashlib.sha256(self.incarnation.encode()).digest())

    def backup(self) -> MemoryDatabase:
        """Returns a copy of all tables as they are now, for `restore`."""
        copied = copy.copy(self)
        for table in _TABLES:
            setattr(copied, table, copy.copy(getattr(self, table)))
        copied._logs = {key: log.copy() for key, log in self._logs.items()}
        copied.audit_rows = {tenant: list(rows) for tenant, rows in self.audit_rows.items()}
        return copied

    def restore(self, backup: MemoryDatabase) -> None:
        """Replaces all tables by a backup's, as a new incarnation in which no fence of the old one matches."""
        kept = backup.backup()
        for table in _TABLES:
            setattr(self, table, getattr(kept, table))
        self.incarnation = self._new_id()
        for log in self._logs.values():
            fence = log.head.fence + FENCES_PER_INCARNATION
            log.head = msgspec.structs.replace(log.head, fence=fence)

    def grant(self, key: SessionKey, expected_fence: int | None, owner: str, new_epoch: Epoch, now_ms: UnixMs) -> Head:
        log = self._logs.get(key)
        if log is None:
            if expected_fence is not None:
                raise fenced()
            head = Head(
                key=key,
                epoch=new_epoch,
                fence=1,
                incarnation=self.incarnation,
                top=0,
                owner=owner,
                created_at=now_ms,
                updated_at=now_ms,
            )
            self._logs[key] = _Log(head)
            return head
        head = log.head
        if head.fence != expected_fence:
            raise fenced()
        log.head = msgspec.structs.replace(
            head,
            fence=head.fence + 1,
            owner=owner,
            incarnation=self.incarnation,
            epoch=head.epoch if head.incarnation == self.incarnation else new_epoch,
            updated_at=now_ms if head.top == 0 else head.updated_at,
        )
        return log.head

    def append(self, append: Append) -> None:
        log = self._logs.get(append.key)
        if log is None or log.head.fence != append.fence or log.head.top != append.top:
            raise fenced()
        changes: dict[str, Any] = {"top": append.top + len(append.records)}
        if append.head is not None:
            changes |= {name: getattr(append.head, name) for name in append.head.__struct_fields__}
            changes["updated_at"] = append.at
        log.head = msgspec.structs.replace(log.head, **changes)
        log.records += append.records
        log.commands.update({(c.principal_id, c.command_id): c for c in append.commands})
        for row in append.usage:
            self.usage_rows.setdefault((append.key, row.response_id), row)
        for record in append.records:
            if isinstance(event := record.event, ResponseQueued | ResponseCreated):
                place = ResponsePlace(append.key, record.offset)
                self._responses.setdefault((append.key.tenant, event.response_id), place)
        for case in append.reviews:
            there = self.reviews.get(case.id)
            self.reviews[case.id] = case if there is None else appealed(there, case)
        self._note_push(append)
        if append.snapshot is not None:
            log.snapshot = append.snapshot
        if append.audit:
            self.chain([self.sealer.entry(append.key.tenant, row) for row in append.audit])

    def _note_push(self, append: Append) -> None:
        """Writes a row of the push outbox for each device of the user, in place of one that was not sent yet."""
        if (notice := append.push) is None:
            return
        for tenant, user, push_id in self.subscriptions:
            if (tenant, user) == (append.key.tenant, notice.user):
                row = PushDelivery(
                    key=append.key,
                    subscription_id=push_id,
                    subscription=None,
                    notice=notice,
                    at=append.at,
                    attempts=0,
                )
                self.push_outbox[(append.key, push_id)] = (UnixMs(append.at + GRACE_MS), row)

    def chain(self, entries: list[AuditEntry]) -> None:
        """Appends entries of one tenant to its audit chain."""
        if entries:
            tenant = entries[0].tenant
            rows, head = self.sealer.chained(self.audit_heads.get(tenant), entries)
            self.audit_rows.setdefault(tenant, []).extend(rows)
            self.audit_heads[tenant] = head

    def load(self, key: SessionKey, now_ms: UnixMs) -> Loaded | None:
        log = self._logs.get(key)
        if log is None:
            return None
        recent = [c for c in log.commands.values() if c.at > now_ms - COMMANDS_KEPT_MS]
        recent.sort(key=lambda c: (c.at, c.command_id))
        after = log.snapshot.offset if log.snapshot else 0
        return Loaded(
            log.head,
            log.snapshot,
            tuple(log.records[after:]),
            tuple(recent[-COMMANDS_LOADED_MAX:]),
            len(recent) <= COMMANDS_LOADED_MAX,
        )

    def head(self, key: SessionKey) -> Head | None:
        log = self._logs.get(key)
        return None if log is None else log.head

    def read(self, key: SessionKey, after: int, limit: int, bytes_max: int) -> Page | None:
        log = self._logs.get(key)
        if log is None:
            return None
        records: list[Record] = []
        size = 0
        for record in log.records[after : after + limit]:
            if size >= bytes_max:
                break
            records.append(record)
            size += len(encode_record(record))
        return Page(log.head, tuple(records))

    def find_command(self, key: SessionKey, principal_id: str, command_id: CommandId) -> CommandRecord | None:
        log = self._logs.get(key)
        return None if log is None else log.commands.get((principal_id, command_id))

    def find_response(self, tenant: TenantId, response_id: ResponseId) -> ResponsePlace | None:
        return self._responses.get((tenant, response_id))

    def list_heads(self, tenant: TenantId, user: str | None, limit: int, after: SessionKey | None) -> list[Head]:
        heads = [
            h
            for key, h in self._heads()
            if key.tenant == tenant and h.listed and h.deleted_at is None and h.top > 0
            if user is None or h.user == user
        ]
        if after is not None:
            place = self.head(after)
            if place is None or after.tenant != tenant or user not in (None, place.user):
                raise unknown_cursor()
            heads = [h for h in heads if _recency_key(h) > _recency_key(place)]
        return sorted(heads, key=_recency_key)[:limit]

    def tally(self, tenant: TenantId, user: str | None) -> Tally:
        logs = [
            log for key, log in self._logs.items() if key.tenant == tenant and (user is None or log.head.user == user)
        ]
        shown = [log for log in logs if log.head.listed and log.head.deleted_at is None and log.head.top > 0]
        return Tally(len(shown), sum(len(encode_record(record)) for log in logs for record in log.records))

    def open_heads(self, limit: int, after: SessionKey | None) -> list[Head]:
        behind = after or FIRST_KEY
        return [h for key, h in sorted(self._heads()) if h.open and key > behind][:limit]

    def purgeable(self, due: Due, limit: int) -> list[SessionKey]:
        return [
            key
            for key, head in self._heads()
            if key.tenant not in due.besides and due.tenant in (None, key.tenant) and _reason(due, head) is not None
        ][:limit]

    def purge(self, keys: Sequence[SessionKey], due: Due, commands_before: UnixMs, at: UnixMs) -> list[SessionKey]:
        purged: list[SessionKey] = []
        for key in keys:
            head = self.head(key)
            reason = None if head is None else _reason(due, head)
            if head is not None and reason is not None:
                if head.top:
                    self.chain([self.sealer.entry(key.tenant, purged_row(key, head.user, reason, at))])
                purged.append(key)
                del self._logs[key]
        gone = set(purged)
        self.reviews = {name: case for name, case in self.reviews.items() if case.key not in gone}
        self.shares = {name: share for name, share in self.shares.items() if share.key not in gone}
        self.push_outbox = {name: row for name, row in self.push_outbox.items() if name[0] not in gone}
        self._responses = {name: place for name, place in self._responses.items() if place.key not in gone}
        for log in self._logs.values():
            log.commands = {name: c for name, c in log.commands.items() if c.at >= commands_before}
        return purged

    def keys(self) -> list[SessionKey]:
        return list(self._logs)

    def _heads(self) -> list[tuple[SessionKey, Head]]:
        return [(key, log.head) for key, log in self._logs.items()]


def _reason(due: Due, head: Head) -> str | None:
    return due.reason(
        user=head.user,
        top=head.top,
        listed=head.listed,
        open=head.open,
        updated_at=head.updated_at,
        deleted_at=head.deleted_at,
    )


def _recency_key(head: Head) -> tuple[int, str]:
    return (-head.updated_at, head.key.session)
