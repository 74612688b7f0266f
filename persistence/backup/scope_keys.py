"""The keys that a backup is sealed with: one for each session and each end user, wrapped by the key of their tenant.

A backup keeps what was deleted long ago, in segments that are never changed; what is to be unreadable in it loses its
key. So every session and every end user has a key for backups alone, in the key store (`keys.db`), which no backup of
the journal contains. Copies of the wrapped keys stand in the object store in pages of `PAGE_KEYS`, beside the wrapped
keys of tenants, since who lost the machine has nothing else; a page is replaced when a key of it is destroyed. What
wraps the tenants' keys (master key file, key service) is never there.

    keys/tenants        every key of every tenant, wrapped
    keys/000000000007   a page of scopes' keys: (id, tenant, id of the tenant's key, wrapped, when it was destroyed);
                        the scope's name is wrapped with its key

One task at a time uses a `ScopeKeys`. Knows no segments.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, Final, NamedTuple

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from persistence.at_rest.tenant_keys import TenantKey, TenantKeys
from persistence.backup.segments import NONCE_BYTES, DamagedBackup, decode_object, encode_object
from persistence.codec import KeyDestroyed
from persistence.key_database import KeyDatabase
from persistence.master_key import KEY_BYTES
from persistence.objects.object_store import ObjectStore
from sessions.model.errors import BadInput, Internal
from sessions.model.types import TenantId, UnixMs

PAGE_KEYS: Final = 1000
ID_BYTES: Final = 8
ROWS_AT_ONCE: Final = 400
CACHED_MAX: Final = 50_000
KEYS_FOLDER: Final = "keys"
TENANTS_OBJECT: Final = f"{KEYS_FOLDER}/tenants"
_PAGE_MAGIC: Final = b"SLKEY1\n"
_TENANTS_MAGIC: Final = b"SLTEN1\n"

_FIND: Final = "SELECT page, id, tenant_key, wrapped FROM {backup_keys} WHERE tenant = $1 AND scope = $2"
_NEXT: Final = (
    "SELECT coalesce(max(page), 1), count(*) FROM {backup_keys} WHERE page = (SELECT max(page) FROM {backup_keys})"
)
_DESTROY: Final = (
    "UPDATE {backup_keys} SET scope = '', wrapped = $3, destroyed_at = $4, stored = 0"
    " WHERE tenant = $1 AND scope = $2 RETURNING id"
)
_PAGES: Final = "SELECT DISTINCT page FROM {backup_keys} WHERE stored = 0 ORDER BY page"
_ALL_PAGES: Final = "SELECT DISTINCT page FROM {backup_keys} ORDER BY page"
_OF_PAGE: Final = "SELECT id, tenant, tenant_key, wrapped, destroyed_at FROM {backup_keys} WHERE page = $1 ORDER BY id"
_STORED: Final = "UPDATE {backup_keys} SET stored = 1 WHERE page = $1"
_TENANTS: Final = (
    "SELECT tenant, seq, id, wrapper, wrapped, created_at, destroyed_at FROM {tenant_keys} ORDER BY tenant, seq"
)
_IMPORT_TENANT: Final = (
    "INSERT INTO {tenant_keys} (tenant, seq, id, wrapper, wrapped, created_at, destroyed_at)"
    " VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT DO NOTHING"
)
_DESTROYED_TENANT: Final = (
    "UPDATE {tenant_keys} SET wrapped = $3, destroyed_at = coalesce(destroyed_at, $4) WHERE tenant = $1 AND seq = $2"
)
_DESTROYED_KEYS: Final = "SELECT id FROM {backup_keys} WHERE destroyed_at IS NOT NULL"
_INSERT: Final = (
    "INSERT INTO {backup_keys} (id, page, tenant, scope, tenant_key, wrapped, destroyed_at, stored) VALUES "
)


class KeyScope(NamedTuple):
    """What is made unreadable as one: a session (`s/ID`) or an end user (`u/NAME`)."""

    tenant: str
    name: str


class ScopeKey(NamedTuple):
    id: str
    page: int
    cipher: AESGCM


class PageEntry(msgspec.Struct, frozen=True, array_like=True):
    id: str
    tenant: str
    tenant_key: str
    wrapped: bytes
    destroyed_at: UnixMs | None


class TenantEntry(msgspec.Struct, frozen=True, array_like=True):
    tenant: str
    seq: int
    id: str
    wrapper: str
    wrapped: bytes
    created_at: UnixMs
    destroyed_at: UnixMs | None


def session_scope(tenant: str, session: str) -> KeyScope:
    return KeyScope(tenant, f"s/{session}")


def user_scope(tenant: str, user: str) -> KeyScope:
    return KeyScope(tenant, f"u/{user}")


def page_name(page: int) -> str:
    return f"{KEYS_FOLDER}/{page:012d}"


def tenant_cipher(key: TenantKey, tenant: str) -> AESGCM:
    """What a tenant's own parts, and its scopes' keys, are sealed with."""
    derived = hashlib.blake2b(tenant.encode(), key=key.secret, digest_size=KEY_BYTES, person=b"sessile-backup")
    return AESGCM(derived.digest())


class ScopeKeys:
    def __init__(self, database: KeyDatabase, tenants: TenantKeys, *, now_ms: Callable[[], UnixMs]) -> None:
        self._database = database
        self._tenants = tenants
        self._now_ms = now_ms
        self._cached: dict[KeyScope, ScopeKey] = {}

    async def of_tenant(self, tenant: str) -> ScopeKey:
        """What seals rows of a tenant that belong to no scope."""
        key = await self._tenants.writing(TenantId(tenant))
        return ScopeKey(key.id, 0, tenant_cipher(key, tenant))

    async def of_scopes(self, scopes: Collection[KeyScope]) -> dict[KeyScope, ScopeKey]:
        """Makes those that are not there."""
        if len(self._cached) + len(scopes) > CACHED_MAX:
            self._cached.clear()
        missing = []
        for scope in scopes:
            if scope not in self._cached and (found := await self._find(scope)) is not None:
                self._cached[scope] = found
            if scope not in self._cached:
                missing.append(scope)
        await self._make(missing)
        return {scope: self._cached[scope] for scope in scopes}

    async def destroy(self, scopes: Iterable[KeyScope]) -> int:
        """How many there were. Their pages in the object store still have them: `pages_to_store`."""
        done = 0
        for scope in scopes:
            self._cached.pop(scope, None)
            done += len(await self._database.rows(_DESTROY, scope.tenant, scope.name, b"", self._now_ms()))
        if done:
            await self._database.wipe("backup_keys")
        return done

    async def pages_to_store(self, *, every: bool = False) -> list[int]:
        return [page for (page,) in await self._database.rows(_ALL_PAGES if every else _PAGES)]

    async def page(self, page: int) -> bytes:
        rows = await self._database.rows(_OF_PAGE, page)
        return encode_object(_PAGE_MAGIC, (page, [_plain(row) for row in rows]))

    async def page_stored(self, page: int) -> None:
        await self._database.rows(_STORED, page)

    async def tenants(self) -> bytes:
        """The object of the tenants' keys."""
        return encode_object(_TENANTS_MAGIC, [_plain(row) for row in await self._database.rows(_TENANTS)])

    async def _find(self, scope: KeyScope) -> ScopeKey | None:
        for page, key_id, tenant_key, wrapped in await self._database.rows(_FIND, scope.tenant, scope.name):
            ring = self._tenants.ring(TenantId(scope.tenant))
            if ring is None or tenant_key not in ring.by_id:
                await self._tenants.load(TenantId(scope.tenant), tenant_key)
                ring = self._tenants.ring(TenantId(scope.tenant))
            assert ring is not None
            opened = _unwrap(ring.by_id[tenant_key], scope.tenant, key_id, bytes(wrapped))
            if opened is not None:
                return ScopeKey(key_id, page, AESGCM(opened[0]))
        return None

    async def _make(self, scopes: Sequence[KeyScope]) -> None:
        if not scopes:
            return
        ((page, count),) = await self._database.rows(_NEXT)
        rows: list[tuple[Any, ...]] = []
        for scope in scopes:
            if count >= PAGE_KEYS:
                page, count = page + 1, 0
            count += 1
            tenant_key = await self._tenants.writing(TenantId(scope.tenant))
            key_id, secret = os.urandom(ID_BYTES).hex(), os.urandom(KEY_BYTES)
            nonce = os.urandom(NONCE_BYTES)
            about = _about(scope.tenant, key_id)
            plain = secret + scope.name.encode()
            wrapped = nonce + tenant_cipher(tenant_key, scope.tenant).encrypt(nonce, plain, about)
            rows.append((key_id, page, scope.tenant, scope.name, tenant_key.id, wrapped, None, 0))
            self._cached[scope] = ScopeKey(key_id, page, AESGCM(secret))
        try:
            await _insert(self._database, rows)
        except BaseException:
            self._cached.clear()
            raise


class BackupKeys:
    """The keys of a backup as its object store has them, for reading it.

    `load` puts them into a key store; what is destroyed in one of the two is destroyed in both from then on."""

    def __init__(self, objects: ObjectStore, database: KeyDatabase, tenants: TenantKeys) -> None:
        """`tenants`: those of `database`."""
        self._objects = objects
        self._database = database
        self._tenants = tenants
        self._destroyed: set[tuple[str, str]] = set()
        self._pages: dict[int, dict[str, PageEntry]] = {}
        self._ciphers: dict[tuple[str, str], AESGCM | None] = {}

    async def load(self) -> None:
        """Raises DamagedBackup, and BadInput where nothing here opens the keys."""
        data = await self._objects.get(TENANTS_OBJECT)
        if data is None:
            raise BadInput("backup_not_found", "There is no backup at the address of --backup.", param="backup")
        try:
            entries = decode_tenants(data)
        except DamagedBackup as damaged:
            raise DamagedBackup(f"{TENANTS_OBJECT}: {damaged}") from damaged
        for each in entries:
            await self._database.rows(_IMPORT_TENANT, *msgspec.structs.astuple(each))
            if each.destroyed_at is not None:
                await self._database.rows(_DESTROYED_TENANT, each.tenant, each.seq, b"", each.destroyed_at)
        if not await self._tenants.readable():
            raise BadInput(
                "backup_locked",
                "The keys of this backup are wrapped by another key than this command has: give --master-key (or"
                " --key-service) as the server had it.",
                param="master_key",
            )
        rows = await self._database.rows(_TENANTS)
        self._destroyed = {(row[0], row[2]) for row in rows if row[6] is not None}
        self._destroyed |= {("", key_id) for (key_id,) in await self._database.rows(_DESTROYED_KEYS)}

    async def import_pages(self) -> int:
        """Puts the scopes' keys into the key store as well, so that a server goes on with them; how many there are.
        Raises DamagedBackup."""
        count = 0
        async for name in self._objects.names(KEYS_FOLDER):
            if name == TENANTS_OBJECT:
                continue
            page = int(name.rpartition("/")[2])
            rows: list[tuple[Any, ...]] = []
            for entry in (await self._page(page)).values():
                scope, destroyed_at = "", entry.destroyed_at
                key = None if destroyed_at is not None else await self._tenant_key(entry.tenant, entry.tenant_key)
                if key is not None:
                    opened = _unwrap(key, entry.tenant, entry.id, entry.wrapped)
                    if opened is None:
                        raise DamagedBackup(f"{name}: a key does not open with its tenant's key")
                    scope = opened[1]
                about = (entry.tenant, scope, entry.tenant_key)
                rows.append((entry.id, page, *about, entry.wrapped, destroyed_at, 1))
            await _insert(self._database, rows, "ON CONFLICT DO NOTHING")
            count += len(rows)
        return count

    async def key_ids(self, scope: KeyScope) -> set[str]:
        """The keys that a scope has and had, of what `import_pages` found."""
        return {key_id for _, key_id, _, _ in await self._database.rows(_FIND, scope.tenant, scope.name)}

    async def cipher(self, tenant: str, key_id: str, page: int) -> AESGCM | None:
        """What opens a part; None: its key was destroyed. Raises DamagedBackup."""
        place = (tenant, key_id)
        if place not in self._ciphers:
            self._ciphers[place] = await (self._of_tenant(tenant, key_id) if tenant else self._of_scope(key_id, page))
        return self._ciphers[place]

    async def _of_tenant(self, tenant: str, key_id: str) -> AESGCM | None:
        key = await self._tenant_key(tenant, key_id)
        return None if key is None else tenant_cipher(key, tenant)

    async def _of_scope(self, key_id: str, page: int) -> AESGCM | None:
        if ("", key_id) in self._destroyed:
            return None
        entry = (await self._page(page)).get(key_id)
        if entry is None:
            raise DamagedBackup(f"a key of it is not in {page_name(page)}")
        if entry.destroyed_at is not None:
            return None
        key = await self._tenant_key(entry.tenant, entry.tenant_key)
        if key is None:
            return None
        opened = _unwrap(key, entry.tenant, key_id, entry.wrapped)
        if opened is None:
            raise DamagedBackup(f"a key in {page_name(page)} does not open with its tenant's key")
        return AESGCM(opened[0])

    async def _page(self, page: int) -> dict[str, PageEntry]:
        if page not in self._pages:
            name = page_name(page)
            data = await self._objects.get(name)
            if data is None:
                raise DamagedBackup(f"{name}: it is missing")
            try:
                self._pages[page] = {entry.id: entry for entry in decode_page(data)}
            except DamagedBackup as damaged:
                raise DamagedBackup(f"{name}: {damaged}") from damaged
        return self._pages[page]

    async def _tenant_key(self, tenant: str, key_id: str) -> TenantKey | None:
        if (tenant, key_id) in self._destroyed:
            return None
        ring = self._tenants.ring(TenantId(tenant))
        if ring is None or key_id not in ring.by_id:
            try:
                await self._tenants.load(TenantId(tenant), key_id)
            except KeyDestroyed:
                return None
            except Internal as error:
                raise DamagedBackup(f"{TENANTS_OBJECT}: a key of {tenant} is missing, or does not open") from error
            ring = self._tenants.ring(TenantId(tenant))
        assert ring is not None
        return ring.by_id[key_id]


def decode_page(data: bytes) -> list[PageEntry]:
    """Raises DamagedBackup."""
    _, entries = decode_object(_PAGE_MAGIC, data, tuple[int, list[PageEntry]])
    return list(entries)


def decode_tenants(data: bytes) -> list[TenantEntry]:
    """Raises DamagedBackup."""
    return list(decode_object(_TENANTS_MAGIC, data, list[TenantEntry]))


def _unwrap(key: TenantKey, tenant: str, key_id: str, wrapped: bytes) -> tuple[bytes, str] | None:
    """The secret, and the name of its scope."""
    try:
        cipher = tenant_cipher(key, tenant)
        plain = cipher.decrypt(wrapped[:NONCE_BYTES], wrapped[NONCE_BYTES:], _about(tenant, key_id))
        return plain[:KEY_BYTES], plain[KEY_BYTES:].decode()
    except (InvalidTag, ValueError):
        return None


async def _insert(database: KeyDatabase, rows: Sequence[Sequence[Any]], conflict: str = "") -> None:
    """Many rows in few statements, each of which waits for the disk."""
    for start in range(0, len(rows), ROWS_AT_ONCE):
        chunk = rows[start : start + ROWS_AT_ONCE]
        numbers = iter(range(1, len(chunk) * len(chunk[0]) + 1))
        marks = ", ".join("(" + ", ".join(f"${next(numbers)}" for _ in row) + ")" for row in chunk)
        await database.rows(f"{_INSERT}{marks} {conflict}", *[value for row in chunk for value in row])


def _about(tenant: str, key_id: str) -> bytes:
    return msgspec.msgpack.encode(("backup scope", tenant, key_id))


def _plain(row: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(bytes(value) if isinstance(value, memoryview) else value for value in row)
