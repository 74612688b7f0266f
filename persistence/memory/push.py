"""Push in memory. The port is `sessions.model.push.PushStore`; the journal writes the outbox (`note_push`)."""

from __future__ import annotations

import msgspec

from persistence.memory.database import MemoryDatabase
from sessions.model.push import (
    SUBSCRIPTIONS_MAX,
    PushDelivery,
    PushId,
    PushSubscription,
    address_hash,
    too_many_subscriptions,
)
from sessions.model.types import SessionKey, TenantId, UnixMs


class MemoryPush:
    def __init__(self, database: MemoryDatabase) -> None:
        self._database = database

    async def subscriptions(self, tenant: TenantId, user: str) -> list[PushSubscription]:
        theirs = [each for each in self._database.subscriptions.values() if (each.tenant, each.user) == (tenant, user)]
        return sorted(theirs, key=lambda each: (each.created_at, each.id))

    async def subscribe(self, subscription: PushSubscription) -> None:
        whose = (subscription.tenant, subscription.user)
        others = [other for other in await self.subscriptions(*whose) if other.id != subscription.id]
        if len(others) >= SUBSCRIPTIONS_MAX:
            raise too_many_subscriptions()
        address = address_hash(subscription.target)
        for each in list(self._database.subscriptions.values()):
            if address_hash(each.target) == address and (each.tenant, each.user) != whose:
                await self.unsubscribe(each.tenant, each.user, each.id)
        known = self._database.subscriptions.get((*whose, subscription.id))
        created_at = subscription.created_at if known is None else known.created_at
        stored = msgspec.structs.replace(subscription, created_at=created_at)
        self._database.subscriptions[(*whose, subscription.id)] = stored

    async def unsubscribe(self, tenant: TenantId, user: str, push_id: PushId) -> bool:
        outbox = self._database.push_outbox
        for key, (_, row) in list(outbox.items()):
            if (row.key.tenant, row.notice.user, row.subscription_id) == (tenant, user, push_id):
                del outbox[key]
        return self._database.subscriptions.pop((tenant, user, push_id), None) is not None

    async def claim(self, now: UnixMs, *, until: UnixMs, limit: int) -> list[PushDelivery]:
        outbox = self._database.push_outbox
        due = sorted((due_at, name) for name, (due_at, _) in outbox.items() if due_at <= now)[:limit]
        claimed = []
        for _, name in due:
            row = outbox[name][1]
            row = msgspec.structs.replace(row, attempts=row.attempts + 1)
            outbox[name] = (until, row)
            head = self._database.head(row.key)
            stands = head is not None and head.deleted_at is None
            found = self._database.subscriptions.get((row.key.tenant, row.notice.user, row.subscription_id))
            claimed.append(msgspec.structs.replace(row, subscription=found if stands else None))
        return claimed

    async def settle(self, delivery: PushDelivery) -> None:
        if self._is_there(delivery):
            del self._database.push_outbox[(delivery.key, delivery.subscription_id)]

    async def postpone(self, delivery: PushDelivery, until: UnixMs) -> None:
        if self._is_there(delivery):
            name = (delivery.key, delivery.subscription_id)
            self._database.push_outbox[name] = (until, self._database.push_outbox[name][1])

    async def read_to(self, key: SessionKey, offset: int) -> None:
        outbox = self._database.push_outbox
        for name, (_, row) in list(outbox.items()):
            if row.key == key and row.notice.offset <= offset:
                del outbox[name]

    def _is_there(self, delivery: PushDelivery) -> bool:
        found = self._database.push_outbox.get((delivery.key, delivery.subscription_id))
        return found is not None and found[1].notice.offset == delivery.notice.offset
