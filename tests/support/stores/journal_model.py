"""The rules of the Journal port as plain functions on objects: what a history must come to on every driver.

It shares nothing with the drivers but the checks of what no store can hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from persistence.codec import encode_record
from persistence.validation import COMMANDS_KEPT_MS, check_append, check_key, check_text, fenced, unknown_cursor
from sessions.billing.metering import UsageEntry, UsageQuery
from sessions.model.events import Record
from sessions.model.journal_types import (
    COMMANDS_LOADED_MAX,
    Append,
    CommandRecord,
    Due,
    Head,
    Loaded,
    Page,
    Snapshot,
    UsageRow,
)
from sessions.model.types import CommandId, Epoch, ResponseId, SessionKey, TenantId, UnixMs


@dataclass
class _Log:
    head: Head
    records: list[Record] = field(default_factory=list)
    snapshot: Snapshot | None = None
    commands: dict[tuple[str, str], CommandRecord] = field(default_factory=dict)


class JournalModel:
    """A journal of one incarnation, and its usage rows."""

    incarnation = "incarnation of the model"

    def __init__(self) -> None:
        self._logs: dict[SessionKey, _Log] = {}
        self._usage: dict[tuple[SessionKey, ResponseId], UsageRow] = {}

    async def grant(
        self, key: SessionKey, *, expected_fence: int | None, owner: str, new_epoch: Epoch, now_ms: UnixMs
    ) -> Head:
        check_key(key)
        check_text(owner, new_epoch)
        log = self._logs.get(key)
        if expected_fence != (None if log is None else log.head.fence):
            raise fenced()
        if log is None:
            times: dict[str, Any] = {"created_at": now_ms, "updated_at": now_ms}
            head = Head(key=key, epoch=new_epoch, fence=1, incarnation=self.incarnation, top=0, owner=owner, **times)
            self._logs[key] = _Log(head)
            return head
        updated_at = now_ms if log.head.top == 0 else log.head.updated_at
        log.head = msgspec.structs.replace(log.head, fence=log.head.fence + 1, owner=owner, updated_at=updated_at)
        return log.head

    async def append(self, append: Append) -> None:
        check_append(append)
        log = self._logs.get(append.key)
        if log is None or (log.head.fence, log.head.top) != (append.fence, append.top):
            raise fenced()
        changes: dict[str, Any] = {"top": append.top + len(append.records)}
        if append.head is not None:
            changes |= {name: getattr(append.head, name) for name in append.head.__struct_fields__}
            changes["updated_at"] = append.at
        log.head = msgspec.structs.replace(log.head, **changes)
        log.records += append.records
        log.commands.update({(each.principal_id, each.command_id): each for each in append.commands})
        for row in append.usage:
            self._usage.setdefault((append.key, row.response_id), row)
        log.snapshot = append.snapshot or log.snapshot

    async def head(self, key: SessionKey) -> Head | None:
        return self._logs[key].head if key in self._logs else None

    async def load(self, key: SessionKey, *, now_ms: UnixMs) -> Loaded | None:
        log = self._logs.get(key)
        if log is None:
            return None
        recent = [each for each in log.commands.values() if each.at > now_ms - COMMANDS_KEPT_MS]
        recent.sort(key=lambda each: (each.at, each.command_id))
        records = tuple(log.records[log.snapshot.offset if log.snapshot else 0 :])
        known = tuple(recent[-COMMANDS_LOADED_MAX:])
        return Loaded(log.head, log.snapshot, records, known, len(recent) <= COMMANDS_LOADED_MAX)

    async def read(self, key: SessionKey, *, after: int, limit: int, bytes_max: int) -> Page | None:
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

    async def find_command(self, key: SessionKey, principal_id: str, command_id: CommandId) -> CommandRecord | None:
        return self._logs[key].commands.get((principal_id, command_id)) if key in self._logs else None

    async def list_heads(
        self, tenant: TenantId, *, user: str | None, limit: int, after: SessionKey | None
    ) -> list[Head]:
        heads = [
            log.head
            for key, log in self._logs.items()
            if key.tenant == tenant and log.head.listed and log.head.deleted_at is None and log.head.top > 0
            if user is None or log.head.user == user
        ]
        if after is not None:
            place = await self.head(after)
            if place is None or after.tenant != tenant or user not in (None, place.user):
                raise unknown_cursor()
            heads = [head for head in heads if _recency(head) > _recency(place)]
        return sorted(heads, key=_recency)[:limit]

    async def open_heads(self, *, limit: int, after: SessionKey) -> list[Head]:
        return [log.head for key, log in sorted(self._logs.items()) if log.head.open and key > after][:limit]

    async def purgeable(self, due: Due, *, limit: int) -> list[SessionKey]:
        return [key for key, log in self._logs.items() if _is_due(due, log.head)][:limit]

    async def purge(
        self, keys: Sequence[SessionKey], due: Due, *, commands_before: UnixMs, at: UnixMs
    ) -> list[SessionKey]:
        purged = [key for key in keys if _is_due(due, self._logs[key].head)]
        for key in purged:
            del self._logs[key]
        for log in self._logs.values():
            log.commands = {name: each for name, each in log.commands.items() if each.at >= commands_before}
        return purged

    async def entries(self, query: UsageQuery, *, after: int, limit: int) -> list[UsageEntry]:
        rows = self._usage.items()
        return [UsageEntry(0, key, row) for (key, _), row in rows if key.tenant == query.tenant][:limit]


def _is_due(due: Due, head: Head) -> bool:
    about = ("user", "top", "listed", "open", "updated_at", "deleted_at")
    return due.reason(**{name: getattr(head, name) for name in about}) is not None


def _recency(head: Head) -> tuple[int, str]:
    return (-head.updated_at, head.key.session)
