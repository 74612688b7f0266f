"""What the `users` command accepts, exports and reports, on a journal that is open here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from persistence.memory.store import MemoryStore
from sessions.model.types import TenantId
from sessions.store import Store
from tests.support.stores.journals import NOW
from transport.cli.settings import BadSetting
from transport.cli.users import EraseUser, ExportUser, run_on_journal


@pytest.fixture
async def store() -> Store:
    store = MemoryStore()
    await store.open()
    return store


async def test_an_export_is_its_owners_alone_also_where_a_file_was(store: Store, tmp_path: Path) -> None:
    path = tmp_path / "mary.jsonl"
    path.write_text("old")
    path.chmod(0o644)
    command = ExportUser("mary", tenant="acme", out=str(path))
    assert await run_on_journal(store, command, lambda: NOW, shared=False) == 0
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("out", ["", "none/x"])
async def test_an_export_that_cannot_be_written_is_a_sentence_and_no_row(
    store: Store, tmp_path: Path, out: str
) -> None:
    command = ExportUser("mary", tenant="acme", out=str(tmp_path / out))
    with pytest.raises(BadSetting, match="cannot be written"):
        await run_on_journal(store, command, lambda: NOW, shared=False)
    assert await store.audit.rows(TenantId("acme"), after=0, limit=9) == []


async def test_an_erasure_that_nobody_carries_out_is_under_way(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    command = EraseUser("mary", tenant="acme")
    assert await run_on_journal(store, command, lambda: NOW, shared=False) == 3
    assert capsys.readouterr().out.startswith("The erasure of mary is under way: ")
    as_json = EraseUser("mary", tenant="acme", wait=0, as_json=True)
    assert await run_on_journal(store, as_json, lambda: NOW, shared=True) == 3
    assert json.loads(capsys.readouterr().out)["status"] == "under_way"
