"""Makes journals for the contract suite: each kind fresh, reopened, and put back to an older state.

A `Bed` is one store with everything beside it. `open` gives a journal on it; a bed may be reopened after a close, and
`backup`/`restore` do what an operator would do with the files while nothing runs.
"""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Protocol

from persistence.memory import MemoryJournal, MemoryStore
from persistence.sqlite import SqliteJournal
from sessions.ports import Journal


class Bed(Protocol):
    async def open(self) -> Journal: ...

    async def backup(self) -> None: ...

    async def restore(self) -> None: ...


class MemoryBed:
    def __init__(self) -> None:
        self.store = MemoryStore()
        self._kept: MemoryStore | None = None

    async def open(self) -> Journal:
        journal = MemoryJournal(self.store)
        await journal.open()
        return journal

    async def backup(self) -> None:
        self._kept = self.store.backup()

    async def restore(self) -> None:
        assert self._kept is not None
        self.store.restore(self._kept)


class SqliteBed:
    def __init__(self, folder: Path) -> None:
        self.folder = folder / "data"
        self._kept = folder / "kept.db"

    async def open(self) -> Journal:
        journal = SqliteJournal(self.folder)
        await journal.open()
        return journal

    async def backup(self) -> None:
        shutil.copy(self.folder / "journal.db", self._kept)

    async def restore(self) -> None:
        shutil.copy(self._kept, self.folder / "journal.db")


KINDS = ["memory", "sqlite"]


@asynccontextmanager
async def a_bed(kind: str, folder: Path) -> AsyncIterator[Bed]:
    if kind == "memory":
        yield MemoryBed()
    else:
        yield SqliteBed(folder)
