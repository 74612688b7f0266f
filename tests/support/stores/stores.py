"""What the tests of the stores share: a session, its records, an opened SQLite store."""

from __future__ import annotations

import contextlib
import resource
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from persistence.group_commit import GroupLimits
from persistence.sqlite.database import SqliteDatabase, SqliteTuning
from persistence.sqlite.journal import SqliteJournal
from persistence.sqlite.store import SqliteStore
from sessions.model.errors import Unavailable
from sessions.model.events import OutputTextDelta, Record
from sessions.model.journal_types import Append, Head
from sessions.model.types import Epoch, ItemId, ResponseId, SessionId, SessionKey, TenantId, UnixMs
from sessions.ports import Journal

NOW = UnixMs(1_750_000_000_000)


def key(session: str = "s") -> SessionKey:
    return SessionKey(TenantId("t"), SessionId(session))


def delta(offset: int, text: str = "word") -> Record:
    event = OutputTextDelta(
        response_id=ResponseId("r"),
        sequence_number=offset,
        item_id=ItemId("i"),
        output_index=0,
        content_index=0,
        delta=text,
    )
    return Record(offset, NOW, event)


async def grant(journal: SqliteJournal, session: str = "s", fence: int | None = None) -> Head:
    return await journal.grant(key(session), expected_fence=fence, owner="o", new_epoch=Epoch("e"), now_ms=NOW)


async def append(journal: Journal, head: Head, top: int, count: int = 1, text: str = "word") -> None:
    records = tuple(delta(top + n, text) for n in range(1, count + 1))
    await journal.append(Append(key=head.key, fence=head.fence, top=top, records=records, at=NOW))


async def top_of(journal: Journal, session: str = "s") -> int:
    head = await journal.head(key(session))
    assert head is not None
    return head.top


@contextlib.asynccontextmanager
async def opened(
    folder: Path, *, marker: Path | None = None, limits: GroupLimits | None = None, **tuning: Any
) -> AsyncIterator[SqliteJournal]:
    database = SqliteDatabase(folder, marker=marker, limits=limits, tuning=SqliteTuning(**tuning))
    store = SqliteStore(database)
    await store.open()
    try:
        yield store.journal
    finally:
        await store.close()


async def refused(folder: Path, **tuning: Any) -> Unavailable:
    """The error of an opening that must fail; and it must leave the folder unlocked."""
    errors = []
    for _ in range(2):
        with pytest.raises(Unavailable) as caught:
            async with opened(folder, **tuning):
                pass
        errors.append(caught.value)
    assert errors[0].code == errors[1].code
    assert not errors[0].retryable
    return errors[0]


async def a_journal(folder: Path, count: int = 20) -> None:
    async with opened(folder) as journal:
        await append(journal, await grant(journal), 0, count)


def one_more_migration(migrations: Path, folder: Path, text: str) -> Path:
    """A copy of a driver's migrations with another one behind."""
    longer = folder / "longer migrations"
    shutil.copytree(migrations, longer)
    (longer / f"{len(list(longer.iterdir())) + 1:03}.sql").write_text(text)
    return longer


def overwrite(path: Path, start: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(start)
        file.write(data)


@contextlib.contextmanager
def no_file_may_grow_beyond(size: int) -> Iterator[None]:
    """Writes beyond `size` fail with EFBIG: an I/O error at the commit, which is when SQLite writes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
