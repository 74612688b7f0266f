"""One suite for records of tools on every store: one under a name, bounded, audited."""

from __future__ import annotations

from typing import Any

import pytest

from sessions.model.audit import Audited, public
from sessions.model.errors import Limited
from sessions.model.types import TenantId
from sessions.store import Store
from sessions.tool_records import EVERYBODY, RECORDS_MAX, ToolRecord, ToolRecordStore
from tests.support.stores.journals import ACME, NOW

ROW = Audited(action="tool.agreed", at=NOW, detail={"server": "x"})


@pytest.fixture
def records(store: Store) -> ToolRecordStore:
    return store.tool_records


def a_record(name: str, *, tenant: str = ACME, **more: Any) -> ToolRecord:
    given: dict[str, Any] = {"kind": "pin", "body": '{"digests":{"ünï 🙂":"1"}}', "at": NOW, "by": "boss", **more}
    return ToolRecord(tenant=TenantId(tenant), name=name, **given)


async def test_there_is_one_of_a_name_and_a_kind(records: ToolRecordStore) -> None:
    first, other = a_record("b"), a_record("a", tenant=EVERYBODY)
    listing = a_record("b", kind="listing")
    for each in (first, other, listing):
        await records.put(each)
    assert list(await records.records("pin", TenantId(ACME))) == [first]
    assert list(await records.records("pin")) == [other, first]
    changed = a_record("b", body="{}")
    await records.put(changed)
    assert list(await records.records("pin", TenantId(ACME))) == [changed]
    assert list(await records.records("listing", TenantId(ACME))) == [listing]
    assert await records.remove(first) and not await records.remove(first)
    assert list(await records.records("pin")) == [other]


async def test_what_somebody_does_stands_in_the_audit_log_of_whom_it_concerns(
    store: Store, records: ToolRecordStore
) -> None:
    await records.put(a_record("a"), ROW)
    await records.put(a_record("b", tenant=EVERYBODY), ROW)
    assert not await records.remove(a_record("c"), ROW)
    for tenant in (TenantId(ACME), EVERYBODY):
        assert [public(row)["action"] for row in await store.audit.rows(tenant, after=0, limit=10)] == ["tool.agreed"]


async def test_a_tenant_has_so_many_and_no_more(records: ToolRecordStore) -> None:
    for number in range(RECORDS_MAX):
        await records.put(a_record(str(number)))
    with pytest.raises(Limited):
        await records.put(a_record("more"))
    await records.put(a_record("0", body="{}"))
    await records.put(a_record("more", tenant="beta"))
