"""An opened store, on SQLite: what both databases say in the same SQL."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from persistence.sqlite.database import SqliteDatabase
from persistence.sqlite.store import SqliteStore


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    made = SqliteStore(SqliteDatabase(tmp_path))
    await made.open()
    yield made
    await made.close()
