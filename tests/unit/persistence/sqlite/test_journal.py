"""The journal in SQLite: what its own statements leave to be joined."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.stores.stores import NOW, append, grant, key, opened


async def test_reads_beyond_one_page_of_a_load_are_joined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("persistence.sqlite.statements.LOAD_PAGE_ROWS", 7)
    async with opened(tmp_path) as journal:
        await append(journal, await grant(journal), 0, 50)
        loaded = await journal.load(key(), now_ms=NOW)
        assert loaded is not None
        assert [r.offset for r in loaded.records] == list(range(1, 51))
