"""The memory directory's own parts: faults between a handle and its store, and streams that nobody reads."""

from __future__ import annotations

from actors.directory.memory import MemoryDirectory
from actors.directory.rules import DirectoryState
from sessions.model.types import SessionId, SessionKey, TenantId
from tests.support.virtual_time import advance, virtual


@virtual
async def test_interest_that_lapsed_takes_no_memory() -> None:
    store = DirectoryState()
    directory = MemoryDirectory(store)
    await directory.open()
    for n in range(50):
        await directory.watch("g", [SessionKey(TenantId("t"), SessionId(f"s{n}"))])
        await advance(1.0)
    await directory.view()
    assert store.interest_count <= 7
