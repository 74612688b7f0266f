"""How long sessions are kept: what a file may say, and what is due by it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from persistence.audit import audit_of
from persistence.memory import MemoryJournal
from sessions.audit import INSTALLATION, public
from sessions.retention import DAY_MS, Kept, Retention
from sessions.types import NEVER, TenantId, UnixMs
from transport.command_line.retention import RetentionFile, read_retention
from transport.command_line.settings import BadSetting

NOW = UnixMs(1_750_000_000_000)
ACME = TenantId("acme")


def test_each_tenant_has_its_own_times_and_all_others_the_default() -> None:
    said = Retention(default=Kept(deleted_days=2), tenants={"acme": Kept(deleted_days=0, idle_days=1)})
    acme, others = said.due(NOW)
    assert (acme.tenant, acme.deleted_before, acme.idle_before) == (ACME, NOW, NOW - DAY_MS)
    assert (others.tenant, others.besides) == (None, (ACME,))
    assert others.deleted_before == NOW - 2 * DAY_MS and others.idle_before == NEVER
    assert others.unlisted_before == NOW - DAY_MS


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("[default]\ndeleted_days = -1", "deleted_days"),
        ("[default]\ndelete_days = 1", "delete_days"),
        ("[tenants.acme]\nidle_days = 'soon'", "idle_days"),
        ("[tenants.acme]\naudit_texts = 3", "audit_texts"),
        ("[tenant.acme]\nidle_days = 1", "tenant"),
        ("[default", "at the end of a table"),
        ("[default]\ndeleted_days = nan", "deleted_days"),
    ],
)
def test_a_file_that_is_wrong_is_refused_with_what_is_wrong(tmp_path: Path, text: str, wrong: str) -> None:
    path = tmp_path / "retention.toml"
    path.write_text(text)
    with pytest.raises(BadSetting, match=wrong):
        read_retention(path)


async def test_a_file_is_read_again_and_a_wrong_one_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "retention.toml"
    path.write_text("[tenants.acme]\naudit_texts = true")
    journal = MemoryJournal()
    await journal.open()
    audit = audit_of(journal)
    file = RetentionFile(str(path), deleted_days=30, audit=audit, now_ms=lambda: NOW)
    assert audit.sealer.texts(ACME) and not audit.sealer.texts(TenantId("beta"))
    assert not await file.watched.look()
    replace(path, "[default]\ndeleted_days = -3")
    assert not await file.watched.look()
    assert file.now().of(ACME).audit_texts, "the one before stays in force"
    replace(path, "[default]\ndeleted_days = 3")
    assert await file.watched.look() and not audit.sealer.texts(ACME)
    assert file.now().default.deleted_days == 3
    path.unlink()
    assert not await file.watched.look() and file.now().default.deleted_days == 3
    with pytest.raises(BadSetting):
        RetentionFile(str(path), deleted_days=30, audit=audit, now_ms=lambda: NOW)
    rows = [public(row) for row in await audit.rows(INSTALLATION, after=0, limit=9)]
    assert [row["action"] for row in rows] == ["retention.refused", "retention.loaded", "retention.refused"]
    assert "deleted_days" in rows[0]["detail"]["error"] and rows[0]["detail"]["tenants"] == 1
    assert rows[1]["detail"]["version"] == rows[2]["detail"]["version"] != rows[0]["detail"]["version"]


def replace(path: Path, text: str) -> None:
    """Another file, whatever the clock of the file system says."""
    part = path.with_suffix(".part")
    part.write_text(text)
    os.replace(part, path)
