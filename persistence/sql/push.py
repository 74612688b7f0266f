"""Push in SQLite and PostgreSQL. The port is `sessions.model.push.PushStore`. The journal writes rows of the outbox, in
the append that they belong to, and they are deleted with their session when it is purged.

A claim moves a row's due time forward, so that other relays do not find it until then; if the relay dies the row
becomes due again by itself. A row is settled by its notice's offset, so that a newer notice, which came meanwhile,
stays.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final

import msgspec

from persistence.codec import Codec, KeyDestroyed, push_row, with_keys
from persistence.sql.script import Lock, Query, Script, SqlDatabase, one_query
from persistence.validation import check_key, check_text
from sessions.model.push import (
    SUBSCRIPTIONS_MAX,
    PushDelivery,
    PushId,
    PushNotice,
    PushSubscription,
    PushTarget,
    QuietHours,
    address_hash,
    too_many_subscriptions,
)
from sessions.model.types import PUSH, ResponseId, SessionId, SessionKey, TenantId, UnixMs

_ALL: Final = "id, key_id, body, created_at"
_OF_USER: Final = f"SELECT {_ALL} FROM push_subscriptions WHERE tenant = $1 AND end_user = $2 ORDER BY created_at, id"
_ONE: Final = f"SELECT {_ALL} FROM push_subscriptions WHERE tenant = $1 AND end_user = $2 AND id = $3"
_COUNT: Final = "SELECT count(*) FROM push_subscriptions WHERE tenant = $1 AND end_user = $2 AND id <> $3"
_ANOTHERS: Final = (
    "DELETE FROM push_subscriptions WHERE address = $1 AND NOT (tenant = $2 AND end_user = $3)"
    " RETURNING tenant, end_user, id"
)
_PUT: Final = (
    "INSERT INTO push_subscriptions (tenant, end_user, id, address, key_id, body, created_at)"
    " VALUES ($1, $2, $3, $4, $5, $6, $7)"
    " ON CONFLICT (tenant, end_user, id) DO UPDATE SET key_id = excluded.key_id, body = excluded.body"
)
_REMOVE: Final = "DELETE FROM push_subscriptions WHERE tenant = $1 AND end_user = $2 AND id = $3 RETURNING id"
_EMPTY: Final = "DELETE FROM push_outbox WHERE tenant = $1 AND end_user = $2 AND subscription = $3"
_DUE: Final = "SELECT 1 FROM push_outbox WHERE due_at <= $1 LIMIT 1"
# The time is looked at once more on the row itself: another relay may have had it while this one waited for the row.
_CLAIM: Final = (
    "UPDATE push_outbox SET due_at = $2, attempts = attempts + 1 WHERE due_at <= $1"
    " AND (tenant, session, subscription) IN (SELECT tenant, session, subscription FROM push_outbox"
    " WHERE due_at <= $1 ORDER BY due_at LIMIT $3)"
    " RETURNING tenant, session, subscription, end_user, cause, response, log_offset, at, attempts"
)
_ROW: Final = "tenant = $1 AND session = $2 AND subscription = $3 AND log_offset = $4"
_SETTLE: Final = f"DELETE FROM push_outbox WHERE {_ROW}"
_POSTPONE: Final = f"UPDATE push_outbox SET due_at = $5 WHERE {_ROW}"
_WAITING: Final = "SELECT 1 FROM push_outbox WHERE tenant = $1 AND session = $2 AND log_offset <= $3 LIMIT 1"
_READ: Final = "DELETE FROM push_outbox WHERE tenant = $1 AND session = $2 AND log_offset <= $3"
_STANDING: Final = "SELECT count(*) FROM heads WHERE tenant = $1 AND session = $2 AND deleted_at IS NULL"


class PushBody(msgspec.Struct, frozen=True):
    """The part of a push subscription that is stored encrypted."""

    target: PushTarget
    label: str
    quiet: QuietHours | None


_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder(PushBody).decode


class SqlPush:
    def __init__(self, database: SqlDatabase) -> None:
        self._database = database

    async def subscriptions(self, tenant: TenantId, user: str) -> list[PushSubscription]:
        check_text(tenant, user)
        rows = await self._database.rows(_OF_USER, (tenant, user))
        return [device for row in rows if (device := await self._subscription(tenant, user, row)) is not None]

    async def subscribe(self, subscription: PushSubscription) -> None:
        tenant, user, name = subscription.tenant, subscription.user, subscription.id
        check_text(tenant, user, name)
        codec, body = self._database.codec, PushBody(subscription.target, subscription.label, subscription.quiet)
        key, row = SessionKey(tenant, PUSH), push_row(user, name)
        key_id, sealed = await with_keys(codec, lambda: codec.encode(key, row, _encode(body)))
        address = address_hash(subscription.target)

        def script() -> Script[None]:
            yield Lock("push_subscriptions")
            ((count,),) = yield Query(_COUNT, (tenant, user, name))
            if count >= SUBSCRIPTIONS_MAX:
                raise too_many_subscriptions()
            for ended in (yield Query(_ANOTHERS, (address, tenant, user))):
                yield Query(_EMPTY, tuple(ended))
            yield Query(_PUT, (tenant, user, name, address, key_id, sealed, subscription.created_at))

        await self._database.run(script)

    async def unsubscribe(self, tenant: TenantId, user: str, push_id: PushId) -> bool:
        check_text(tenant, user, push_id)
        whose = (tenant, user, push_id)

        def script() -> Script[bool]:
            removed = yield Query(_REMOVE, whose)
            yield Query(_EMPTY, whose)
            return bool(removed)

        return await self._database.run(script)

    async def claim(self, now: UnixMs, *, until: UnixMs, limit: int) -> list[PushDelivery]:
        if not await self._database.rows(_DUE, (now,)):  # mostly there is nothing: no commit for that
            return []
        rows = await self._database.run(lambda: one_query(_CLAIM, (now, until, limit)))
        return [await self._delivery(*row) for row in rows]

    async def settle(self, delivery: PushDelivery) -> None:
        await self._database.run(lambda: one_query(_SETTLE, _named(delivery)))

    async def postpone(self, delivery: PushDelivery, until: UnixMs) -> None:
        await self._database.run(lambda: one_query(_POSTPONE, (*_named(delivery), until)))

    async def read_to(self, key: SessionKey, offset: int) -> None:
        check_key(key)
        if await self._database.rows(_WAITING, (*key, offset)):
            await self._database.run(lambda: one_query(_READ, (*key, offset)))

    async def _delivery(
        self, tenant: Any, session: Any, name: Any, user: Any, cause: Any, response: Any, offset: Any, *more: Any
    ) -> PushDelivery:
        at, attempts = more
        key = SessionKey(TenantId(tenant), SessionId(session))
        rows = await self._database.rows(_ONE, (tenant, user, name))
        ((standing,),) = await self._database.rows(_STANDING, key)
        subscription = await self._subscription(key.tenant, user, rows[0]) if rows and standing else None
        return PushDelivery(
            key=key,
            subscription_id=PushId(name),
            subscription=subscription,
            notice=PushNotice(user=user, cause=cause, response_id=ResponseId(response), offset=offset),
            at=UnixMs(at),
            attempts=attempts,
        )

    async def _subscription(self, tenant: TenantId, user: str, row: Any) -> PushSubscription | None:
        try:
            codec = self._database.codec
            return await with_keys(codec, partial(_opened, codec, tenant, user, row))
        except KeyDestroyed:  # lost on purpose: the device subscribes anew
            return None
        except msgspec.ValidationError:  # of a kind that a later release knows
            return None


def _opened(codec: Codec, tenant: TenantId, user: str, row: Any) -> PushSubscription:
    name, key_id, sealed, created_at = tuple(row)
    body = _decode(codec.decode(SessionKey(tenant, PUSH), push_row(user, name), key_id, bytes(sealed)))
    about = {"target": body.target, "label": body.label, "quiet": body.quiet, "created_at": created_at}
    return PushSubscription(id=name, tenant=tenant, user=user, **about)


def _named(delivery: PushDelivery) -> tuple[Any, ...]:
    return (*delivery.key, delivery.subscription_id, delivery.notice.offset)
