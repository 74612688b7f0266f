"""The folder for KV in plain text: private, in memory, bounded, and removed with its owner."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from structlog.testing import capture_logs

from inference.kv import staging as staging_module
from inference.kv.staging import StagingFolder
from sessions.model.errors import BadInput


def test_without_memory_for_it_nothing_is_spilled_unless_a_folder_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging_module, "MEMORY_BACKED", tmp_path / "shm")
    with capture_logs() as logs:
        assert staging_module.create_staging_folder(None) is None
    (entry,) = logs
    assert entry["event"] == "kv_spill_disabled"
    assert "--shm-size" in entry["advice"] and "--kv-staging" in entry["advice"]
    assert not (tmp_path / "shm").exists()
    named = staging_module.create_staging_folder(tmp_path / "named")
    assert named is not None and named.path.parent == tmp_path / "named"
    named.close()
    (tmp_path / "file").touch()
    with pytest.raises(BadInput) as refused:
        staging_module.create_staging_folder(tmp_path / "file")
    assert refused.value.code == "bad_kv_folder" and str(tmp_path / "file") in refused.value.public_message


def test_too_little_memory_is_said_with_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = StagingFolder(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=64_000_000))
    with capture_logs() as logs:
        assert folder.bound_bytes(50_000_000) == 50_000_000 and not logs
        assert folder.bound_bytes(4 << 30) == 51_200_000
    folder.close()
    (entry,) = logs
    assert (entry["event"], entry["room_mb"], entry["requested_mb"]) == ("host_tier_reduced", 51, 4294)
    assert "--shm-size" in entry["advice"] and "--kv-host-mb" in entry["advice"]


def test_host_memory_that_holds_no_whole_session_is_said_at_the_start() -> None:
    with capture_logs() as logs:
        staging_module.warn_where_small(1 << 30, 1 << 30)
        assert not logs
        staging_module.warn_where_small(4 << 30, 120_000 * 131_072)
    (entry,) = logs
    assert (entry["event"], entry["host_mb"], entry["session_mb"]) == ("host_tier_small", 4294, 15729)
