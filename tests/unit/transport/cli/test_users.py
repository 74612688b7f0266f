"""What the `users` command accepts, exports and reports, on a journal that is open here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from persistence.audit import audit_of
from persistence.end_users import end_users_of
from persistence.memory.journal import MemoryJournal
from persistence.usage import usage_of
from sessions.model.audit import public
from sessions.model.types import TenantId
from tests.support.journals import NOW
from transport.cli.settings import BadSetting
from transport.cli.users import EraseUser, ExportUser, run_on_journal
from transport.end_user_data import EndUserStores


@pytest.fixture
async def stores() -> EndUserStores:
    journal = MemoryJournal()
    await journal.open()
    return EndUserStores(end_users_of(journal), journal, usage_of(journal), audit_of(journal), None)


def test_a_user_is_of_a_tenant() -> None:
    with pytest.raises(BadSetting, match="tenant: name whose user"):
        ExportUser("mary")
    assert EraseUser("mary", url="http://127.0.0.1:1").tenant == ""


async def test_an_export_is_lines_in_a_file_and_a_row_of_the_audit_log(stores: EndUserStores, tmp_path: Path) -> None:
    command = ExportUser("mary", tenant="acme", out=str(tmp_path / "mary.jsonl"))
    assert await run_on_journal(stores, command, lambda: NOW, shared=False) == 0
    lines = [json.loads(line) for line in (tmp_path / "mary.jsonl").read_text().splitlines()]
    assert lines and all(isinstance(line, dict) for line in lines)
    rows = await stores.audit.rows(TenantId("acme"), after=0, limit=9)
    assert [public(row)["action"] for row in rows] == ["user.exported"]


async def test_an_erasure_that_nobody_carries_out_is_under_way(
    stores: EndUserStores, capsys: pytest.CaptureFixture[str]
) -> None:
    command = EraseUser("mary", tenant="acme")
    assert await run_on_journal(stores, command, lambda: NOW, shared=False) == 3
    assert capsys.readouterr().out.startswith("The erasure of mary is under way: ")
    as_json = EraseUser("mary", tenant="acme", wait=0, as_json=True)
    assert await run_on_journal(stores, as_json, lambda: NOW, shared=True) == 3
    assert json.loads(capsys.readouterr().out)["status"] == "under_way"
