"""Opens the store and the key stores that the settings name, by URL."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

import structlog

from persistence.at_rest.administration import EncryptionAdministration
from persistence.at_rest.codec import SealingCodec
from persistence.at_rest.server_keys import MemoryServerKeys, StoredServerKeys
from persistence.at_rest.sweep import Reencryption
from persistence.at_rest.tenant_keys import TenantKeys, any_tenant_key, has_tenant_key
from persistence.at_rest.wrapping import KeyWrapper, MasterKeyWrapper
from persistence.codec import Codec
from persistence.key_database import KeyDatabase
from persistence.keys import MemoryKeyStore, SqliteKeyStore, SqlKeyStore
from persistence.master_key import MasterKeyRing, read_master_keys, read_secret
from persistence.sql.file_chunks import FileChunks
from persistence.sql.folder_file_chunks import FolderFileChunks
from persistence.sql.script import SqlDatabase
from persistence.sqlite.database import SqliteDatabase, SqliteTuning
from persistence.sqlite.key_names import named_keys
from persistence.sqlite.store import SqliteStore
from sessions.metrics import Metrics
from sessions.model.errors import BadInput
from sessions.model.types import UnixMs
from sessions.store import Store

KeyStore = MemoryKeyStore | SqlKeyStore

T = TypeVar("T")

log = structlog.get_logger(__name__)


class SqlStore(Store, Protocol):
    """A store on an SQL database."""

    @property
    def database(self) -> SqlDatabase: ...


class Reach(Protocol):
    """A function that runs `attempt` and returns its result; it may repeat it until it succeeds. `name` says in logs
    which service is away."""

    async def __call__(self, name: str, attempt: Callable[[], Awaitable[T]], /) -> T: ...


async def reach_once(name: str, attempt: Callable[[], Awaitable[T]]) -> T:
    return await attempt()


def open_store(
    url: str,
    *,
    folder: Path | None,
    audit_key: str = "",
    codec: Codec | None = None,
    chunks: FileChunks | None = None,
    replicated: bool = False,
) -> Store:
    """Makes the store for `sqlite` (in `folder`), `memory` or `postgresql://...`. Raises BadInput for other URLs.

    The caller opens and closes the store. `folder` belongs to one process. With PostgreSQL it has the marker that
    distinguishes a restored database from the one that this process wrote to; None goes without a marker, which is
    right for a process that only reads. `audit_key` is the path of a file like the master key's. Without a `codec`
    bodies are plain; without `chunks` files' bytes are rows of the database. `replicated`: another process copies an
    SQLite journal and makes its checkpoints. A driver is imported only where the URL names it.
    """
    if url == "memory":
        from persistence.memory.store import MemoryStore

        if audit_key:
            read_secret(Path(audit_key), "audit_key")
        return MemoryStore()
    return _open_sql_store(url, folder=folder, audit_key=audit_key, codec=codec, chunks=chunks, replicated=replicated)


def _open_sql_store(
    url: str, *, folder: Path | None, audit_key: str, codec: Codec | None, chunks: FileChunks | None, replicated: bool
) -> SqlStore:
    sealed = read_secret(Path(audit_key), "audit_key") if audit_key else None
    match url.partition("://"):
        case ("sqlite", "", _) if folder is not None:
            tuning = SqliteTuning(checkpoints_elsewhere=replicated)
            return SqliteStore(SqliteDatabase(folder, audit_key=sealed, codec=codec, tuning=tuning), chunks)
        case ("postgresql" | "postgres", _, address) if address:
            from persistence.postgres.database import PostgresDatabase
            from persistence.postgres.store import PostgresStore

            return PostgresStore(PostgresDatabase(url, marker_folder=folder, audit_key=sealed, codec=codec), chunks)
        case _:
            raise BadInput(
                "unknown_journal", "The journal is `sqlite`, `memory` or `postgresql://...`.", param="journal"
            )


class StoreSettings(Protocol):
    @property
    def files(self) -> str: ...
    @property
    def replicate(self) -> str: ...
    @property
    def replicate_hours(self) -> float: ...
    @property
    def journal(self) -> str: ...
    @property
    def data(self) -> str: ...
    @property
    def audit_key(self) -> str: ...
    @property
    def master_key(self) -> str: ...
    @property
    def journal_encryption(self) -> str: ...
    @property
    def key_service(self) -> str: ...
    @property
    def key_service_token(self) -> str: ...
    @property
    def key_service_token_file(self) -> str: ...
    @property
    def key_service_authority(self) -> str: ...


@dataclass(frozen=True, kw_only=True)
class OpenableStores:
    """The store that the settings name, with its keys, before it is opened."""

    store: Store
    keys: KeyStore | None
    """Keys of sessions, for encrypting their KV; None for a process without a data folder."""
    codec: SealingCodec | None
    """The codec that encrypts bodies; None where no key is configured for that."""
    database: KeyDatabase | None
    """The database that holds the keys; None in memory."""
    sql: SqlDatabase | None
    """The store's SQL database; None in memory."""
    now_ms: Callable[[], UnixMs]
    refuses_plain: bool = False
    """Whether plain rows are refused once all rows are encrypted: no process on this journal writes plain ones any
    more."""

    def reencryption(self, metrics: Metrics | None = None) -> Reencryption | None:
        """Makes the sweep that encrypts older rows again; returns None if bodies are stored plain."""
        if self.codec is None or self.sql is None:
            return None
        return Reencryption(self.sql, self.codec, now_ms=self.now_ms, metrics=metrics, seals=self.refuses_plain)

    def administration(self, sweep: Reencryption | None) -> EncryptionAdministration | None:
        """Makes the object through which operators manage encryption keys; returns None if bodies are stored plain."""
        if self.codec is None or sweep is None:
            return None
        return EncryptionAdministration(self.codec, sweep, self._rewrap_kv_keys, self.store.added_tools.forget)

    def server_keys(self) -> StoredServerKeys | MemoryServerKeys:
        """Returns the keys that cookies are sealed with, the same for all processes on this store. Raises BadInput."""
        if self.codec is not None:
            return StoredServerKeys(self.codec.keys, self.now_ms)
        if self.sql is None:
            return MemoryServerKeys()
        raise BadInput(
            "journal_key_missing",
            "Signing in needs a key that all gateways share: with PostgreSQL name one with --master-key FILE or"
            " --key-service URL.",
            param="master_key",
        )

    def background(self, sweep: Reencryption | None) -> list[Coroutine[Any, Any, None]]:
        """Returns tasks to run beside a server: refreshing the keys that other processes make, and `sweep` if any."""
        works = [] if self.codec is None else [self.codec.keys.run()]
        return works + ([sweep.run()] if sweep is not None and self.codec is not None and self.codec.writes else [])

    @property
    def tenant_keys(self) -> TenantKeys | None:
        """The keys that new bodies are encrypted with; None if bodies are stored plain."""
        return self.codec.keys if self.codec is not None and self.codec.writes else None

    async def _rewrap_kv_keys(self) -> int:
        return 0 if self.keys is None else await self.keys.rewrap()

    @asynccontextmanager
    async def opened(self, reach: Reach = reach_once) -> AsyncIterator[Store]:
        """Opens the keys and the store, and closes them at the end. Keys in a file are read before the store is opened,
        so that a store whose bodies this process cannot read stays unchanged, with its marker and incarnation. Raises
        Unavailable and BadInput."""
        async with AsyncExitStack() as stack:
            database = self.database
            keys_first = database is not None and database.has_file()
            if database is not None and keys_first:
                await self._open_keys(database, stack, reach)
            await reach("journal", self.store.open)  # its lock keeps other processes out of its folder
            stack.push_async_callback(self.store.close)
            if database is not None and not keys_first:
                await self._open_keys(database, stack, reach)
            if self.codec is not None and not self.codec.writes:
                await reach("journal", self.codec.keys.accept_plain)
            yield self.store

    async def _open_keys(self, database: KeyDatabase, stack: AsyncExitStack, reach: Reach) -> None:
        existed = database.has_file()
        await reach("journal", database.open)
        stack.push_async_callback(database.close)
        if existed:
            await self._check_keys_belong(database)
        if not await reach("journal", self._keys_readable):
            raise BadInput(
                "journal_encrypted",
                "This journal is encrypted under another key than this process has: give --master-key (or"
                " --key-service) as the processes that wrote it have it.",
                param="master_key",
            )

    async def _check_keys_belong(self, database: KeyDatabase) -> None:
        """Raises BadInput if an SQLite journal names keys and the database of keys has none of them."""
        if not isinstance(self.sql, SqliteDatabase):
            return
        named = await asyncio.to_thread(named_keys, self.sql.path)
        if named and not any([await has_tenant_key(database, *each) for each in named]):
            raise BadInput(
                "journal_encrypted",
                "keys.db is of another folder: it has none of the keys that journal.db beside it is encrypted under."
                " Put the keys.db there that belongs to this journal, from a backup of it if need be.",
                param="data",
            )

    async def _keys_readable(self) -> bool:
        """Returns whether this process has the keys of the stored bodies."""
        if self.codec is not None:
            return await self.codec.keys.readable()
        return self.database is None or not await any_tenant_key(self.database)


def make_stores(settings: StoreSettings, *, folder: Path | None, now_ms: Callable[[], UnixMs]) -> OpenableStores:
    """Makes the stores that the settings name. With SQLite bodies are encrypted, and if the settings name no master
    key, one is made in `folder`. With PostgreSQL, which other processes share, bodies are encrypted only if the
    settings name a master key or a key service, because a key that one process made would lock the others out. Raises
    BadInput. Blocking."""
    url, mode = settings.journal, settings.journal_encryption
    if url == "memory":
        return OpenableStores(
            store=open_store(url, folder=folder, audit_key=settings.audit_key),
            keys=MemoryKeyStore(),
            codec=None,
            database=None,
            sql=None,
            now_ms=now_ms,
        )
    masters: MasterKeyRing | None = None
    if settings.master_key or folder is not None:
        masters = master_keys_of(settings.master_key, folder)
    keys: SqlKeyStore | None = None
    database: KeyDatabase | None = None
    if url == "sqlite" and folder is not None and masters is not None:
        keys = SqliteKeyStore(folder / "keys.db", masters)
    elif url.startswith(("postgresql://", "postgres://")):
        from persistence.postgres.keys import PostgresKeyDatabase, PostgresKeyStore

        keys = PostgresKeyStore(url, masters) if masters is not None else None
        database = PostgresKeyDatabase(url)
    if keys is not None:
        database = keys.database
    wrapper = _service_of(settings)
    if wrapper is None and masters is not None and (url == "sqlite" or settings.master_key):
        wrapper = MasterKeyWrapper(masters)
    if mode == "on" and wrapper is None:
        raise BadInput(
            "journal_key_missing",
            "journal_encryption = on: with PostgreSQL name the key that all processes share, with --master-key FILE or"
            " --key-service URL.",
            param="master_key",
        )
    codec: SealingCodec | None = None
    if wrapper is not None and database is not None:
        codec = SealingCodec(TenantKeys(database, wrapper, now_ms=now_ms), writes=mode != "off")
    elif mode == "auto":
        log.warning("journal_encryption_disabled", reason="no --master-key and no --key-service is given")
    chunks = FolderFileChunks.of(settings.files) if settings.files else None
    store = _open_sql_store(
        url,
        folder=folder,
        audit_key=settings.audit_key,
        codec=codec,
        chunks=chunks,
        replicated=bool(settings.replicate),
    )
    return OpenableStores(
        store=store,
        keys=keys,
        codec=codec,
        database=database,
        sql=store.database,
        now_ms=now_ms,
        refuses_plain=mode == "on"
        or url == "sqlite",  # a folder has one process; others may still write rows in the clear
    )


@asynccontextmanager
async def open_and_replicate(
    settings: StoreSettings,
    stores: OpenableStores,
    metrics: Metrics,
    environment: Mapping[str, str],
    reach: Reach = reach_once,
) -> AsyncIterator[Callable[[], float | None]]:
    """Opens a server's store until the context ends; replicates an SQLite journal if the settings say so. Yields a
    function that returns the replica's lag in seconds, None if there is no replica. Raises Unavailable and BadInput."""
    if not settings.replicate:
        async with stores.opened(reach):
            yield lambda: None
        return
    if settings.journal != "sqlite":
        raise BadInput(
            "replication_not_possible",
            "replicate: an SQLite journal is replicated; PostgreSQL has tools of its own, see docs/backup.md.",
            param="replicate",
        )
    from persistence.sqlite.replication import Replication

    folder = Path(settings.data)
    replication = Replication(
        settings.replicate, folder, keep_hours=settings.replicate_hours, environment=environment, metrics=metrics
    )
    try:
        async with stores.opened(reach):
            replication.start()
            yield lambda: replication.lag_s
    finally:
        await replication.close()


def _service_of(settings: StoreSettings) -> KeyWrapper | None:
    if not settings.key_service:
        return None
    from persistence.at_rest.transit import TransitWrapper

    return TransitWrapper(
        settings.key_service,
        token=settings.key_service_token,
        token_file=settings.key_service_token_file,
        authority=settings.key_service_authority,
    )


def offline_stores(settings: StoreSettings, now_ms: Callable[[], UnixMs]) -> OpenableStores:
    """Makes the stores for a command-line tool. With SQLite, opening them fails while a server has them open. Raises
    BadInput. Blocking."""
    folder = Path(settings.data) if settings.journal == "sqlite" else None
    return make_stores(settings, folder=folder, now_ms=now_ms)


@asynccontextmanager
async def connect_store(settings: StoreSettings, now_ms: Callable[[], UnixMs]) -> AsyncIterator[Store]:
    """Opens the store of the settings for a command-line tool, until the context ends."""
    async with offline_stores(settings, now_ms).opened() as store:
        yield store


def open_key_store(url: str, *, folder: Path, master_key: str) -> KeyStore:
    """Makes the store of sessions' data keys that belongs to the store at `url`: in memory, a file in `folder`, or a
    schema of its own in PostgreSQL.

    Raises BadInput. Blocking.
    """
    if url == "memory":
        return MemoryKeyStore()
    masters = master_keys_of(master_key, folder)
    if url == "sqlite":
        return SqliteKeyStore(folder / "keys.db", masters)
    from persistence.postgres.keys import PostgresKeyStore

    return PostgresKeyStore(url, masters)


def master_keys_of(master_key: str, folder: Path | None) -> MasterKeyRing:
    """Reads the master keys of a file. If `master_key` is "" the file is `master.key` in `folder`, made at the first
    start. Replicas that are to read each other's KV, and processes that share a journal, need the same file. Raises
    BadInput. Blocking."""
    if master_key or folder is None:
        return read_master_keys(Path(master_key))
    return read_master_keys(folder / "master.key", make=True)
