"""What settings say of backups, and what they may not say."""

from __future__ import annotations

from pathlib import Path

import pytest

from persistence import make_stores
from persistence.backup.opening import archivers, backing_up, backup_objects, make_shipper
from sessions.model.errors import BadInput
from tests.support.stores.backups import rows
from tests.support.stores.journals import NOW, a_log
from transport.cli.settings import Settings


async def test_a_server_ships_as_its_settings_say(tmp_path: Path) -> None:
    data = tmp_path / "data"
    settings = Settings(data=str(data), backup=str(tmp_path / "backup"), archive=str(tmp_path / "archive"))
    stores = make_stores(settings, folder=data, now_ms=lambda: NOW)
    async with stores.opened() as store:
        async with backing_up(settings, stores):
            await a_log(store.journal, "s", 2)
        assert list((tmp_path / "backup" / "journal").rglob("0*"))
        (work,) = archivers(settings, stores)
        work.close()
    stores = make_stores(Settings(data=str(data)), folder=data, now_ms=lambda: NOW)
    async with stores.opened(), backing_up(Settings(data=str(data)), stores):
        assert archivers(Settings(), stores) == []
    assert rows(data, "SELECT name FROM sqlite_schema WHERE name LIKE 'backup%'") == []


def test_journals_that_are_not_shipped(tmp_path: Path) -> None:
    for journal, words in (("memory", "--journal sqlite"), ("postgresql://u@h/d", "its own tools")):
        settings = Settings(journal=journal, backup=str(tmp_path))
        stores = make_stores(settings, folder=None, now_ms=lambda: NOW)
        with pytest.raises(BadInput) as error:
            make_shipper(settings, stores)
        assert words in error.value.public_message
    with pytest.raises(BadInput):
        backup_objects(Settings())
    with pytest.raises(BadInput):
        make_stores(Settings(journal="memory", archive=str(tmp_path)), folder=None, now_ms=lambda: NOW)
