"""Encrypts rows of a journal again, with the key that encrypts new ones, if they are stored under an older key or in
the clear.

A sweep goes over a tenant's rows in the order of their keys. Each small transaction stores one page of rows together
with the place that the sweep has reached (`reencryptions`), so it may be stopped at any moment and goes on from there.
A row is changed only if it is still what was read; one that a writer changed meanwhile is under the new key anyway. Old
rows stay readable before, during and after. Several replicas may sweep at once: that costs repeated work, and nothing
else.

A sweep that `seals` ends with the tenant's keys refusing plain rows. That is only for journals to which no process
writes plain rows any more, since one might write them behind the sweep's place. A tenant is swept again when another
key encrypts new rows, or when its keys accept plain rows again. The sweep for a key begins `SETTLE_S` after the key was
made, when every process uses it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import msgspec
import structlog

from persistence.at_rest.codec import SealingCodec
from persistence.at_rest.tenant_keys import REFRESH_S
from persistence.codec import (
    ADDED_TOOLS_ROW,
    HEAD_ROW,
    Codec,
    Row,
    command_row,
    decode_command,
    encode_command,
    file_row,
    memory_row,
    push_row,
    review_row,
    seal_text,
    sealed_key_id,
    snapshot_row,
    unseal_text,
    with_keys,
)
from persistence.sql.script import Query, Script, SqlDatabase
from sessions.metrics import Metrics
from sessions.model.errors import Internal, SessileError
from sessions.model.types import FILES, MEMORIES, PUSH, TOOLS, SessionId, SessionKey, TenantId, UnixMs

log = structlog.get_logger(__name__)

PAGE_ROWS: Final = 200
PAGE_BYTES: Final = 1 << 20
SETTLE_S: Final = 3 * REFRESH_S
REST: Final = 3.0
"""The pause after a page, as a multiple of the time that the page took."""
IDLE_S: Final = 30.0

Values = Sequence[Any]
Changes = dict[str, Any]


class _Table(NamedTuple):
    """A table with encrypted bodies: how its rows are found, and how one of them is encrypted again."""

    name: str
    keys: tuple[str, ...]
    """The columns of an index behind `tenant`, in its order."""
    first: tuple[Any, ...]
    """Values of `keys` that sort before every row."""
    columns: tuple[str, ...]
    size: str
    key_ids: Callable[[Values], set[str]]
    """Returns the ids of the keys that a row's bodies are encrypted with; its argument is the row's `columns`."""
    reseal: Callable[[Codec, TenantId, Values, Values], Changes]
    """Returns the changed columns of a row; it gets the row's `keys` and `columns`. Raises KeyNotLoaded and
    Internal."""


def _body(row_of: Callable[[Values, Values], Row], column: str) -> Callable[[Codec, TenantId, Values, Values], Changes]:
    def reseal(codec: Codec, tenant: TenantId, keys: Values, columns: Values) -> Changes:
        key, row = SessionKey(tenant, SessionId(keys[0])), row_of(keys, columns)
        key_id, stored = codec.encode(key, row, codec.decode(key, row, columns[0], bytes(columns[1])))
        return {"key_id": key_id, column: stored}

    return reseal


def _command(codec: Codec, tenant: TenantId, keys: Values, columns: Values) -> Changes:
    key, row = SessionKey(tenant, SessionId(keys[0])), command_row(keys[1], keys[2])
    plain = decode_command(codec, key, row, bytes(columns[0]), bytes(columns[1]))
    digest, answer = encode_command(codec, key, row, *plain)
    return {"digest": digest, "answer": answer}


def _review(codec: Codec, tenant: TenantId, keys: Values, columns: Values) -> Changes:
    key = SessionKey(tenant, SessionId(columns[3]))
    changes = {}
    for name, stored in zip(("kept", "note", "remark"), columns, strict=False):
        row = review_row(keys[0], name)
        changes[name] = seal_text(codec, key, row, unseal_text(codec, key, row, bytes(stored)))
    return changes


def _memory(codec: Codec, tenant: TenantId, keys: Values, columns: Values) -> Changes:
    key, row = SessionKey(tenant, MEMORIES), memory_row(keys[0], keys[1])
    key_id, stored = codec.encode(key, row, codec.decode(key, row, columns[0], bytes(columns[1])))
    return {"key_id": key_id, "body": stored}


def _push(codec: Codec, tenant: TenantId, keys: Values, columns: Values) -> Changes:
    key, row = SessionKey(tenant, PUSH), push_row(keys[0], keys[1])
    key_id, stored = codec.encode(key, row, codec.decode(key, row, columns[0], bytes(columns[1])))
    return {"key_id": key_id, "body": stored}


def _file(codec: Codec, tenant: TenantId, keys: Values, columns: Values) -> Changes:
    """Encrypts the row of a file again. The file's bytes stay as they are, because their data key is in the row."""
    key, row = SessionKey(tenant, FILES), file_row(columns[2], keys[0])
    key_id, stored = codec.encode(key, row, codec.decode(key, row, columns[0], bytes(columns[1])))
    return {"key_id": key_id, "body": stored}


def _added_tools(codec: Codec, tenant: TenantId, keys: Values, columns: Values) -> Changes:
    key = SessionKey(tenant, TOOLS)
    plain = codec.decode(key, ADDED_TOOLS_ROW, columns[0], bytes(columns[1]))
    key_id, stored = codec.encode(key, ADDED_TOOLS_ROW, plain)
    return {"key_id": key_id, "body": stored}


def _own_column(columns: Values) -> set[str]:
    return {columns[0]}


def _own_column_of_body(columns: Values) -> set[str]:
    """Returns the key's id of a row whose body may be empty, which is encrypted with none."""
    return {columns[0]} if columns[1] else set()


TABLES: Final = (
    _Table(
        "heads",
        ("session",),
        ("",),
        ("key_id", "about"),
        "length(about)",
        _own_column,
        _body(lambda k, c: HEAD_ROW, "about"),
    ),
    _Table(
        "events",
        ("session", '"offset"'),
        ("", 0),
        ("key_id", "body"),
        "length(body)",
        _own_column,
        _body(lambda k, c: int(k[1]), "body"),
    ),
    _Table(
        "snapshots",
        ("session",),
        ("",),
        ("key_id", "body", '"offset"'),
        "length(body)",
        _own_column,
        _body(lambda k, c: snapshot_row(c[2]), "body"),
    ),
    _Table(
        "commands",
        ("session", "principal", "command"),
        ("", "", ""),
        ("digest", "answer"),
        "length(answer)",
        lambda c: {sealed_key_id(bytes(c[1]))},
        _command,
    ),
    _Table(
        "reviews",
        ("id",),
        ("",),
        ("kept", "note", "remark", "session"),
        "length(kept) + length(note) + length(remark)",
        lambda c: {sealed_key_id(bytes(each)) for each in c[:3] if each},
        _review,
    ),
    _Table("memories", ("end_user", "id"), ("", ""), ("key_id", "body"), "length(body)", _own_column, _memory),
    _Table("push_subscriptions", ("end_user", "id"), ("", ""), ("key_id", "body"), "length(body)", _own_column, _push),
    _Table("files", ("id",), ("",), ("key_id", "body", "end_user"), "length(body)", _own_column, _file),
    _Table("added_tools", ("tenant",), ("",), ("key_id", "body"), "length(body)", _own_column_of_body, _added_tools),
)

_NEXT_TENANT: Final = "SELECT tenant FROM heads WHERE tenant > $1 ORDER BY tenant LIMIT 1"
_PLACE: Final = "SELECT key_id, place, changed, plain, done_at FROM reencryptions WHERE tenant = $1"
_ALL: Final = (
    "SELECT tenant, key_id, place, changed, plain, done_at FROM reencryptions WHERE tenant <> '' ORDER BY tenant"
)
_KEEP: Final = (
    "INSERT INTO reencryptions (tenant, key_id, place, changed, plain, done_at) VALUES ($1, $2, $3, $4, $5, $6)"
    " ON CONFLICT (tenant) DO UPDATE SET key_id = excluded.key_id, place = excluded.place,"
    " changed = excluded.changed, plain = excluded.plain, done_at = excluded.done_at"
)


class SweepPlace(msgspec.Struct, frozen=True):
    """How far the sweep of one tenant has come with one key."""

    tenant: str
    key_id: str
    table: int = 0
    after: tuple[Any, ...] = ()
    changed: int = 0
    plain: int = 0
    """How many rows were plain; 0 again once the database's free space holds no remains of them."""
    done_at: UnixMs | None = None


class Reencryption:
    """The sweep of one process. `run` ends only by cancellation; `stop` stops the sweeps of all processes."""

    def __init__(
        self,
        database: SqlDatabase,
        codec: SealingCodec,
        *,
        now_ms: Callable[[], UnixMs],
        metrics: Metrics | None = None,
        settle_s: float = SETTLE_S,
        seals: bool = False,
    ) -> None:
        metrics = metrics or Metrics()
        self._database = database
        self._codec = codec
        self._now_ms = now_ms
        self._settle_ms = settle_s * 1000
        self._seals = seals
        self._done: dict[TenantId, str] = {}  # the key that all of a tenant's rows are under
        self._pending = 0
        self._rows = metrics.counter("journal_reencrypted_rows", "Rows of the journal that were encrypted again.")
        self._unreadable = metrics.counter("journal_unreadable_rows", "Rows that no key of their tenant opens.")
        metrics.gauge(
            "journal_reencryption_pending",
            "Tenants with rows under an older key, or in the clear, as far as is known.",
            (),
            lambda: {(): self._pending},
        )

    async def run(self) -> None:
        while True:
            try:
                await self.sweep()
            except SessileError as error:
                log.warning("reencryption_failed", error=str(error))
            await asyncio.sleep(IDLE_S)

    async def stop(self, stopped: bool) -> None:
        """Stops the sweeps of every process on this journal, or lets them go on (`stopped` False)."""
        await self._keep(SweepPlace("", "stopped" if stopped else ""))

    async def stopped(self) -> bool:
        rows = await self._database.rows(_PLACE, ("",))
        return bool(rows) and next(iter(rows[0])) == "stopped"

    async def sweep(self) -> bool:
        """Sweeps every tenant once. Returns whether every row is now encrypted with its tenant's newest key."""
        pending = [tenant for tenant in await self._tenants() if not await self._is_done(tenant)]
        self._pending = len(pending)
        loop = asyncio.get_running_loop()
        for tenant in pending:
            while True:
                if await self.stopped():
                    return False
                began = loop.time()
                finished = await self.step(tenant)
                if finished is None:
                    break
                if finished:
                    self._pending -= 1
                    break
                await asyncio.sleep(REST * (loop.time() - began))
        return self._pending == 0

    async def step(self, tenant: TenantId) -> bool | None:
        """Sweeps one page of a tenant's rows. Returns True once all are done, False if there is more to do, None if the
        tenant's key is too new for a sweep to begin."""
        key = await self._codec.keys.writing(tenant)
        if self._now_ms() - key.created_at < self._settle_ms:
            return None
        place = await self._place(tenant)
        if place is None or place.key_id != key.id or (place.done_at is not None and not self._is_sealed(tenant)):
            place = SweepPlace(tenant, key.id, plain=0 if place is None else place.plain)
        if place.table == len(TABLES):
            self._done[tenant] = key.id
            return True
        table = TABLES[place.table]
        rows = await self._page(table, tenant, place.after or table.first)
        if not rows:
            after = msgspec.structs.replace(place, table=place.table + 1, after=())
            if after.table == len(TABLES):
                after = msgspec.structs.replace(after, done_at=self._now_ms())
                log.info("reencryption_finished", tenant=tenant, key=key.id, rows=place.changed)
            await self._keep(after)
            if self._seals and after.done_at is not None:
                await self._codec.keys.refuse_plain(tenant)
            return False
        width = len(table.keys)
        updates: list[Query] = []
        plain = 0
        for row in rows:
            keys, columns = row[:width], row[width:]
            key_ids = table.key_ids(columns)
            if key_ids <= {key.id}:
                continue
            query = await self._update(table, tenant, keys, columns)
            if query is not None:
                updates.append(query)
                plain += "" in key_ids
        last = tuple(rows[-1][:width])
        await self._database.run(lambda: self._write(place, last, plain, updates))
        self._rows.add(by=len(updates))
        return False

    async def status(self) -> list[SweepPlace]:
        return [_place_of(tuple(row)) for row in await self._database.rows(_ALL)]

    async def _update(self, table: _Table, tenant: TenantId, keys: Values, columns: Values) -> Query | None:
        try:
            changes = await with_keys(self._codec, lambda: table.reseal(self._codec, tenant, keys, columns))
        except Internal as error:
            self._unreadable.add()
            log.error("reencryption_row_unreadable", tenant=tenant, table=table.name, error=str(error))
            return None
        values: list[Any] = []

        def put(value: Any) -> str:
            values.append(value)
            return f"${len(values)}"

        assigned = ", ".join(f"{name} = {put(value)}" for name, value in changes.items())
        where = [f"tenant = {put(tenant)}"]
        where += [f"{name} = {put(value)}" for name, value in zip(table.keys, keys, strict=True)]
        where += [
            f"{name} = {put(value)}" for name, value in zip(table.columns, columns, strict=True) if name in changes
        ]
        return Query(f"UPDATE {table.name} SET {assigned} WHERE {' AND '.join(where)} RETURNING 1", values)

    def _write(self, place: SweepPlace, after: tuple[Any, ...], plain: int, updates: Sequence[Query]) -> Script[None]:
        changed = 0
        for update in updates:
            changed += len((yield update))
        moved = msgspec.structs.replace(place, after=after, changed=place.changed + changed, plain=place.plain + plain)
        yield Query(_KEEP, _row_of(moved))

    async def _page(self, table: _Table, tenant: TenantId, after: Values) -> list[tuple[Any, ...]]:
        """Returns the next rows (their keys, then their columns), limited in number and in bytes."""
        names = ", ".join(table.keys)
        width = len(table.keys)
        behind = f"({names}) > ({', '.join(f'${n}' for n in range(2, 2 + width))})"
        sizes = await self._database.rows(
            f"SELECT {names}, {table.size} FROM {table.name} WHERE tenant = $1 AND {behind}"
            f" ORDER BY {names} LIMIT {PAGE_ROWS}",
            (tenant, *after),
        )
        if not sizes:
            return []
        count = total = 0
        for row in sizes:
            total += tuple(row)[-1]
            count += 1
            if total >= PAGE_BYTES:
                break
        rows = await self._database.rows(
            f"SELECT {names}, {', '.join(table.columns)} FROM {table.name} WHERE tenant = $1 AND {behind}"
            f" ORDER BY {names} LIMIT {count}",
            (tenant, *after),
        )
        return [tuple(row) for row in rows]

    async def _tenants(self) -> list[TenantId]:
        found: list[TenantId] = []
        while rows := await self._database.rows(_NEXT_TENANT, (found[-1] if found else "",)):
            found.append(TenantId(next(iter(rows[0]))))
        return found

    async def _is_done(self, tenant: TenantId) -> bool:
        key = await self._codec.keys.writing(tenant)
        if not self._is_sealed(tenant):
            return False
        if self._done.get(tenant) == key.id:
            return True
        place = await self._place(tenant)
        if place is not None and place.key_id == key.id and place.done_at is not None:
            self._done[tenant] = key.id
        return self._done.get(tenant) == key.id

    def _is_sealed(self, tenant: TenantId) -> bool:
        """Returns whether the tenant's keys, which must be in memory, refuse plain rows, or this sweep does not make
        them do so."""
        ring = self._codec.keys.ring(tenant)
        return not self._seals or (ring is not None and ring.refuses_plain)

    async def _place(self, tenant: TenantId) -> SweepPlace | None:
        for row in await self._database.rows(_PLACE, (tenant,)):
            return _place_of((tenant, *tuple(row)))
        return None

    async def _keep(self, place: SweepPlace) -> None:
        def script() -> Script[None]:
            yield Query(_KEEP, _row_of(place))

        await self._database.run(script)


def _place_of(row: Values) -> SweepPlace:
    tenant, key_id, text, changed, plain, done_at = row
    table, after = msgspec.json.decode(text, type=tuple[int, tuple[Any, ...]])
    return SweepPlace(tenant, key_id, table, after, changed, plain, done_at)


def _row_of(place: SweepPlace) -> tuple[Any, ...]:
    text = msgspec.json.encode((place.table, place.after)).decode()
    return (place.tenant, place.key_id, text, place.changed, place.plain, place.done_at)
