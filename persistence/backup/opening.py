"""What the settings say of backups, opened: the shipper beside a server, and what the commands work with."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, Protocol

from persistence.archive.archiver import Archiver, ArchiveTimes
from persistence.backup.restore import RestoreServices
from persistence.backup.shipper import BackupShipper, ShippingTimes, shipping, stop_noting
from persistence.objects.addresses import open_objects
from persistence.objects.object_store import ObjectStore
from persistence.open_store import OpenableStores, StoreSettings, existing_wrapper
from persistence.sqlite.store import SqliteStore
from sessions.metrics import Metrics
from sessions.model.errors import BadInput
from sessions.model.types import UnixMs


class BackupSettings(StoreSettings, Protocol):
    @property
    def backup(self) -> str: ...
    @property
    def backup_interval_s(self) -> float: ...
    @property
    def backup_base_hours(self) -> float: ...
    @property
    def backup_days(self) -> float: ...
    @property
    def archive_days(self) -> float: ...


def backup_objects(settings: BackupSettings) -> ObjectStore:
    """Raises BadInput."""
    if not settings.backup:
        raise BadInput("invalid_setting", "Name where the backup is with --backup.", param="backup")
    return open_objects(settings.backup, "backup")


def restore_services(
    settings: BackupSettings, *, now_ms: Callable[[], UnixMs], new_id: Callable[[], str]
) -> RestoreServices:
    """For commands that read a backup. Raises BadInput. Blocking."""
    return RestoreServices(
        objects=backup_objects(settings), wrapper=existing_wrapper(settings), now_ms=now_ms, new_id=new_id
    )


def make_shipper(settings: BackupSettings, stores: OpenableStores, metrics: Metrics | None = None) -> BackupShipper:
    """On stores that are open while it ships. Raises BadInput for a journal that is not SQLite's."""
    store = stores.store
    if not isinstance(store, SqliteStore) or stores.codec is None or stores.database is None:
        raise BadInput(
            "backup_not_possible",
            "--backup ships an SQLite journal. PostgreSQL is backed up with its own tools: see docs/backup.md."
            if stores.sql is not None
            else "--backup needs a journal that is kept: --journal sqlite.",
            param="backup",
        )
    return BackupShipper(
        store.database,
        (stores.database, stores.codec.keys),
        backup_objects(settings),
        now_ms=stores.now_ms,
        times=ShippingTimes(
            interval_s=settings.backup_interval_s,
            base_s=settings.backup_base_hours * 3600,
            keep_s=settings.backup_days * 86_400,
        ),
        metrics=metrics,
    )


def archivers(
    settings: BackupSettings, stores: OpenableStores, metrics: Metrics | None = None
) -> list[Coroutine[Any, Any, None]]:
    """What moves cold sessions away, where --archive says so."""
    store = stores.store
    if not settings.archive or not isinstance(store, SqliteStore) or store.cold is None:
        return []
    # An object may go when no restore leads to it any more.
    replaced_s = 0.0 if not settings.backup else settings.backup_days * 86_400 or None
    times = ArchiveTimes(cold_s=settings.archive_days * 86_400, replaced_s=replaced_s)
    return [Archiver(store.database, store.cold, times, now_ms=stores.now_ms, metrics=metrics).run()]


@asynccontextmanager
async def backing_up(
    settings: BackupSettings, stores: OpenableStores, metrics: Metrics | None = None
) -> AsyncIterator[None]:
    """Ships while the block runs, where --backup says so. The stores are open. Raises BadInput, Unavailable."""
    if settings.backup:
        async with shipping(make_shipper(settings, stores, metrics)):
            yield
        return
    if isinstance(stores.store, SqliteStore):
        await stop_noting(stores.store.database)
    yield
