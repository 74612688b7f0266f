"""End users in memory, and their erasures. The port is `sessions.governance.end_user_data.EndUserStore`."""

from __future__ import annotations

import msgspec

from persistence.memory.database import MemoryDatabase
from persistence.memory.files import MemoryFiles
from persistence.validation import FIRST_KEY, names_of_user, released_by
from sessions.governance.end_user_data import Erasure
from sessions.model.audit import Audited
from sessions.model.journal_types import Head
from sessions.model.memories import MEMORIES_MAX, MemoryId, UserMemory, too_many_memories
from sessions.model.types import SessionKey, TenantId, UnixMs


class MemoryEndUsers:
    def __init__(self, database: MemoryDatabase) -> None:
        self._database = database

    async def heads(self, tenant: TenantId, user: str, *, after: SessionKey | None, limit: int) -> list[Head]:
        behind = after or FIRST_KEY
        stored = [key for key in self._database.keys() if key.tenant == tenant]  # noqa: SIM118 - no mapping
        heads = [self._database.head(key) for key in sorted(stored) if key.session > behind.session]
        return [head for head in heads if head is not None and head.user == user][:limit]

    async def request_erasure(self, erasure: Erasure, audited: Audited) -> Erasure:
        for pending in self._database.erasures:
            if pending.done_at is None and (pending.tenant, pending.user) == (erasure.tenant, erasure.user):
                return pending
        self._database.erasures.append(erasure)
        await self._forget_memories(erasure)
        self._database.chain([self._database.sealer.entry(erasure.tenant, audited)])
        return erasure

    async def find(self, tenant: TenantId, user: str) -> Erasure | None:
        names = names_of_user(self._database.sealer, tenant, user)
        mine = [erasure for erasure in self._database.erasures if erasure.tenant == tenant and erasure.user in names]
        return max(mine, key=lambda erasure: erasure.asked_at, default=None)

    async def pending(self, *, limit: int) -> list[Erasure]:
        return [erasure for erasure in self._database.erasures if erasure.done_at is None][:limit]

    async def released(self, erasure: Erasure, replica: str) -> Erasure:
        stored = erasure
        for place, pending in enumerate(self._database.erasures):
            if pending.done_at is None and (pending.tenant, pending.user) == (erasure.tenant, erasure.user):
                stored = self._database.erasures[place] = released_by(pending, replica)
        return stored

    async def memories(self, tenant: TenantId, user: str) -> list[UserMemory]:
        memories = self._database.memories.values()
        theirs = [memory for memory in memories if (memory.tenant, memory.user) == (tenant, user)]
        return sorted(theirs, key=lambda memory: (memory.created_at, memory.id))

    async def add_memory(self, memory: UserMemory) -> None:
        if len(await self.memories(memory.tenant, memory.user)) >= MEMORIES_MAX:
            raise too_many_memories()
        self._database.memories[memory.id] = memory

    async def change_memory(
        self, tenant: TenantId, user: str, memory_id: MemoryId, *, text: str, at: UnixMs
    ) -> UserMemory | None:
        memory = self._database.memories.get(memory_id)
        if memory is None or (memory.tenant, memory.user) != (tenant, user):
            return None
        changed = self._database.memories[memory_id] = msgspec.structs.replace(memory, text=text, updated_at=at)
        return changed

    async def remove_memory(self, tenant: TenantId, user: str, memory_id: MemoryId) -> bool:
        memory = self._database.memories.get(memory_id)
        if memory is None or (memory.tenant, memory.user) != (tenant, user):
            return False
        del self._database.memories[memory_id]
        return True

    async def _forget_memories(self, erasure: Erasure) -> None:
        database, whose = self._database, (erasure.tenant, erasure.user)
        for push in [push for push in database.subscriptions.values() if (push.tenant, push.user) == whose]:
            if push.created_at <= erasure.asked_at:
                del database.subscriptions[(*whose, push.id)]
        rows = database.push_outbox.items()
        database.push_outbox = {name: row for name, row in rows if (name[0].tenant, row[1].notice.user) != whose}
        MemoryFiles(database).forget(*whose, erasure.asked_at)
        for memory in await self.memories(erasure.tenant, erasure.user):
            if memory.created_at <= erasure.asked_at:
                del self._database.memories[memory.id]

    async def finish(self, erasure: Erasure, audited: Audited) -> None:
        database, replace = self._database, msgspec.structs.replace
        name = database.sealer.pseudonym(erasure.tenant, erasure.user)
        for place, pending in enumerate(database.erasures):
            same = (pending.tenant, pending.user, pending.asked_at) == (erasure.tenant, erasure.user, erasure.asked_at)
            if pending.done_at is not None or not same:
                continue
            database.erasures[place] = replace(pending, user=name, done_at=audited.at)
            await self._forget_memories(erasure)
            for key, row in list(database.usage_rows.items()):
                who = row.principal
                if key[0].tenant == erasure.tenant and who.user == erasure.user:
                    key_id = "" if who.key_id == who.user else who.key_id
                    database.usage_rows[key] = replace(row, principal=replace(who, user=None, key_id=key_id))
            version = max((each.version for each in database.api_keys.values()), default=0)
            for each in sorted(database.api_keys.values(), key=lambda each: each.id):
                if each.tenant == erasure.tenant and each.user == erasure.user:
                    version += 1
                    ended = audited.at if each.revoked_at is None else each.revoked_at
                    database.api_keys[each.id] = replace(each, user=name, name="", revoked_at=ended, version=version)
            database.chain([database.sealer.entry(erasure.tenant, audited)])
