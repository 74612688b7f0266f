"""The Redis tier: small snapshots that every replica sees, so that a session whose owner died comes up elsewhere.

    {kv}:bytes           how much all payloads and headers take
    {kv}:used            sorted set: member -> when it was used last
    {kv}:of:<session>    hash: snapshot's id -> size and head, for finding
    {kv}:data:<member>   the stored snapshot (`encryption.py`)

Storing, evicting down to the bound and indexing are one script, so the bound holds at every moment and there is
nothing to rebuild or collect after a crash of whoever wrote. One hash tag keeps all of it on one node of a cluster:
this tier is meant to be small. It is worth it where a snapshot's way over the network is shorter than computing it
and no peer has it; large ones cost a Redis its memory and everybody else's latency: `snapshot_bytes_max`.

Commands run in tasks of their own and are never cancelled, because a connection must not be left in mid-answer; a
server that is away is an answer, and nothing is written to it again for a moment.
"""

from __future__ import annotations

import asyncio
import hashlib
import io
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
import structlog
from redis.asyncio import Redis
from redis.exceptions import RedisError

from inference.kv.cold_tier import ColdSnapshot, FetchProgress, data_key_for
from inference.kv.encryption import StoredSnapshotReader, store, stored_bytes
from inference.kv.envelope import KvIdentity, SnapshotManifest, SnapshotRefused, check_manifest, encode_header
from inference.kv.index import IndexedTier
from sessions.model.errors import BadInput, SessileError
from sessions.model.types import SessionKey
from sessions.ports import DataKey, Keys

log = structlog.get_logger(__name__)
T = TypeVar("T")

SNAPSHOT_BYTES_MAX: Final = 4 << 20
_SESSIONS_KNOWN: Final = 10_000  # for how many sessions the server's answers are remembered
_AWAY_S: Final = 1.0
_TIMEOUT_S: Final = 1.0
_DISCOVER_WAIT_S: Final = 0.25  # a turn waits for it

# KEYS: bytes, used, of:<session>; ARGV: member, field, stored, now, bound, prefix of data keys, prefix of indexes
_PUT: Final = """
local size = #ARGV[3]
local held = tonumber(redis.call('GET', KEYS[1]) or '0')
local data = ARGV[6] .. ARGV[1]
held = held - redis.call('STRLEN', data)
while held + size > tonumber(ARGV[5]) do
  local oldest = redis.call('ZRANGE', KEYS[2], 0, 0)[1]
  if not oldest then held = 0 break end
  held = held - redis.call('STRLEN', ARGV[6] .. oldest)
  redis.call('DEL', ARGV[6] .. oldest)
  redis.call('ZREM', KEYS[2], oldest)
  local cut = string.find(oldest, '/', 1, true)
  redis.call('HDEL', ARGV[7] .. string.sub(oldest, 1, cut - 1), string.sub(oldest, cut + 1))
end
redis.call('SET', data, ARGV[3])
redis.call('SET', KEYS[1], held + size)
redis.call('ZADD', KEYS[2], ARGV[4], ARGV[1])
redis.call('HSET', KEYS[3], ARGV[2], size)
return held + size
"""

# KEYS: bytes, used, of:<session>; ARGV: session, prefix of data keys, field ... (none: all of the session)
_DROP: Final = """
local fields = {}
for i = 3, #ARGV do fields[#fields + 1] = ARGV[i] end
if #fields == 0 then fields = redis.call('HKEYS', KEYS[3]) end
for _, field in ipairs(fields) do
  local member = ARGV[1] .. '/' .. field
  redis.call('DECRBY', KEYS[1], redis.call('STRLEN', ARGV[2] .. member))
  redis.call('DEL', ARGV[2] .. member)
  redis.call('ZREM', KEYS[2], member)
  redis.call('HDEL', KEYS[3], field)
end
return tonumber(redis.call('GET', KEYS[1]) or '0')
"""


def check_address(url: str) -> None:
    """Raises BadInput for an address that cannot be a server's. Connects to nothing."""
    try:
        Redis.from_url(url).connection_pool.make_connection()  # type: ignore[no-untyped-call]
    except (ValueError, TypeError, AttributeError) as exc:
        raise BadInput(
            "invalid_setting",
            "kv_redis leads to no server. Write --kv-redis redis://HOST:6379, rediss://USER:PASSWORD@HOST:6379 or"
            " unix:///PATH: one server, no sentinels and no cluster.",
            param="kv_redis",
        ) from exc


class RedisSnapshot(ColdSnapshot):
    __slots__ = ("field",)

    def __init__(self, manifest: SnapshotManifest, size: int, field: str) -> None:
        super().__init__("redis", manifest.key, manifest.ledger, size, time.monotonic(), manifest.scope)
        self.field = field


class RedisTier(IndexedTier[RedisSnapshot]):
    """Implements `ColdTier` for one engine identity; engines of other identities may share the server and its bound.
    Methods do not fail while the server is away: they store nothing or find nothing. There are
    many because the port has many and each one is a script or a pipeline of its own."""

    name: str = "redis"

    def __init__(
        self,
        url: str,
        bytes_max: int,
        identity: KvIdentity,
        keys: Keys | None = None,
        *,
        snapshot_bytes_max: int = SNAPSHOT_BYTES_MAX,
        namespace: str = "{sessile-kv}",
    ) -> None:
        super().__init__()
        self.bytes = 0  # by the server's last answer: other replicas write too
        self.bytes_max = bytes_max
        self.snapshot_bytes_max = snapshot_bytes_max
        self.identity = identity
        self.keys = keys
        self.counters: Counter[str] = Counter()
        self._client: Redis = Redis.from_url(url, socket_timeout=_TIMEOUT_S, socket_connect_timeout=_TIMEOUT_S)
        self._put_script = self._client.register_script(_PUT)
        self._drop_script = self._client.register_script(_DROP)
        self._namespace = namespace
        self._mark = hashlib.blake2b(msgspec.msgpack.encode(identity), digest_size=8).hexdigest()
        self._tasks: set[asyncio.Future[Any]] = set()
        self._writing: dict[SessionKey, int] = {}
        self._revoked: set[SessionKey] = set()  # erased while something of it is being written
        self._away_until_s = 0.0

    async def open(self) -> None:
        """Tries to reach the server. Never raises: a server that is away may come back."""
        await self._execute(self._client.ping())

    async def close(self) -> None:
        if self._tasks:
            await asyncio.wait(self._tasks)
        await self._client.aclose()

    # -- finding -----------------------------------------------------------------------------------------

    def has(self, key: SessionKey, snapshot_id: bytes) -> bool:
        field = self._field(snapshot_id)
        return any(snapshot.field == field for snapshot in self._snapshots.of(key))

    async def discover(self, key: SessionKey) -> None:
        """Finds snapshots of a session that any replica has stored: sizes first, then heads, which name the tokens.
        What was known of it stays where there is no answer in time."""
        if time.monotonic() < self._away_until_s:
            return
        try:
            async with asyncio.timeout(_DISCOVER_WAIT_S):
                found = await self._execute(self._client.hgetall(self._index(key)))
                if found is not None:
                    self._know(key, await self._heads(key, found))
        except TimeoutError:
            self.counters["redis_late"] += 1

    async def _heads(self, key: SessionKey, found: dict[bytes | str, bytes | str]) -> list[RedisSnapshot]:
        known = {snapshot.field: snapshot for snapshot in self._snapshots.of(key)}
        snapshots = []
        for raw, size in found.items():
            field = _blob(raw).decode()
            if field in known:
                snapshots.append(known[field])  # a snapshot never changes
            elif field.startswith(f"{self._mark}:"):
                try:
                    manifest = await self._head(key, field)
                except SnapshotRefused as exc:
                    await self._refused(key, field, exc)
                else:
                    snapshots.append(RedisSnapshot(manifest, int(size), field))
        return snapshots

    async def _head(self, key: SessionKey, field: str) -> SnapshotManifest:
        """Reads a stored snapshot's manifest: from the first bytes, and if these are not enough, from the whole
        snapshot. Raises SnapshotRefused."""
        name = self._data(key, field)
        for end in (16 << 10, -1):
            data = await self._execute(self._client.getrange(name, 0, end))
            if not data:
                raise SnapshotRefused("tier_away" if data is None else "no_snapshot")
            try:
                return await self._opened(_blob(data), key)
            except SnapshotRefused as exc:
                if exc.reason != "truncated" or end == -1:
                    raise
        raise AssertionError("the whole was read")

    async def _opened(self, data: bytes, key: SessionKey) -> SnapshotManifest:
        stored = StoredSnapshotReader(io.BytesIO(data))
        manifest = stored.open(await data_key_for(self.keys, stored.head))
        check_manifest(manifest, key, self.identity)
        return manifest

    # -- moving ------------------------------------------------------------------------------------------

    async def put(self, manifest: SnapshotManifest, payload: Path) -> bool:
        """Stores a snapshot; returns False for one that is too large for this tier, and when Redis or the key store are
        away."""
        key = manifest.key
        if manifest.payload_bytes > self.snapshot_bytes_max or time.monotonic() < self._away_until_s:
            self.counters["redis_too_large"] += manifest.payload_bytes > self.snapshot_bytes_max
            return False
        self._writing[key] = self._writing.get(key, 0) + 1
        try:
            return await self._put(manifest, payload)
        finally:
            self._writing[key] -= 1
            if not self._writing[key]:
                del self._writing[key]
                self._revoked.discard(key)

    async def _put(self, manifest: SnapshotManifest, payload: Path) -> bool:
        key, field = manifest.key, self._field(manifest.snapshot_id)
        try:
            data_key = await self.keys.current(key) if self.keys is not None else None
            data = await asyncio.to_thread(_sealed, manifest, payload, data_key)
        except (SessileError, SnapshotRefused, OSError) as exc:
            self.counters["redis_write_failed"] += 1
            log.warning("snapshot_write_failed", tier=self.name, error=str(exc))
            return False
        if len(data) > self.bytes_max or key in self._revoked:
            return False
        held = await self._execute(
            self._put_script(
                keys=[*self._books, self._index(key)],
                args=[
                    f"{self._session(key)}/{field}",
                    field,
                    data,
                    time.time(),
                    self.bytes_max,
                    f"{self._namespace}:data:",
                    f"{self._namespace}:of:",
                ],
            )
        )
        if held is None:
            return False
        self.bytes = int(held)
        if key in self._revoked:
            await self._drop(key, field)
            return False
        self.counters["redis_writes"] += 1
        tokens = manifest.ledger
        known = self._snapshots.of(key)
        covered = [older.field for older in known if older.tokens == tokens[: len(older.tokens)]]
        if replaced := [older for older in covered if older != field]:
            await self._drop(key, *replaced)
        kept = [older for older in known if older.field not in covered]
        self._know(key, [*kept, RedisSnapshot(manifest, len(data), field)])
        return True

    async def fetch(
        self, snapshot: ColdSnapshot, payload: Path, progress: FetchProgress | None = None
    ) -> SnapshotManifest:
        """Writes the checked payload to a file. It comes in one answer, so that `progress` is never updated."""
        assert isinstance(snapshot, RedisSnapshot)
        key = snapshot.key
        try:
            stored = await self._stored(snapshot)
            data_key = await data_key_for(self.keys, stored.head)
            manifest = await asyncio.to_thread(_unsealed, stored, data_key, key, self.identity, payload)
        except SnapshotRefused as exc:
            await self._refused(key, snapshot.field, exc)
            raise
        await self._execute(
            self._client.zadd(self._books[1], {f"{self._session(key)}/{snapshot.field}": time.time()}, xx=True)
        )
        self.counters["redis_reads"] += 1
        return manifest

    async def stream(self, snapshot: ColdSnapshot) -> AsyncGenerator[bytes, None]:
        assert isinstance(snapshot, RedisSnapshot)
        try:
            stored = await self._stored(snapshot)
            yield encode_header(stored.open(await data_key_for(self.keys, stored.head)))
            for chunk in stored.chunks():
                yield bytes(chunk)
        except SnapshotRefused as exc:
            await self._refused(snapshot.key, snapshot.field, exc)
            raise

    async def _stored(self, snapshot: RedisSnapshot) -> StoredSnapshotReader:
        data = await self._execute(self._client.get(self._data(snapshot.key, snapshot.field)))
        if data is None:
            raise SnapshotRefused("tier_away" if time.monotonic() < self._away_until_s else "no_snapshot")
        return StoredSnapshotReader(io.BytesIO(_blob(data)))

    async def drop(self, snapshot: ColdSnapshot) -> None:
        assert isinstance(snapshot, RedisSnapshot)
        key = snapshot.key
        self._unlearn(key, snapshot.field)
        await self._drop(key, snapshot.field)

    async def erase(self, key: SessionKey) -> None:
        if key in self._writing:
            self._revoked.add(key)
        self._know(key, [])
        await self._drop(key)

    # -- inside --------------------------------------------------------------------------------------------

    @property
    def _books(self) -> tuple[str, str]:
        return f"{self._namespace}:bytes", f"{self._namespace}:used"

    def _session(self, key: SessionKey) -> str:
        """Returns a name for the session that holds no slash and does not reveal the session's own names."""
        return hashlib.blake2b(msgspec.msgpack.encode((key.tenant, key.session)), digest_size=16).hexdigest()

    def _index(self, key: SessionKey) -> str:
        return f"{self._namespace}:of:{self._session(key)}"

    def _data(self, key: SessionKey, field: str) -> str:
        return f"{self._namespace}:data:{self._session(key)}/{field}"

    def _field(self, snapshot_id: bytes) -> str:
        return f"{self._mark}:{snapshot_id.hex()}"

    def _know(self, key: SessionKey, snapshots: list[RedisSnapshot]) -> None:
        for older in self._snapshots.of(key):
            self._snapshots.remove(older)
        for snapshot in snapshots:
            self._snapshots.add(snapshot)
        while len(self._snapshots.sessions) > _SESSIONS_KNOWN:
            self._know(next(iter(self._snapshots.sessions)), [])

    def _unlearn(self, key: SessionKey, field: str) -> None:
        self._know(key, [known for known in self._snapshots.of(key) if known.field != field])

    async def _refused(self, key: SessionKey, field: str, exc: SnapshotRefused) -> None:
        """Removes a snapshot that proved unusable; one that could only not be reached stays."""
        if exc.reason in ("no_room", "keys_away", "tier_away"):
            return
        self.counters[f"refused_{exc.reason}"] += 1
        log.warning("snapshot_refused", tier=self.name, reason=exc.reason)
        self._unlearn(key, field)
        await self._drop(key, field)

    async def _drop(self, key: SessionKey, *fields: str) -> None:
        held = await self._execute(
            self._drop_script(
                keys=[*self._books, self._index(key)], args=[self._session(key), f"{self._namespace}:data:", *fields]
            )
        )
        if held is None:
            self.counters["redis_erase_failed"] += 1
        else:
            self.bytes = int(held)

    async def _execute(self, command: Awaitable[T]) -> T | None:
        """Runs a command and returns its answer; None if Redis fails, which is counted and logged. The command runs to
        its end even if the caller is cancelled."""

        async def execute() -> T | None:
            try:
                return await command
            except (RedisError, OSError) as exc:
                self.counters["redis_away"] += 1
                self._away_until_s = time.monotonic() + _AWAY_S
                log.warning("tier_lost", tier=self.name, error=str(exc))
                return None

        task = asyncio.ensure_future(execute())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return await asyncio.shield(task)


def _blob(data: bytes | str) -> bytes:
    """Narrows the type: the client returns bytes without `decode_responses`, whatever its types say."""
    assert isinstance(data, bytes)
    return data


# -- blocking parts, for threads ---------------------------------------------------------------------------


def _sealed(manifest: SnapshotManifest, payload: Path, data_key: DataKey | None) -> bytes:
    sink = io.BytesIO()
    store(sink, manifest, payload, data_key)
    data = sink.getvalue()
    assert len(data) == stored_bytes(manifest, data_key)
    return data


def _unsealed(
    stored: StoredSnapshotReader, data_key: DataKey | None, key: SessionKey, identity: KvIdentity, payload: Path
) -> SnapshotManifest:
    manifest = stored.open(data_key)
    check_manifest(manifest, key, identity)
    try:
        with payload.open("wb") as file:
            for chunk in stored.chunks():
                file.write(chunk)
    except OSError as exc:
        raise SnapshotRefused("no_room") from exc
    return manifest
