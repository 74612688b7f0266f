"""Which store a setting names."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from persistence import connect_store, open_key_store, open_store
from persistence.keys import MemoryKeyStore, PostgresKeyStore, SqliteKeyStore
from persistence.memory.store import MemoryStore
from persistence.postgres.store import PostgresStore
from persistence.sqlite.store import SqliteStore
from sessions.model.errors import BadInput, Unavailable
from tests.support.stores.journals import a_log


@pytest.mark.parametrize(
    ("url", "driver"),
    [
        ("sqlite", SqliteStore),
        ("memory", MemoryStore),
        ("postgresql://u:p@db:5432/x", PostgresStore),
        ("postgres:///x?host=/run", PostgresStore),
    ],
)
def test_a_setting_names_a_store(tmp_path: Path, url: str, driver: type) -> None:
    assert isinstance(open_store(url, folder=tmp_path), driver)


@pytest.mark.parametrize("url", ["", "sqlite://x", "postgresql", "postgresql://", "mysql://db"])
def test_anything_else_is_refused(tmp_path: Path, url: str) -> None:
    with pytest.raises(BadInput) as caught:
        open_store(url, folder=tmp_path)
    assert caught.value.param == "journal"


def test_sqlite_needs_its_folder() -> None:
    with pytest.raises(BadInput):
        open_store("sqlite", folder=None)


def test_an_audit_key_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput) as caught:
        open_store("memory", folder=None, audit_key=str(tmp_path / "missing"))
    assert caught.value.param == "audit_key"


@dataclass
class Settings:
    journal: str
    data: str
    audit_key: str = ""
    master_key: str = ""
    journal_encryption: str = "auto"


async def test_a_command_has_the_store_to_itself_and_closes_it(tmp_path: Path) -> None:
    settings = Settings("sqlite", str(tmp_path))
    async with connect_store(settings) as store:
        head = await a_log(store.journal, "s", 2)
        with pytest.raises(Unavailable):
            async with connect_store(settings):
                pass
    with pytest.raises(Unavailable):
        await store.journal.head(head.key)
    async with connect_store(settings) as store:
        assert await store.journal.head(head.key) == head


def test_the_key_store_lies_where_the_store_does(tmp_path: Path) -> None:
    assert isinstance(open_key_store("memory", folder=tmp_path, master_key=""), MemoryKeyStore)
    assert list(tmp_path.iterdir()) == []
    assert isinstance(open_key_store("sqlite", folder=tmp_path, master_key=""), SqliteKeyStore)
    assert (tmp_path / "master.key").exists()
    assert isinstance(open_key_store("postgresql://x/y", folder=tmp_path, master_key=""), PostgresKeyStore)
    with pytest.raises(BadInput):
        open_key_store("sqlite", folder=tmp_path, master_key=str(tmp_path / "missing"))
