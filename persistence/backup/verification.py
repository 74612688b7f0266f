"""Looks a whole backup over: every object's hash, the order of every chain, every seal, every record.

What it finds names the object. One that is damaged spoils only the restores that go through it: a later whole copy is
not touched by it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import msgspec

from persistence.at_rest.codec import SealingCodec
from persistence.at_rest.tenant_keys import TenantKeys
from persistence.backup.chain_reader import CHAIN_MAGIC, CHAINS_FOLDER, ChainReader, ReadSegment
from persistence.backup.restore import RestoreServices
from persistence.backup.row_tables import EVENTS, PUT
from persistence.backup.scope_keys import KEYS_FOLDER, TENANTS_OBJECT, BackupKeys, decode_page
from persistence.backup.segments import (
    DamagedBackup,
    OpenedPart,
    decode_object,
    first_hash,
    hash_of,
    open_part,
    part_bytes,
)
from persistence.codec import KeyDestroyed, KeyNotLoaded, decode_record
from persistence.key_database import SqliteKeyDatabase
from sessions.model.errors import Internal
from sessions.model.types import SessionId, SessionKey, TenantId, UnixMs

FINDINGS_MAX: Final = 1000


class BackupChain(msgspec.Struct, frozen=True, kw_only=True):
    chain: str
    segments: int
    from_: UnixMs | None = msgspec.field(name="from")
    """The earliest time that can be restored to."""
    to: UnixMs | None


class VerifyReport(msgspec.Struct, kw_only=True):
    """What was looked at, and what is wrong; JSON for scripts."""

    chains: list[BackupChain] = []
    bytes: int = 0
    rows: int = 0
    records: int = 0
    destroyed: int = 0
    findings: list[str] = []


async def verify_backup(services: RestoreServices, folder: Path) -> VerifyReport:
    """`folder`: an empty one for what is written meanwhile, wrapped keys alone. Raises BadInput, Unavailable."""
    keys = SqliteKeyDatabase(folder / "keys.db")
    await keys.open()
    try:
        tenants = TenantKeys(keys, services.wrapper, now_ms=services.now_ms)
        return await BackupVerifier(services, BackupKeys(services.objects, keys, tenants), tenants).verify()
    finally:
        await keys.close()


class BackupVerifier:
    def __init__(self, services: RestoreServices, keys: BackupKeys, tenants: TenantKeys) -> None:
        self._objects = services.objects
        self._reader = ChainReader(services.objects)
        self._keys = keys
        self._codec = SealingCodec(tenants, writes=False)
        self._report = VerifyReport()
        self._destroyed: set[tuple[str, str]] = set()

    async def verify(self) -> VerifyReport:
        try:
            await self._keys.load()
        except DamagedBackup as damaged:
            self._find(damaged)
            return self._report  # nothing can be opened without it
        async for finding in self._small_objects():
            self._find(finding)
        for chain in await self._reader.chains():
            await self._chain(chain)
        return self._report

    def _find(self, finding: object) -> None:
        if len(self._report.findings) < FINDINGS_MAX:
            self._report.findings.append(str(finding))

    async def _small_objects(self) -> AsyncIterator[str]:
        """Pages of keys and the names of chains."""
        for folder in (KEYS_FOLDER, CHAINS_FOLDER):
            async for name in self._objects.names(folder):
                data = await self._objects.get(name)
                if name == TENANTS_OBJECT or data is None:
                    continue
                self._report.bytes += len(data)
                try:
                    if folder == KEYS_FOLDER:
                        decode_page(data)
                    elif decode_object(CHAIN_MAGIC, data, str) != name.rpartition("/")[2]:
                        yield f"{name}: it names another chain"
                except DamagedBackup as damaged:
                    yield f"{name}: {damaged}"

    async def _chain(self, chain: str) -> None:
        numbers = await self._reader.numbers(chain)
        first: UnixMs | None = None
        last: UnixMs | None = None
        previous = first_hash(chain) if numbers[:1] == [1] else None
        at = 0
        for number in numbers:
            if at and number != at + 1:
                self._find(f"journal/{chain}: segments {at + 1} to {number - 1} are missing")
                previous = None
            at = number
            try:
                segment = await self._reader.segment(chain, number, previous=previous)
                previous = hash_of(segment.data)
                await self._segment(segment)
            except DamagedBackup as damaged:
                self._find(damaged)
                previous = None
                continue
            header = segment.header
            if header.restore_from and header.complete:
                first, last = first or header.taken_at, header.taken_at
        self._report.chains.append(BackupChain(chain=chain, segments=len(numbers), from_=first, to=last))

    async def _segment(self, segment: ReadSegment) -> None:
        """Opens every part of it and reads every record. Raises DamagedBackup."""
        self._report.bytes += len(segment.data)
        places = []
        for index, part in enumerate(segment.header.parts):
            cipher = await self._keys.cipher(part.tenant, part.key_id, part.page)
            if cipher is None:
                self._report.destroyed += 1
            else:
                places.append((index, cipher))

        def open_parts() -> list[OpenedPart]:
            stored = part_bytes(segment.data, segment.header, segment.begin)
            return [open_part(segment.header, index, stored[index], cipher) for index, cipher in places]

        try:
            parts = await asyncio.to_thread(open_parts)
            self._report.rows += sum(len(part.rows) for part in parts)
            while True:
                try:
                    self._report.records += await asyncio.to_thread(self._read_records, parts)
                    return
                except KeyNotLoaded as needed:
                    await self._load(needed)
        except DamagedBackup as damaged:
            raise DamagedBackup(f"{segment.name}: {damaged}") from damaged

    async def _load(self, needed: KeyNotLoaded) -> None:
        try:
            await self._codec.load(needed.tenant, needed.key_id)
        except KeyDestroyed:
            self._destroyed.add((needed.tenant, needed.key_id))
        except Internal as error:
            raise DamagedBackup(f"a body of {needed.tenant} is under a key that is not in the backup") from error

    def _read_records(self, parts: list[OpenedPart]) -> int:
        count = 0
        for part in parts:
            for table, what, values in part.rows:
                if table != EVENTS or what != PUT:
                    continue
                tenant, session, offset, key_id, body = values
                if (tenant, key_id) in self._destroyed:
                    continue
                try:
                    key = SessionKey(TenantId(tenant), SessionId(session))
                    decode_record(offset, self._codec.decode(key, offset, key_id, body))
                except Internal as error:
                    raise DamagedBackup(f"a record of it (offset {offset}) cannot be read") from error
                count += 1
        return count
