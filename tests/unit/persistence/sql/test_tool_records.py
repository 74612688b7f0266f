"""Records of tools in SQL: what is refused leaves nothing."""

from __future__ import annotations

import pytest

from persistence.sqlite.store import SqliteStore
from sessions.model.audit import Audited
from sessions.model.errors import BadInput, Limited
from sessions.model.types import TenantId
from sessions.tool_records import ToolRecord
from tests.support.stores.journals import ACME, NOW

ROW = Audited(action="tool.agreed", at=NOW)


def a_record(name: str) -> ToolRecord:
    return ToolRecord(tenant=TenantId(ACME), kind="pin", name=name, body="{}", at=NOW)


async def test_a_refused_record_leaves_neither_a_row_nor_an_audit_entry(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("persistence.sql.tool_records.RECORDS_MAX", 1)
    with pytest.raises(BadInput):
        await store.tool_records.put(a_record("\0"), ROW)
    await store.tool_records.put(a_record("a"), ROW)
    with pytest.raises(Limited):
        await store.tool_records.put(a_record("b"), ROW)
    assert [each.name for each in await store.tool_records.records("pin")] == ["a"]
    assert len(await store.audit.rows(TenantId(ACME), after=0, limit=9)) == 1
