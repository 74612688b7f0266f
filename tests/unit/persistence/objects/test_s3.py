"""A backup and an archive behind the S3 API, which a stand-in server speaks."""

from __future__ import annotations

from pathlib import Path

import pytest

from persistence.archive.cold_sessions import ColdSessions
from persistence.objects.addresses import open_objects
from sessions.model.errors import BadInput, Unavailable
from tests.support.stores.backups import BackupBed, content
from tests.support.stores.journals import NOW, a_log, key
from tests.support.stores.objects import check_objects
from tests.support.stores.s3_server import CREDENTIALS, s3_server


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)


async def test_objects_in_a_bucket() -> None:
    with s3_server("objects") as address:
        await check_objects(open_objects(address, "backup"))


async def test_a_journal_is_shipped_verified_and_restored(tmp_path: Path) -> None:
    with s3_server("backups") as address:
        bed = BackupBed(tmp_path, open_objects(address, "backup"))
        async with bed.opened() as (store, shipper):
            await a_log(store.journal, "s", 20)
            await a_log(store.journal, "cold", 20)
            await bed.ship(shipper)
            assert await ColdSessions(store.database, bed.objects, now_ms=lambda: NOW).archive(key("cold")) == 20
            await bed.ship(shipper)
            assert (await bed.verify()).findings == []
        report = await bed.restore("restored")
        assert (report.sessions, report.records, report.problems) == (2, 20, ())
        async with bed.restored("restored") as again:
            assert await ColdSessions(again.database, bed.objects, now_ms=lambda: NOW).recall(key("cold"))
            assert set(await content(again)) == {"s", "cold"}


async def test_a_bucket_with_versions_is_refused(tmp_path: Path) -> None:
    with s3_server("versions", versions=True) as address:
        with pytest.raises(BadInput) as error:
            async with BackupBed(tmp_path, open_objects(address, "backup")).opened():
                raise AssertionError("it was opened")
        assert error.value.code == "backup_keeps_versions"


async def test_a_bucket_that_is_not_there_is_away() -> None:
    with s3_server("backups") as address, pytest.raises(Unavailable):
        await open_objects(address.replace("backups", "another"), "backup").put("a/1", b"x")
