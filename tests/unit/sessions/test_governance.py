"""The audit log's check, what is given out and erased of a user, how long things are kept."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from persistence.memory.database import MemoryDatabase
from persistence.memory.journal import MemoryJournal
from persistence.sql.audit import SqlAudit
from persistence.sql.files import SqlFiles
from sessions.billing.metering import UsageEntry, UsageQuery
from sessions.governance.audit_verify import AuditVerifier, parse_anchor
from sessions.governance.end_user_data import KeptForUsers, export_user_data
from sessions.governance.retention import DAY_MS, HOUR_MS, Retention, RetentionPeriods
from sessions.model.audit import INSTALLATION, Audited, AuditHead, AuditRow, Sealer, public
from sessions.model.errors import Internal
from sessions.model.journal_types import Head, Page
from sessions.model.knowledge.files import FileQuery, StoredFile
from sessions.model.memories import MemoryId, UserMemory
from sessions.model.push import PushId, PushSubscription, WebPushTarget
from sessions.model.types import Principal, SessionKey, TenantId, UnixMs
from tests.support.machine.machine_fixture import KEY, Ground
from tests.support.stores.audit_chain import TENANT, AuditChain, audited
from tests.support.stores.file_rows import a_file
from transport.cli.settings import BadSetting
from transport.cli.start.config_files import ConfigFile, RetentionFile, parse_retention


def chain_of(count: int) -> AuditChain:
    return AuditChain().add(*(audited(number) for number in range(1, count + 1)))


def test_a_row_of_another_tenant_and_one_that_comes_twice_are_found() -> None:
    moved, doubled = chain_of(4), chain_of(4)
    moved.stored[1] = moved.stored[1]._replace(tenant=TenantId("other"))
    doubled.stored.insert(1, doubled.stored[0])
    for chain, why in ((moved, "another tenant"), (doubled, "twice")):
        verifier = AuditVerifier(chain.sealer, TENANT)
        verifier.take(chain.stored)
        found = verifier.finish(chain.stored_head)
        assert (found.intact, found.first_broken, found.anchor) == (False, 2, "") and why in found.why


def test_a_floor_that_no_row_tells_of_is_found() -> None:
    chain = chain_of(3)
    verifier = AuditVerifier(chain.sealer, TENANT, None, chain.sealer.floor(chain.stored[0], 1))
    verifier.take(chain.stored[1:])
    assert "no row tells" in verifier.finish(chain.stored_head).why


@pytest.mark.parametrize("text", ["", "3", "x:" + "0" * 64, "0:" + "0" * 64, "3:" + "0" * 63, "3:" + "z" * 64])
def test_anchors_are_numbers_and_macs(text: str) -> None:
    with pytest.raises(ValueError, match=r"anchor|hexadecimal"):
        parse_anchor(text)


ANA = "ana"
NOW = UnixMs(5)


class World(AuditChain):
    """One session of a user, its usage, and a chain with rows about her and another."""

    def __init__(self, ground: Ground) -> None:
        super().__init__()
        self.ground = ground
        self.page_records = 3
        self.add(*(Audited(action="session.deleted", at=NOW, user=user) for user in (ANA, "bob", ANA)))

    async def heads(self, tenant: TenantId, user: str, *, after: SessionKey | None, limit: int) -> list[Head]:
        return [self.ground.head()] if after is None and user == ANA else []

    async def read(self, key: SessionKey, *, after: int, limit: int, bytes_max: int) -> Page:
        return Page(self.ground.head(), tuple(self.ground.records[after : after + self.page_records]))

    async def entries(self, query: UsageQuery, *, after: int, limit: int) -> list[UsageEntry]:
        rows = [UsageEntry(seq, KEY, row) for seq, row in enumerate(self.ground.usage, 1)]
        return [row for row in rows if row.seq > after][:limit] if query.user == ANA else []

    async def memories(self, tenant: TenantId, user: str) -> list[UserMemory]:
        if user != ANA:
            return []
        name, text = MemoryId("mem_1"), "My cat is called Io."
        return [UserMemory(id=name, tenant=tenant, user=user, text=text, created_at=NOW, updated_at=NOW)]

    async def subscriptions(self, tenant: TenantId, user: str) -> list[PushSubscription]:
        target = WebPushTarget(endpoint="https://push.example/secret-address", p256dh="k", auth="a")
        mine = PushSubscription(id=PushId("push_1"), tenant=tenant, user=ANA, target=target, created_at=NOW)
        return [mine] if user == ANA else []

    async def rows(
        self, tenant: TenantId, *, after: int, limit: int, about: Sequence[str] | None = None
    ) -> list[AuditRow]:
        assert about is not None
        return [row for row in self.stored if row.seq > after and row.about in about][:limit]


class CountedUploads(SqlFiles):
    """One file of hers."""

    def __init__(self) -> None:
        super().__init__(MemoryDatabase())

    async def files(self, query: FileQuery, now: UnixMs) -> list[StoredFile]:
        return [a_file(b"ab", blob="b")] if query.user == ANA and query.after is None else []

    async def read(self, file: StoredFile) -> AsyncIterator[bytes]:
        yield b"a"
        yield b"b"


@pytest.fixture
def world() -> World:
    ground = Ground()
    ground.create(title="mine")
    response_id = ground.say().response_id
    assert response_id is not None
    ground.answer(response_id, "well")
    return World(ground)


async def exported(world: Any, user: str = ANA) -> list[dict[str, Any]]:
    objects = export_user_data(
        TENANT,
        user,
        personal=world,
        kept=KeptForUsers(world, CountedUploads()),
        journal=world,
        usage=world,
        audit=world,
        at=NOW,
    )
    return [each async for each in objects]


async def test_everything_of_a_user_and_of_nobody_else(world: World) -> None:
    objects = await exported(world)
    assert [each["object"] for each in objects] == [
        "user.export",
        "memory",
        "push_subscription",
        "file",
        *["file.content"] * 2,
        "session",
        *["item"] * 2,
        "usage.response",
        *["audit.row"] * 2,
        "user.exported",
    ]
    assert objects[1]["text"] == "My cat is called Io."
    assert objects[2]["service"] == "push.example" and "secret" not in str(objects[2])
    assert objects[6]["title"] == "mine" and objects[6]["top"] == len(world.ground.records)
    assert objects[3]["filename"] == "Bericht ü.txt" and [each["data"] for each in objects[4:6]] == ["YQ==", "Yg=="]
    counts = {name: objects[-1][name] for name in ("memories", "sessions", "items", "responses", "audit_rows")}
    assert counts == {"memories": 1, "sessions": 1, "items": 2, "responses": 1, "audit_rows": 2}
    nobody = await exported(world, "nobody")
    assert [each["object"] for each in nobody] == ["user.export", "user.exported"]


async def test_a_session_without_records_is_left_out(world: World) -> None:
    world.ground.records.clear()
    assert (await exported(world))[-1]["sessions"] == 0


async def test_a_log_with_a_hole_is_our_failure(world: World) -> None:
    world.page_records = 0
    with pytest.raises(Internal):
        await exported(world)


RETENTION_NOW = UnixMs(1_750_000_000_000)
ACME = TenantId("acme")


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
    assert not Retention().trims_audit and RetentionPeriods().audit_before(RETENTION_NOW) is None
    said = Retention(default=RetentionPeriods(audit_days=2), tenants={"acme": RetentionPeriods()})
    assert said.trims_audit and said.of(ACME).audit_before(RETENTION_NOW) is None
    before = said.of(INSTALLATION).audit_before(RETENTION_NOW)
    assert before is not None and before % HOUR_MS == 0 and 0 <= RETENTION_NOW - 2 * DAY_MS - before < HOUR_MS


async def test_without_a_file_the_settings_say_it() -> None:
    journal = MemoryJournal()
    await journal.open()
    audit = SqlAudit(journal.database)

    def kept(audit_days: float) -> float | None:
        file = RetentionFile("", deleted_days=3, audit_days=audit_days, audit=audit, now_ms=lambda: RETENTION_NOW)
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
    audit = SqlAudit(journal.database)
    file = RetentionFile(str(path), deleted_days=30, audit=audit, now_ms=lambda: RETENTION_NOW)
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
        RetentionFile(str(path), deleted_days=30, audit=audit, now_ms=lambda: RETENTION_NOW)
    rows = [public(row) for row in await audit.rows(INSTALLATION, after=0, limit=9)]
    assert [row["action"] for row in rows] == ["retention.refused", "retention.loaded", "retention.refused"]
    assert "deleted_days" in rows[0]["detail"]["error"] and rows[0]["detail"]["tenants"] == 1
    assert rows[1]["detail"]["version"] == rows[2]["detail"]["version"] != rows[0]["detail"]["version"]


def replace(path: Path, text: str) -> None:
    """Another file, whatever the clock of the file system says."""
    part = path.with_suffix(".part")
    part.write_text(text)
    os.replace(part, path)


SEALER = Sealer(b"secret")


ANAS_KEY = Principal(tenant=TENANT, key_id="k", user="ana", role="user")


def a_row(sealer: Sealer, row: Audited) -> tuple[AuditRow, AuditHead]:
    (made,), head = sealer.chained(None, [sealer.entry(TENANT, row)])
    return made, head


def test_a_key_of_a_user_is_named_beside_the_pseudonym() -> None:
    made, _ = a_row(SEALER, Audited(action="session.deleted", at=UnixMs(1), by=ANAS_KEY, session="s"))
    ana = SEALER.pseudonym(TENANT, "ana")
    assert public(made)["by"] == {"tenant": TENANT, "key": "k", "role": "user", "user": ana}
    assert public(made)["session"] == "s"


def test_a_key_that_is_a_user_is_named_as_one() -> None:
    own = msgspec.structs.replace(ANAS_KEY, key_id="ana")
    made, _ = a_row(SEALER, Audited(action="session.deleted", at=UnixMs(1), by=own))
    assert public(made)["by"]["key"] == public(made)["by"]["user"] != "ana"


def test_pseudonyms_differ_by_tenant_and_old_keys_are_searched_too() -> None:
    assert SEALER.pseudonym(TENANT, "ana") != SEALER.pseudonym(TenantId("other"), "ana")
    with_file = Sealer(b"secret", b"file")
    assert SEALER.pseudonym(TENANT, "ana") in with_file.pseudonyms(TENANT, "ana")
    assert with_file.pseudonym(TENANT, "ana") != SEALER.pseudonym(TENANT, "ana")


def test_another_secret_knows_neither_row_nor_head_nor_floor() -> None:
    row, head = a_row(SEALER, audited(1))
    floor, other = SEALER.floor(row, 1), Sealer(b"other")
    assert SEALER.sealed(TENANT, head, row.key_id) and SEALER.floored(TENANT, floor)
    assert not other.sealed(TENANT, head, row.key_id) and not other.floored(TENANT, floor)
    assert "key" in (other.trouble_of(row) or "")


def test_rows_under_another_key_are_weak_or_unknown() -> None:
    weak = chain_of(2)
    with_file = Sealer(b"secret", b"file")
    verifier = AuditVerifier(with_file, TENANT)
    verifier.take(weak.stored)
    assert verifier.finish(weak.stored_head).weak == 2
    stranger = AuditVerifier(Sealer(b"other"), TENANT)
    stranger.take(weak.stored)
    assert stranger.trouble is not None and "key that is not known" in stranger.trouble[1]
