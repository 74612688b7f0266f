"""Damage is found, and named by its object."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from persistence.backup.verification import VerifyReport
from sessions.model.errors import BadInput, Unavailable
from tests.support.stores.backups import BackupBed
from tests.support.stores.journals import a_log, an_append


async def a_backup(folder: Path) -> BackupBed:
    bed = BackupBed(folder)
    async with bed.opened() as (store, shipper):
        head = await a_log(store.journal, "s", 3)
        await bed.ship(shipper)
        await store.journal.append(an_append(head, 5))
        await bed.ship(shipper)
        await a_log(store.journal, "t", 3, tenant="beta")
        await bed.ship(shipper)
    return bed


def objects_of(bed: BackupBed) -> list[Path]:
    return sorted(path for path in bed.path.rglob("*") if path.is_file())


async def test_a_whole_backup_has_nothing_wrong(tmp_path: Path) -> None:
    report = await (await a_backup(tmp_path)).verify()
    assert report.findings == [] and report.records >= 11 and len(report.chains) == 1
    assert report.bytes > 0 and report.destroyed == 0


async def test_every_flipped_bit_is_found_in_its_object(tmp_path: Path) -> None:
    bed = await a_backup(tmp_path)
    chance = random.Random(3)
    for _ in range(30):
        path = chance.choice(objects_of(bed))
        whole = path.read_bytes()
        place = chance.randrange(len(whole) * 8)
        damaged = bytearray(whole)
        damaged[place // 8] ^= 1 << place % 8
        path.write_bytes(damaged)
        report = await bed.verify()
        path.write_bytes(whole)
        assert any(path.relative_to(bed.path).as_posix() in each for each in report.findings), (path, place)


async def test_what_is_missing_or_elsewhere_is_found(tmp_path: Path) -> None:
    bed = await a_backup(tmp_path)
    segments = [path for path in objects_of(bed) if "journal" in path.parts]
    _, second, third = segments[:3]
    whole = second.read_bytes()
    second.unlink()
    assert "are missing" in " ".join((await bed.verify()).findings)
    second.write_bytes(third.read_bytes())
    assert "another segment" in " ".join((await bed.verify()).findings)
    with pytest.raises(Unavailable) as error:
        await bed.restore("restored")
    assert error.value.code == "backup_damaged" and not (tmp_path / "restored" / "journal.db").exists()
    second.write_bytes(whole)
    page = next(path for path in objects_of(bed) if path.name == f"{1:012d}" and path.parent.name == "keys")
    page.unlink()
    assert "keys/000000000001: it is missing" in " ".join((await bed.verify()).findings)


async def test_an_address_without_a_backup_is_no_empty_backup(tmp_path: Path) -> None:
    with pytest.raises(BadInput) as error:
        await BackupBed(tmp_path).verify()
    assert error.value.code == "backup_not_found" and VerifyReport().findings == []
