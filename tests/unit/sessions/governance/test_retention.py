"""How long sessions are kept: what a file may say, and what is due by it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from persistence.memory.audit import MemoryAudit
from persistence.memory.journal import MemoryJournal
from sessions.governance.retention import DAY_MS, HOUR_MS, Retention, RetentionPeriods
from sessions.model.audit import INSTALLATION, public
from sessions.model.types import NEVER, TenantId, UnixMs
from transport.cli.settings import BadSetting
from transport.cli.start.config_files import ConfigFile, RetentionFile, parse_retention

NOW = UnixMs(1_750_000_000_000)
ACME = TenantId("acme")


def test_each_tenant_has_its_own_times_and_all_others_the_default() -> None:
    said = Retention(
        default=RetentionPeriods(deleted_days=2), tenants={"acme": RetentionPeriods(deleted_days=0, idle_days=1)}
    )
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
        ("[default]\naudit_days = 0.5", "audit_days"),
        ("[default]\naudit_days = 0", "audit_days"),
        ("[tenant.acme]\nidle_days = 1", "tenant"),
        ("[default", "at the end of a table"),
        ("[default]\ndeleted_days = nan", "deleted_days"),
    ],
)
def test_a_file_that_is_wrong_is_refused_with_what_is_wrong(tmp_path: Path, text: str, wrong: str) -> None:
    path = tmp_path / "retention.toml"
    path.write_text(text)
    with pytest.raises(BadSetting, match=wrong):
        ConfigFile("retention", path, parse_retention, Retention())


def test_the_audit_log_is_kept_for_ever_unless_said_and_goes_by_whole_hours() -> None:
    assert not Retention().trims_audit and RetentionPeriods().audit_before(NOW) is None
    said = Retention(default=RetentionPeriods(audit_days=2), tenants={"acme": RetentionPeriods()})
    assert said.trims_audit and said.of(ACME).audit_before(NOW) is None
    before = said.of(INSTALLATION).audit_before(NOW)
    assert before is not None and before % HOUR_MS == 0 and 0 <= NOW - 2 * DAY_MS - before < HOUR_MS


async def test_without_a_file_the_settings_say_it() -> None:
    journal = MemoryJournal()
    await journal.open()
    audit = MemoryAudit(journal.database)

    def kept(audit_days: float) -> float | None:
        file = RetentionFile("", deleted_days=3, audit_days=audit_days, audit=audit, now_ms=lambda: NOW)
        return file.now().of(ACME).audit_days

    assert kept(0) is None and kept(400) == 400
    for wrong in (0.5, 1e9, float("nan")):
        with pytest.raises(BadSetting, match="audit_days"):
            kept(wrong)


async def test_a_file_is_read_again_and_a_wrong_one_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "retention.toml"
    path.write_text("[tenants.acme]\naudit_texts = true")
    journal = MemoryJournal()
    await journal.open()
    audit = MemoryAudit(journal.database)
    file = RetentionFile(str(path), deleted_days=30, audit=audit, now_ms=lambda: NOW)
    assert audit.sealer.texts(ACME) and not audit.sealer.texts(TenantId("beta"))
    assert not await file.watcher.look()
    replace(path, "[default]\ndeleted_days = -3")
    assert not await file.watcher.look()
    assert file.now().of(ACME).audit_texts, "the one before stays in force"
    replace(path, "[default]\ndeleted_days = 3")
    assert await file.watcher.look() and not audit.sealer.texts(ACME)
    assert file.now().default.deleted_days == 3
    path.unlink()
    assert not await file.watcher.look() and file.now().default.deleted_days == 3
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
