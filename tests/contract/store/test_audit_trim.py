"""One suite for trimming the audit log on every journal: what is not kept goes from the front, and what stays can be
checked as before.
"""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from persistence.memory.store import MemoryStore
from sessions.governance import audit_trim
from sessions.governance.audit_trim import trim
from sessions.governance.audit_verify import parse_anchor, verify
from sessions.model.audit import AuditFloor, AuditLog, AuditRow
from sessions.model.types import UnixMs
from sessions.store import Store
from tests.support.stores.audit_tables import BETA, Tampered, a_row, bodies, put_back, put_floor, sql, unlock
from tests.support.stores.journals import ACME, NOW, Bed

LATER = UnixMs(NOW + 1000)


@pytest.fixture
def audit(store: Store) -> AuditLog:
    return store.audit


def before(number: int) -> UnixMs:
    return UnixMs(NOW + number)


async def test_old_rows_go_and_the_rest_is_checked_from_there_on(audit: AuditLog) -> None:
    await audit.record(ACME, [a_row(n) for n in range(1, 7)])
    await audit.record(BETA, [a_row(1)])
    assert await trim(audit, ACME, before=before(4), now=LATER) == 3
    rows = await audit.rows(ACME, after=0, limit=9)
    assert [row.seq for row in rows] == [4, 5, 6, 7]
    told = (await bodies(audit))[-1]
    floor = await audit.floor(ACME)
    assert floor is not None and floor.mac == rows[0].prev
    assert (told["action"], told["at"], told["by"]) == ("audit.trimmed", LATER, {"role": "system"})
    assert told["detail"] == {"through": 3, "mac": floor.mac.hex(), "rows": 3, "until": NOW + 3}
    found = await verify(audit, ACME, page=2)
    assert (found.intact, found.rows, found.trimmed, found.trimmed_until) == (True, 4, 3, NOW + 3)
    assert found.anchor.startswith("7:")
    untouched = await verify(audit, BETA)
    assert (untouched.intact, untouched.rows, untouched.trimmed, untouched.trimmed_until) == (True, 1, 0, None)
    await audit.record(ACME, [a_row(8)])
    assert (await verify(audit, ACME)).rows == 5, "the chain goes on"


async def test_trimming_again_and_all_of_a_chain(audit: AuditLog) -> None:
    await audit.record(ACME, [a_row(n) for n in range(1, 5)])
    assert await trim(audit, ACME, before=before(1), now=LATER) == 0, "nothing is old"
    assert await audit.floor(ACME) is None
    assert await trim(audit, ACME, before=before(3), now=before(9)) == 2
    assert await trim(audit, ACME, before=before(3), now=before(9)) == 0
    assert await trim(audit, ACME, before=before(9), now=before(20)) == 2
    found = await verify(audit, ACME)
    assert (found.intact, found.rows, found.trimmed) == (True, 2, 4), "the rows about it are what is left"
    assert await trim(audit, ACME, before=before(99), now=before(100)) == 0, "not for themselves alone"
    await audit.record(ACME, [a_row(30)])
    assert await trim(audit, ACME, before=before(99), now=before(100)) == 3
    found = await verify(audit, ACME)
    assert (found.intact, found.rows, found.trimmed, found.trimmed_until) == (True, 1, 7, NOW + 30)


async def test_a_row_waits_for_those_before_it(audit: AuditLog) -> None:
    """Clocks of replicas differ: what goes is the front of the chain and nothing from its middle."""
    await audit.record(ACME, [a_row(n) for n in (2, 1, 9, 3)])
    assert await trim(audit, ACME, before=before(5), now=LATER) == 2
    assert [row["detail"].get("n") for row in await bodies(audit)] == [9, 3, None]
    found = await verify(audit, ACME)
    assert found.intact and found.trimmed_until == NOW + 2


async def test_a_long_chain_goes_in_steps(audit: AuditLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_trim, "ROWS_AT_ONCE", 20)
    monkeypatch.setattr(audit_trim, "ROWS_A_PAGE", 7)
    await audit.record(ACME, [a_row(n) for n in range(50)])
    assert await trim(audit, ACME, before=before(45), now=LATER) == 45
    found = await verify(audit, ACME)
    assert (found.intact, found.rows, found.trimmed) == (True, 5 + 3, 45)


async def test_it_stays_so_after_a_restart(bed: Bed, store: Store, audit: AuditLog) -> None:
    await audit.record(ACME, [a_row(n) for n in range(4)])
    await trim(audit, ACME, before=before(2), now=LATER)
    await store.close()
    again = await bed.open()
    try:
        await again.audit.record(ACME, [a_row(5)])
        found = await verify(again.audit, ACME)
        assert (found.intact, found.rows, found.trimmed) == (True, 4, 2)
    finally:
        await again.close()


async def test_whoever_writes_trims_and_checks_at_the_same_time(audit: AuditLog) -> None:
    await audit.record(ACME, [a_row(n) for n in range(30)])
    ends = [before(n) for n in range(1, 31, 3)]
    trimmed, checked = await asyncio.gather(
        asyncio.gather(*(trim(audit, ACME, before=end, now=LATER) for end in ends)),
        verify(audit, ACME, page=3),
    )
    await asyncio.gather(*(audit.record(ACME, [a_row(40 + n)]) for n in range(9)))
    assert checked.intact
    await trim(audit, ACME, before=ends[-1], now=LATER)
    found = await verify(audit, ACME)
    assert found.intact and found.trimmed == 28 and sum(trimmed) <= 28


async def test_a_floor_that_moved_is_left_to_whoever_moved_it(audit: AuditLog) -> None:
    await audit.record(ACME, [a_row(n) for n in range(4)])
    rows = await audit.rows(ACME, after=0, limit=9)
    floor = audit.sealer.floor(rows[1], rows[1].at)
    told = a_row(9, action="audit.trimmed", by=None, detail={"through": 2, "mac": floor.mac.hex()})
    assert await audit.trim(ACME, told, expected=None, floor=floor)
    assert not await audit.trim(ACME, told, expected=None, floor=audit.sealer.floor(rows[2], rows[2].at))
    assert await audit.floor(ACME) == floor
    assert [row.seq for row in await audit.rows(ACME, after=0, limit=9)] == [3, 4, 5], "nothing was written either"


async def test_an_anchor_noted_elsewhere(audit: AuditLog) -> None:
    await audit.record(ACME, [a_row(n) for n in range(2)])
    early = (await verify(audit, ACME)).anchor
    await audit.record(ACME, [a_row(2)])
    last_gone = (await verify(audit, ACME)).anchor
    await audit.record(ACME, [a_row(3)])
    kept = (await verify(audit, ACME)).anchor
    assert await trim(audit, ACME, before=before(3), now=LATER) == 3
    found = await verify(audit, ACME, anchors=dict(map(parse_anchor, (early, last_gone, kept))))
    assert found.intact and found.unchecked == 1, "of the row at the floor the MAC is still there"
    for wrong in (f"3:{early[2:]}", f"4:{early[2:]}"):
        assert not (await verify(audit, ACME, anchors=dict([parse_anchor(wrong)]))).intact


async def test_a_chain_that_is_broken_keeps_what_it_has(store: Store, audit: AuditLog) -> None:
    await audit.record(ACME, [a_row(n) for n in range(6)])
    rows = await audit.rows(ACME, after=0, limit=9)
    await unlock(store)
    await put_back(store, [*rows[:2], rows[2]._replace(body=b"{}"), *rows[3:]])
    assert await trim(audit, ACME, before=before(5), now=LATER) == 2
    assert (await verify(audit, ACME)).first_broken == 3
    assert await trim(audit, ACME, before=before(5), now=LATER) == 0
    found = await verify(audit, ACME)
    assert found.first_broken == 3 and found.trimmed == 2, "the evidence is still there"


async def test_a_slip_deletes_only_what_a_floor_lets_go(store: Store, audit: AuditLog) -> None:
    if isinstance(store, MemoryStore):
        return
    await audit.record(ACME, [a_row(n) for n in range(4)])
    await trim(audit, ACME, before=before(2), now=LATER)
    for statement in ("UPDATE audit SET at = 0", "DELETE FROM audit WHERE seq = 3"):
        with pytest.raises(Exception):  # noqa: B017, PT011 - whatever the database says
            await sql(store, statement)
    assert (await verify(audit, ACME)).rows == 3


# -- whoever gets at the tables ---------------------------------------------------------------------------------------


async def test_whatever_is_done_to_a_trimmed_chain_is_found(store: Store, audit: AuditLog) -> None:
    await audit.record(ACME, [a_row(n) for n in range(8)])
    whole = await audit.rows(ACME, after=0, limit=20)
    await trim(audit, ACME, before=before(2), now=before(20))
    first = await audit.floor(ACME)
    await trim(audit, ACME, before=before(4), now=before(21))
    rows, floor = await audit.rows(ACME, after=0, limit=20), await audit.floor(ACME)
    assert first is not None and floor is not None and [row.seq for row in rows] == [5, 6, 7, 8, 9, 10]
    await unlock(store)

    def at(row: AuditRow) -> AuditFloor:
        """A floor at another row, with whatever is known to somebody without the key."""
        return floor._replace(seq=row.seq, mac=row.mac)

    tables: list[tuple[str, list[AuditRow], AuditFloor | None, int]] = [
        ("a row changed", [rows[0], rows[1]._replace(at=0), *rows[2:]], floor, 6),
        ("a row removed in the middle", [*rows[:2], *rows[3:]], floor, 7),
        ("the first row behind the floor removed", rows[1:], floor, 5),
        ("the front removed and no floor", rows, None, 1),
        ("more of the front removed, and the floor put there", rows[1:], at(rows[0]), 5),
        ("likewise, with the seal for another time", rows[1:], at(rows[0])._replace(until=0), 5),
        ("the floor's number changed", rows, floor._replace(seq=5), 5),
        ("the floor's MAC changed", rows, floor._replace(mac=bytes(32)), 4),
        ("the floor's time changed", rows, floor._replace(until=floor.until + 1), 4),
        ("the floor's seal changed", rows, floor._replace(seal=bytes(32)), 4),
        ("the floor's key changed", rows, floor._replace(key_id="0" * 16), 4),
        ("an earlier floor put back", rows, first, 3),
        ("an earlier floor put back with its rows", [*whole[2:4], *rows], first, 2),
        ("rows put back before the floor, which is gone", [*whole[:4], *rows], None, 4),
        ("the last row cut off", rows[:-1], floor, 10),
        ("all rows cut off", [], floor, 5),
        ("a floor sealed for a row that no row tells of", rows[1:], audit.sealer.floor(rows[0], rows[0].at), 5),
    ]
    for what, table, changed, broken in tables:
        await put_back(store, table)
        await put_floor(store, changed)
        found = await verify(audit, ACME)
        assert not found.intact and found.first_broken == broken and found.why, (what, found)
    await put_back(store, rows)
    await put_floor(store, floor)
    assert (await verify(audit, ACME)).intact


async def test_every_byte_of_a_floor_counts(audit: AuditLog) -> None:
    await audit.record(ACME, [a_row(n) for n in range(4)])
    await trim(audit, ACME, before=before(2), now=LATER)
    rows, floor = await audit.rows(ACME, after=0, limit=9), await audit.floor(ACME)
    assert floor is not None
    for name in ("mac", "seal"):
        stored: bytes = getattr(floor, name)
        for place in range(len(stored)):
            changed = stored[:place] + bytes([stored[place] ^ 1]) + stored[place + 1 :]
            found = await verify(Tampered(audit, rows, floor=floor._replace(**cast(Any, {name: changed}))), ACME)
            assert not found.intact and found.first_broken == 2
    head = await audit.head(ACME)
    assert head is not None
    assert not (await verify(Tampered(audit, rows, None), ACME)).intact, "without a head"
    assert not (await verify(Tampered(audit, rows[:-1], head._replace(seq=4, mac=rows[-2].mac)), ACME)).intact
    assert (await verify(Tampered(audit, rows), ACME)).intact
