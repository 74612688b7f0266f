"""Added tools and records of calls, on every store."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from persistence.at_rest.codec import SealingCodec
from sessions.added_tools import ADDED_BYTES_MAX, ADDED_MAX, AddedTool, AddedTools, AddedToolStore
from sessions.model.audit import Audited, public
from sessions.model.errors import Conflict, Limited
from sessions.model.types import TenantId
from sessions.store import Store
from sessions.tool_records import EVERYBODY, RECORDS_MAX, ToolRecord, ToolRecordStore
from tests.support.stores.journals import (
    ACME,
    KINDS,
    NOW,
    Bed,
    PostgresBed,
    SqliteBed,
    a_bed,
    overwrite_added_tools,
    reopened,
)

ROW = Audited(action="tool.stored", at=NOW, detail={"name": "weather"})
IN_FILES = [kind for kind in KINDS if kind != "memory"]
FileBed = SqliteBed | PostgresBed
SECRET = "Bearer a-very-secret-token"


@pytest.fixture(params=IN_FILES)
async def in_a_file(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Bed]:
    async with a_bed(request.param, tmp_path) as made:
        yield made


@pytest.fixture
def added(store: Store) -> AddedToolStore:
    return store.added_tools


def a_tool(name: str = "weather", **more: Any) -> AddedTool:
    table: dict[str, Any] = {"url": "https://ü.example/🙂", "headers": {"authorization": SECRET}}
    given: dict[str, Any] = {"kind": "tool", "table": table, "revision": "r1", "at": NOW, "by": "boss", **more}
    return AddedTool(name=name, **given)


async def test_a_set_is_replaced_as_a_whole_and_stays(bed: Bed) -> None:
    store = await bed.open()
    added = store.added_tools
    nothing = await added.tools_of(ACME)
    assert nothing == AddedTools(tenant=ACME)
    first = await added.replace(nothing.with_tool(a_tool()), ROW)
    assert first.version == 1 and await added.tools_of(ACME) == first
    beta = AddedTools(tenant=TenantId("beta"))
    other = await added.replace(beta.with_tool(a_tool(kind="server", name="town")))
    assert list(await added.changes(after=0, limit=10)) == [first, other]
    with pytest.raises(Conflict):
        await added.replace(nothing.with_tool(a_tool("late")), ROW)
    assert await added.tools_of(ACME) == first
    empty = await added.replace(first.without("tool", "weather"), ROW)
    assert empty.tools == () and empty.version == 3
    assert list(await added.changes(after=1, limit=1)) == [other]
    assert list(await added.changes(after=2, limit=10)) == [empty]
    rows = await store.audit.rows(ACME, after=0, limit=10)
    assert [public(row)["action"] for row in rows] == ["tool.stored"] * 2
    async with reopened(bed, store) as again:
        assert list(await again.added_tools.changes(after=0, limit=10)) == [other, empty]


async def test_a_tenant_has_so_many_and_so_much(added: AddedToolStore) -> None:
    tools = AddedTools(tenant=ACME)
    for number in range(ADDED_MAX["tool"]):
        tools = tools.with_tool(a_tool(f"t{number}"))
    with pytest.raises(Limited):
        tools.with_tool(a_tool("more"))
    tools = tools.with_tool(a_tool("t0", offer=True)).with_tool(a_tool("more", kind="server"))
    tools = await added.replace(tools)
    large = tools.with_tool(a_tool("t0", table={"description": "x" * ADDED_BYTES_MAX}))
    with pytest.raises(Limited):
        await added.replace(large)
    assert await added.tools_of(ACME) == tools


@pytest.mark.parametrize("in_a_file", [kind for kind in IN_FILES if "sealed" in str(kind)], indirect=True)
async def test_what_is_sealed_is_not_readable_and_ends_with_its_key(in_a_file: FileBed) -> None:
    store = await in_a_file.open()
    stored = await store.added_tools.replace(AddedTools(tenant=ACME).with_tool(a_tool()))
    if isinstance(in_a_file, PostgresBed):
        content = b"".join(await in_a_file.tables())
    else:
        content = b"".join(each.read_bytes() for each in in_a_file.folder.iterdir() if each.name.startswith("journal"))
    assert SECRET.encode() not in content
    codec = store.added_tools._database.codec  # type: ignore[attr-defined]
    assert isinstance(codec, SealingCodec)
    await codec.keys.destroy(ACME)
    assert await store.added_tools.tools_of(ACME) == msgspec.structs.replace(stored, tools=())
    assert [each.tools for each in await store.added_tools.changes(after=0, limit=1)] == [()]
    await store.added_tools.replace(msgspec.structs.replace(stored, tools=()).with_tool(a_tool()))
    assert (await store.added_tools.tools_of(ACME)).tools == (a_tool(),)
    await store.close()


async def test_forgotten_tools_are_gone_for_every_reader(added: AddedToolStore) -> None:
    await added.forget(ACME)
    assert list(await added.changes(after=0, limit=10)) == []
    other = await added.replace(AddedTools(tenant=TenantId("beta")).with_tool(a_tool()))
    stored = await added.replace(AddedTools(tenant=ACME).with_tool(a_tool()))
    await added.forget(ACME)
    (ended,) = await added.changes(after=stored.version, limit=10)
    assert ended == AddedTools(tenant=ACME, version=stored.version + 1) == await added.tools_of(ACME)
    with pytest.raises(Conflict):
        await added.replace(stored)
    assert (await added.replace(ended.with_tool(a_tool("new")))).find("tool", "new") is not None
    assert await added.tools_of(other.tenant) == other


async def test_a_set_that_cannot_be_read_is_known_as_such_and_replaced(in_a_file: FileBed) -> None:
    store = await in_a_file.open()
    stored = await store.added_tools.replace(AddedTools(tenant=ACME).with_tool(a_tool()))
    await overwrite_added_tools(store.added_tools._database)  # type: ignore[attr-defined]
    damaged = await store.added_tools.tools_of(ACME)
    assert damaged == msgspec.structs.replace(stored, tools=(), readable=False)
    assert list(await store.added_tools.changes(after=0, limit=10)) == [damaged]
    mended = await store.added_tools.replace(damaged.with_tool(a_tool("new")))
    assert mended.readable and await store.added_tools.tools_of(ACME) == mended
    await store.close()


CALLED = Audited(action="tool.agreed", at=NOW, detail={"server": "x"})


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
    await records.put(a_record("a"), CALLED)
    await records.put(a_record("b", tenant=EVERYBODY), CALLED)
    assert not await records.remove(a_record("c"), CALLED)
    for tenant in (TenantId(ACME), EVERYBODY):
        assert [public(row)["action"] for row in await store.audit.rows(tenant, after=0, limit=10)] == ["tool.agreed"]


async def test_a_tenant_has_so_many_and_no_more(records: ToolRecordStore) -> None:
    for number in range(RECORDS_MAX):
        await records.put(a_record(str(number)))
    with pytest.raises(Limited):
        await records.put(a_record("more"))
    await records.put(a_record("0", body="{}"))
    await records.put(a_record("more", tenant="beta"))
