"""Keys that are rotated, wrapped anew and swept under load, in a process that is killed at random moments.

`RotationRun.kill_once` starts the process, kills it (SIGKILL) after a while and returns how far it said it had come;
`check` opens what it left and reads everything. Both in processes of their own, made by a fork server that has the
modules loaded.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

from persistence.at_rest.sweep import Reencryption
from persistence.master_key import add_master_key, drop_older_master_keys
from persistence.open_store import OpenableStores, make_stores
from sessions.model.errors import SessileError
from sessions.model.types import TenantId, UnixMs
from sessions.store import Store
from tests.support.stores.journals import a_usage, an_append, delta, grant, key, patch
from transport.cli.settings import Settings

SESSIONS: Final = 6
TENANTS: Final = ("acme", "globex")
_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload([__name__])


def rotation_settings(folder: str) -> Settings:
    return Settings(data=folder, journal_encryption="on")


class RotationRun:
    """One data folder that goes through any number of kills."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.acknowledged: dict[tuple[str, str], int] = {}
        self.rotations = 0

    def kill_once(self, after_s: float) -> None:
        """Runs the load for so long behind its first append, then SIGKILL."""
        ours, theirs = _context.Pipe(duplex=False)
        process = _context.Process(target=_load, args=(str(self.folder), theirs))
        process.start()
        theirs.close()
        assert ours.poll(60), "the load did not start"
        until = time.monotonic() + after_s
        with contextlib.suppress(EOFError):
            while (rest := until - time.monotonic()) > 0:
                if ours.poll(rest):
                    self._note(ours.recv())
        process.kill()
        process.join()
        with contextlib.suppress(EOFError):
            while ours.poll():
                self._note(ours.recv())
        assert process.exitcode == -9, f"the load ended by itself: {process.exitcode}"

    def _note(self, told: Any) -> None:
        if told == "rotated":
            self.rotations += 1
        else:
            tenant, session, top = told
            self.acknowledged[tenant, session] = top

    def check(self) -> list[str]:
        """What is lost or unreadable: nothing, if all is well."""
        ours, theirs = _context.Pipe(duplex=False)
        process = _context.Process(target=_check, args=(str(self.folder), dict(self.acknowledged), theirs))
        process.start()
        theirs.close()
        faults: list[str] = ours.recv()
        process.join()
        return faults


def wall_ms() -> UnixMs:
    return UnixMs(time.time_ns() // 1_000_000)


def _load(folder: str, out: Connection) -> None:
    asyncio.run(_loaded(folder, out))


async def _loaded(folder: str, out: Connection) -> None:
    stores = make_stores(rotation_settings(folder), folder=Path(folder), now_ms=wall_ms)
    async with stores.opened() as store, asyncio.TaskGroup() as tasks:
        for tenant in TENANTS:
            for number in range(SESSIONS):
                tasks.create_task(_appending(store, tenant, f"s{number}", out))
        tasks.create_task(_rotating(stores))
        tasks.create_task(_rewrapping(stores, Path(folder), out))


async def _appending(store: Store, tenant: str, session: str, out: Connection) -> None:
    at = key(session, tenant)
    last = await store.journal.head(at)
    head = await grant(store.journal, at, None if last is None else last.fence)
    top = head.top
    while True:
        text = f"{tenant} {session} {top + 1}"
        await store.journal.append(
            an_append(
                head,
                0,
                top=top,
                records=(delta(top + 1, text),),
                head=patch(title=text),
                usage=(a_usage(f"resp_{session}_{top}", tenant=tenant),),
            )
        )
        top += 1
        out.send((tenant, session, top))


async def _rotating(stores: OpenableStores) -> None:
    assert stores.codec is not None and stores.sql is not None
    sweep = Reencryption(stores.sql, stores.codec, now_ms=wall_ms, settle_s=0, seals=True)
    while True:
        for tenant in TENANTS:
            await stores.codec.keys.rotate(TenantId(tenant))
            await sweep.step(TenantId(tenant))
            await asyncio.sleep(0)
        await sweep.sweep()


async def _rewrapping(stores: OpenableStores, folder: Path, out: Connection) -> None:
    administration = stores.administration(stores.reencryption())
    assert administration is not None
    while True:
        add_master_key(folder / "master.key")
        while (change := await administration.act("rewrap", None)).changed:
            assert change.failed == 0
        drop_older_master_keys(folder / "master.key")
        out.send("rotated")


def _check(folder: str, acknowledged: dict[tuple[str, str], int], out: Connection) -> None:
    out.send(asyncio.run(_checked(folder, acknowledged)))


async def _checked(folder: str, acknowledged: dict[tuple[str, str], int]) -> list[str]:
    faults: list[str] = []
    async with make_stores(rotation_settings(folder), folder=Path(folder), now_ms=wall_ms).opened() as store:
        for (tenant, session), top in acknowledged.items():
            name = f"{tenant}/{session}"
            try:
                loaded = await store.journal.load(key(session, tenant), now_ms=UnixMs(0))
            except SessileError as error:
                faults.append(f"{name}: {error!r}")
                continue
            if (
                loaded is None
                or loaded.head.top < top
                or loaded.head.title != f"{name.replace('/', ' ')} {loaded.head.top}"
            ):
                faults.append(f"{name}: the head stands at {loaded and loaded.head.top}, {top} were acknowledged")
                continue
            for record in loaded.records:
                if getattr(record.event, "delta", "") != f"{tenant} {session} {record.offset}":
                    faults.append(f"{name}: record {record.offset} is another")
    return faults
