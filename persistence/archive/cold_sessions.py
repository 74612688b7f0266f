"""Moves the log of a session that nobody has used for long into an object, and back when somebody does.

The object has the session's events and its snapshot as they are stored, sealed as a whole under a key of its own, which
stands in the stub (`archived`), encrypted like a body of the session: without the stub, and without the tenant's keys,
the object is noise. The head stays, with all that lists, limits and purges need, and so do usage and the index of
responses.

The stub is written before the first row is deleted, and rows are put back before the stub says so: whatever ends the
process, each row is in one of the two places or in both. A read finds that rows are missing and calls `recall`; an
actor that still has the session in memory appends behind the top meanwhile and need not know.

Of a session one thing happens at a time (`_locks`). An object whose session is purged loses its key at once; one in
whose place another has come stays as long as a backup may lead back to it.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, NamedTuple, Protocol
from uuid import uuid4
from weakref import WeakValueDictionary

import msgspec
import structlog
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from persistence.codec import Codec, archived_row, with_keys
from persistence.group_commit import Write
from persistence.master_key import KEY_BYTES
from persistence.objects.object_store import ObjectStore
from persistence.write_batch import JobWrite
from sessions.model.errors import Internal, Unavailable
from sessions.model.types import SessionKey, UnixMs

log = structlog.get_logger(__name__)

MAGIC: Final = b"SLARC1\n"
NONCE_BYTES: Final = 12
STEP_ROWS: Final = 2_000
FOLDER: Final = "archive"

_EVENTS: Final = 'SELECT "offset", key_id, body FROM events WHERE tenant = ?1 AND session = ?2 ORDER BY "offset"'
_SNAPSHOT: Final = 'SELECT "offset", key_id, body FROM snapshots WHERE tenant = ?1 AND session = ?2'
_STUB: Final = (
    "SELECT object, top, key_id, sealed FROM archived"
    " WHERE tenant = ?1 AND session = ?2 AND recalled_at IS NULL AND replaced_at IS NULL AND length(sealed) > 0"
)
_LAST: Final = (
    "SELECT object, top FROM archived WHERE tenant = ?1 AND session = ?2 AND replaced_at IS NULL AND length(sealed) > 0"
)
_REPLACED: Final = "UPDATE archived SET replaced_at = ?3 WHERE tenant = ?1 AND session = ?2 AND replaced_at IS NULL"
_KEEP: Final = (
    "INSERT INTO archived (tenant, session, object, top, size, key_id, sealed, archived_at)"
    " VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)"
)
_AGAIN: Final = (
    "UPDATE archived SET recalled_at = NULL, archived_at = ?4 WHERE tenant = ?1 AND session = ?2 AND object = ?3"
)
_RECALLED: Final = "UPDATE archived SET recalled_at = ?3 WHERE tenant = ?1 AND session = ?2 AND object = ?4"
_LIVES: Final = "SELECT 1 FROM heads WHERE tenant = ?1 AND session = ?2"
_LEFT: Final = """
SELECT tenant, session, object FROM archived a WHERE length(sealed) = 0 OR replaced_at < ?1 OR NOT EXISTS
    (SELECT 1 FROM heads h WHERE h.tenant = a.tenant AND h.session = a.session) LIMIT 100
"""
_COLD: Final = "SELECT top FROM heads WHERE tenant = ?1 AND session = ?2 AND open = 0 AND deleted_at IS NULL"
_DELETE_EVENTS: Final = """
DELETE FROM events WHERE tenant = ?1 AND session = ?2 AND "offset" IN (
    SELECT "offset" FROM events WHERE tenant = ?1 AND session = ?2 AND "offset" <= ?3 ORDER BY "offset" LIMIT ?4)
"""
_PUT_EVENT: Final = 'INSERT OR IGNORE INTO events (tenant, session, "offset", key_id, body) VALUES (?, ?, ?, ?, ?)'
_PUT_SNAPSHOT: Final = (
    'INSERT OR IGNORE INTO snapshots (tenant, session, "offset", key_id, body) VALUES (?, ?, ?, ?, ?)'
)

Stored = tuple[int, str, bytes]


class _Content(msgspec.Struct, frozen=True, array_like=True):
    tenant: str
    session: str
    events: list[Stored]
    snapshot: Stored | None


class _Stub(NamedTuple):
    object: str
    top: int
    key_id: str
    sealed: bytes


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Content).decode


class ArchiveDatabase(Protocol):
    """What it needs of `SqliteDatabase`."""

    @property
    def codec(self) -> Codec: ...

    async def fetch(self, statement: str, *values: Any) -> list[Any]: ...

    def submit(self, write: Write) -> Awaitable[Any]: ...


class ColdSessions:
    """Every call raises Unavailable where the object store is away."""

    def __init__(self, database: ArchiveDatabase, objects: ObjectStore | None, *, now_ms: Callable[[], UnixMs]) -> None:
        """`objects` None: nothing is archived, and what was is out of reach."""
        self._database = database
        self._objects = objects
        self._now_ms = now_ms
        self._locks: WeakValueDictionary[SessionKey, asyncio.Lock] = WeakValueDictionary()
        self.num_recalled = 0

    async def archive(self, key: SessionKey) -> int:
        """Moves a session away; how many rows. 0: it is in use after all, or has nothing here."""
        async with self._lock(key):
            return await self._archive(key)

    async def recall(self, key: SessionKey) -> bool:
        """Brings a session back. False: it was not archived. True for those who waited for another call's, too."""
        before = self.num_recalled
        lock = self._lock(key)
        waits = lock.locked()
        async with lock:
            return await self._recall(key) or (waits and self.num_recalled > before)

    async def _archive(self, key: SessionKey) -> int:
        assert self._objects is not None
        rows = await self._database.fetch(_EVENTS, *key)
        if not rows or [offset for offset, _, _ in rows] != list(range(1, len(rows) + 1)):
            return 0
        top, now = len(rows), self._now_ms()
        last = await self._database.fetch(_LAST, *key)
        if last and last[0][1] == top:  # brought back for a reader alone: the object is still good
            keep: list[tuple[str, tuple[Any, ...]]] = [(_AGAIN, (*key, last[0][0], now))]
        else:
            keep = [(_REPLACED, (*key, now)), (_KEEP, await self._store(key, rows, now))]

        def step(connection: Any) -> bool:
            found = connection.execute(_COLD, tuple(key)).fetchall()
            if [row[0] for row in found] != [top]:
                return False
            for statement, values in keep:
                connection.execute(statement, values)
            connection.execute("DELETE FROM snapshots WHERE tenant = ?1 AND session = ?2", tuple(key))
            return True

        if not await self._database.submit(JobWrite(key, step)):
            return 0
        while await self._database.submit(JobWrite(key, lambda connection: _delete(connection, key, top))) == STEP_ROWS:
            pass
        return top

    async def sweep(self, replaced_before: UnixMs) -> int:
        """Deletes objects of sessions that are purged, and those that were replaced before a time; how many."""
        if self._objects is None:
            return 0
        left = await self._database.fetch(_LEFT, replaced_before)
        for tenant, session, name in left:
            await self._objects.delete([name])
            place = (tenant, session, name)
            await self._database.submit(JobWrite(SessionKey(tenant, session), _forgotten(place)))
        return len(left)

    async def _store(self, key: SessionKey, rows: list[Any], now: UnixMs) -> tuple[Any, ...]:
        """Puts an object, reads it back, and returns the row of its stub."""
        assert self._objects is not None
        snapshot = await self._database.fetch(_SNAPSHOT, *key)
        events = [(offset, key_id, bytes(body)) for offset, key_id, body in rows]
        content = _Content(key.tenant, key.session, events, tuple(snapshot[0]) if snapshot else None)
        name, secret = f"{FOLDER}/{uuid4().hex}", os.urandom(KEY_BYTES)
        data = await asyncio.to_thread(_seal, content, name, secret)
        await self._objects.put(name, data)
        if await self._objects.get(name) != data:
            raise Unavailable("archive_differs", "The object store does not give back what was put into it.")
        codec = self._database.codec
        key_id, sealed = await with_keys(codec, lambda: codec.encode(key, archived_row(name), secret))
        return (*key, name, len(rows), len(data), key_id, sealed, now)

    async def _recall(self, key: SessionKey) -> bool:
        rows = await self._database.fetch(_STUB, *key)
        if not rows:
            return False
        stub = _Stub(*rows[0])
        if self._objects is None:
            raise Unavailable(
                "archive_missing",
                "This session is archived, and the server was started without --archive.",
                retryable=False,
            )
        codec = self._database.codec
        secret = await with_keys(
            codec, lambda: codec.decode(key, archived_row(stub.object), stub.key_id, bytes(stub.sealed))
        )
        data = await self._objects.get(stub.object)
        if data is None:
            raise Internal("archive_lost", "The archived log of this session is not in the object store.")
        content = await asyncio.to_thread(_open, data, stub.object, secret)
        if (content.tenant, content.session) != tuple(key) or len(content.events) != stub.top:
            raise Internal("archive_damaged", "The archived log of this session is another one's.")
        for start in range(0, stub.top, STEP_ROWS):
            values = [(*key, *event) for event in content.events[start : start + STEP_ROWS]]
            await self._database.submit(JobWrite(key, _putting(key, values)))
        snapshot = [(*key, *content.snapshot)] if content.snapshot is not None else []
        recalled = (*key, self._now_ms(), stub.object)
        await self._database.submit(JobWrite(key, lambda connection: _finish(connection, recalled, snapshot)))
        self.num_recalled += 1
        return True

    def _lock(self, key: SessionKey) -> asyncio.Lock:
        lock = self._locks.get(key)
        if lock is None:
            lock = self._locks[key] = asyncio.Lock()
        return lock


def _seal(content: _Content, name: str, secret: bytes) -> bytes:
    nonce = os.urandom(NONCE_BYTES)
    data = MAGIC + nonce + AESGCM(secret).encrypt(nonce, _encode(content), name.encode())
    return data + hashlib.sha256(data).digest()


def _open(data: bytes, name: str, secret: bytes) -> _Content:
    """Raises Internal."""
    begin = len(MAGIC) + NONCE_BYTES
    try:
        if data[: len(MAGIC)] != MAGIC or hashlib.sha256(data[:-32]).digest() != data[-32:]:
            raise ValueError
        return _decode(AESGCM(secret).decrypt(data[len(MAGIC) : begin], data[begin:-32], name.encode()))
    except (InvalidTag, ValueError, msgspec.DecodeError) as exc:
        raise Internal("archive_damaged", "The archived log of this session is damaged.") from exc


# -- steps on the writer's thread -------------------------------------------------------------------------------------


def _delete(connection: Any, key: SessionKey, top: int) -> int:
    return int(connection.execute(_DELETE_EVENTS, (*key, top, STEP_ROWS)).rowcount)


def _putting(key: SessionKey, values: Sequence[Sequence[Any]]) -> Callable[[Any], None]:
    def step(connection: Any) -> None:
        if connection.execute(_LIVES, tuple(key)).fetchall():  # it may have been purged meanwhile
            connection.executemany(_PUT_EVENT, values)

    return step


def _finish(connection: Any, recalled: tuple[Any, ...], snapshot: Sequence[Sequence[Any]]) -> None:
    if connection.execute(_LIVES, recalled[:2]).fetchall():
        connection.executemany(_PUT_SNAPSHOT, snapshot)
    connection.execute(_RECALLED, recalled)


def _forgotten(place: tuple[str, str, str]) -> Any:
    return lambda connection: (
        connection.execute("DELETE FROM archived WHERE tenant = ? AND session = ? AND object = ?", place).rowcount
    )
