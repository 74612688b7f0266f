"""Which index goes with a store, and none where it cannot be."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from persistence.passages import opening


async def test_a_file_beside_the_journal_memory_or_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with opening.open_passages("sqlite", tmp_path, None) as index:
        assert index is not None
    made = tmp_path / opening.FILE
    assert stat.S_IMODE(made.stat().st_mode) == 0o600
    async with opening.open_passages("memory", tmp_path, None) as index:
        assert index is not None
    async with opening.open_passages("off", tmp_path, None) as index:
        assert index is None
    made.write_bytes(b"no database at all" * 1000)
    async with opening.open_passages("sqlite", tmp_path, None) as index:
        assert index is None
    async with opening.open_passages("postgresql://127.0.0.1:1/none", None, None) as index:
        assert index is None
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    async with opening.open_passages("sqlite", tmp_path / "other", None) as index:
        assert index is None
