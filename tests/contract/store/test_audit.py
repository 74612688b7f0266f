"""One suite for the audit log on every journal: chained per tenant, trimmed from the front; every change is found."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import msgspec
import pytest

from sessions.governance import audit_trim
from sessions.governance.audit_trim import trim
from sessions.governance.audit_verify import parse_anchor, verify
from sessions.model.audit import INSTALLATION, AuditFloor, AuditLog, AuditRow, public
from sessions.model.errors import Fenced
from sessions.model.journal_types import Due
from sessions.model.types import Principal, TenantId, UnixMs
from sessions.model.verdicts import Finding
from sessions.ports import Journal
from sessions.store import Store
from tests.support.stores.audit_tables import BETA, Tampered, a_row, bodies, put_back, put_floor, sql, unlock
from tests.support.stores.journals import (
    ACME,
    BESIDE_A_STOP,
    NOW,
    Bed,
    a_log,
    a_usage,
    an_append,
    grant,
    key,
    patch,
    purge,
    reopened,
)


@pytest.fixture
def audit(store: Store) -> AuditLog:
    return store.audit


async def test_rows_are_chained_in_order_and_each_tenant_has_its_own(audit: AuditLog) -> None:
    await audit.record(ACME, [a_row(1), a_row(2)])
    await audit.record(BETA, [a_row(9)])
    await audit.record(INSTALLATION, [a_row(8, by=None, action="policy.loaded")])
    await audit.record(ACME, [a_row(3)])
    rows = await audit.rows(ACME, after=0, limit=10)
    assert [(row.seq, row.at) for row in rows] == [(1, NOW + 1), (2, NOW + 2), (3, NOW + 3)]
    assert [row.prev for row in rows[1:]] == [row.mac for row in rows[:-1]]
    assert await audit.tenants() == [INSTALLATION, ACME, BETA]
    assert await audit.rows(ACME, after=1, limit=1) == rows[1:2]
    for tenant, count in ((ACME, 3), (BETA, 1), (INSTALLATION, 1), (TenantId("nobody"), 0)):
        found = await verify(audit, tenant, page=2)
        assert found.intact and found.rows == count and found.weak == 0
    assert (await bodies(audit, INSTALLATION))[0]["by"] == {"role": "system"}
    assert (await bodies(audit))[0]["by"] == {"tenant": "acme", "key": "boss", "role": "service"}


async def test_names_and_texts_do_not_stand_in_rows(audit: AuditLog) -> None:
    mary = Principal(tenant=ACME, key_id="mary", user="mary")
    found = Finding(category="pii/email", action="redact", start=3, end=9, model="m/1", policy="p1", text="a@b.cd")
    await audit.record(ACME, [a_row(action="verdict", by=mary, user="mary", findings=(found,))])
    await audit.record(BETA, [a_row(action="verdict", by=mary, user="mary", findings=(found,))])
    ((row,), (other,)) = [await audit.rows(tenant, after=0, limit=9) for tenant in (ACME, BETA)]
    assert b"mary" not in row.body and b"a@b.cd" not in row.body
    told, elsewhere = public(row), public(other)
    assert told["user"] == audit.sealer.pseudonym(ACME, "mary") == told["by"]["user"] == told["by"]["key"]
    assert told["user"] != elsewhere["user"], "nobody follows a person from tenant to tenant"
    (hit,) = told["findings"]
    assert (
        hit["policy"] == "p1" and hit["model"] == "m/1" and hit["text_hmac"] == audit.sealer.text_hash(ACME, "a@b.cd")
    )
    assert hit["text_hmac"] != elsewhere["findings"][0]["text_hmac"] and "text" not in hit
    assert await audit.rows(ACME, after=0, limit=9, about=audit.sealer.pseudonyms(ACME, "mary")) == [row]
    assert await audit.rows(ACME, after=0, limit=9, about=audit.sealer.pseudonyms(ACME, "")) == []
    audit.sealer.texts = lambda tenant: tenant == ACME
    await audit.record(ACME, [a_row(action="verdict", findings=(found,))])
    assert (await bodies(audit))[1]["findings"][0]["text"] == "a@b.cd", "this tenant asked for it"


async def test_rows_of_an_append_stand_with_it_or_not_at_all(journal: Journal, audit: AuditLog) -> None:
    head = await grant(journal, key("s"))
    await journal.append(an_append(head, 2, audit=(a_row(1), a_row(2))))
    with pytest.raises(Fenced):
        await journal.append(an_append(head, 2, audit=(a_row(3),)))
    await journal.append(an_append(msgspec.structs.replace(head, top=2), 0, audit=(a_row(4),)))
    assert [row["detail"]["n"] for row in await bodies(audit)] == [1, 2, 4]
    assert (await verify(audit, ACME)).intact


async def test_one_batch_with_winners_and_losers(journal: Journal, audit: AuditLog) -> None:
    """Appends that are committed together: the chain has the winners' rows, whoever lost its fence meanwhile."""
    heads = [await grant(journal, key(f"s{n}", tenant)) for n, tenant in enumerate(["acme", "beta", "acme", "acme"])]
    await grant(journal, heads[2].key, 1)
    usage = (a_usage("r1"),)
    outcomes = await asyncio.gather(
        journal.append(an_append(heads[0], 1, audit=(a_row(0),), usage=usage)),
        journal.append(an_append(heads[1], 1, audit=(a_row(1),))),
        journal.append(an_append(heads[2], 1, audit=(a_row(2),))),
        journal.append(an_append(heads[3], 1)),
        return_exceptions=True,
    )
    assert [type(outcome) for outcome in outcomes] == [type(None), type(None), Fenced, type(None)]
    assert [row["detail"]["n"] for row in await bodies(audit)] == [0]
    assert [row["detail"]["n"] for row in await bodies(audit, BETA)] == [1]
    for n, top in enumerate((1, 1, 0, 1)):
        stored = await journal.head(heads[n].key)
        assert stored is not None and stored.top == top
    for tenant in (ACME, BETA):
        assert (await verify(audit, tenant)).intact


async def test_purging_is_written_down_and_an_empty_head_is_not(journal: Journal, audit: AuditLog) -> None:
    await a_log(journal, "gone", 2, head=patch(user="mary", deleted_at=UnixMs(NOW - 9)))
    await grant(journal, key("empty"), now=NOW - 9)
    due = Due(deleted_before=NOW)
    assert len(await purge(journal, due, commands_before=NOW, limit=9, at=NOW)) == 2
    (row,) = await bodies(audit)
    assert (row["action"], row["session"], row["at"], row["detail"]) == (
        "session.purged",
        "gone",
        NOW,
        {"reason": "deleted"},
    )
    assert row["user"] == audit.sealer.pseudonym(ACME, "mary")


async def test_the_chain_goes_on_after_a_restart(bed: Bed, store: Store, audit: AuditLog) -> None:
    await audit.record(ACME, [a_row(1)])
    async with reopened(bed, store) as again:
        await again.audit.record(ACME, [a_row(2)])
        found = await verify(again.audit, ACME)
        assert found.intact and found.rows == 2


async def test_writers_at_the_same_time_keep_one_chain(journal: Journal, audit: AuditLog) -> None:
    heads = [await grant(journal, key(f"s{n}")) for n in range(8)]

    async def appends(head: Any) -> None:
        for n in range(5):
            await journal.append(an_append(msgspec.structs.replace(head, top=n), 1, audit=(a_row(n),)))

    await asyncio.gather(*(appends(head) for head in heads), *(audit.record(ACME, [a_row(n)]) for n in range(20)))
    found = await verify(audit, ACME)
    assert found.intact and found.rows == 60


def _changed(row: AuditRow) -> list[AuditRow]:
    """The row with each of its bytes changed in turn, and each of its numbers."""
    changed = [row._replace(at=row.at ^ 1), row._replace(about=row.about + "x"), row._replace(key_id="0" * 16)]
    for name in ("body", "prev", "mac"):
        stored: bytes = getattr(row, name)
        for place in range(len(stored)):
            bytes_ = stored[:place] + bytes([stored[place] ^ 1]) + stored[place + 1 :]
            changed.append(row._replace(**cast(Any, {name: bytes_})))
    return changed


async def test_a_slip_cannot_change_a_row(store: Store, audit: AuditLog) -> None:
    await audit.record(ACME, [a_row(1)])
    for statement in ("UPDATE audit SET at = 0", "DELETE FROM audit"):
        with pytest.raises(Exception):  # noqa: B017, PT011 - whatever the database says
            await sql(store, statement)
    assert (await verify(audit, ACME)).intact


async def test_every_change_of_every_byte_is_found(store: Store, audit: AuditLog) -> None:
    await audit.record(ACME, [a_row(n, user="mary" if n == 1 else None) for n in range(3)])
    rows = await audit.rows(ACME, after=0, limit=9)
    middle = _changed(rows[1])
    assert len(middle) > 150
    for changed in middle:  # the check itself, over every byte
        found = await verify(Tampered(audit, [rows[0], changed, rows[2]]), ACME)
        assert not found.intact and found.first_broken == 2, changed
    await unlock(store)
    one, two, three = rows
    renumbered = two._replace(seq=1), one._replace(seq=2)
    tables: list[tuple[list[AuditRow], int]] = [
        ([one, middle[0], three], 2),
        ([one, middle[40], three], 2),
        ([one, two, three._replace(body=three.body.replace(b"boss", b"b0ss"))], 3),
        ([two, three], 1),
        ([one, three], 2),
        ([one, two], 3),
        ([one], 2),
        ([], 1),
        ([*renumbered, three], 1),
        ([one, two, three, three._replace(seq=4)], 4),
        ([one, three._replace(seq=2), two._replace(seq=3)], 2),
    ]
    for table, broken in tables:
        await put_back(store, table)
        found = await verify(audit, ACME)
        assert not found.intact and found.first_broken == broken and found.why, (len(table), found)
    await put_back(store, rows)
    assert (await verify(audit, ACME)).intact


async def test_a_head_that_was_changed_is_found(journal: Journal, audit: AuditLog) -> None:
    await audit.record(ACME, [a_row(n) for n in range(3)])
    rows, head = await audit.rows(ACME, after=0, limit=9), await audit.head(ACME)
    assert head is not None
    shorter = head._replace(seq=2, mac=rows[1].mac)
    for table, changed in (
        (rows[:2], shorter),
        (rows, shorter),
        (rows, head._replace(seq=4)),
        (rows, head._replace(mac=bytes(32))),
        (rows, head._replace(seal=bytes(32))),
    ):
        assert not (await verify(Tampered(audit, table, changed), ACME)).intact
    assert not (await verify(Tampered(audit, rows, None), ACME)).intact
    assert (await verify(Tampered(audit, rows, head), ACME)).intact


@BESIDE_A_STOP
async def test_a_log_that_was_put_back_whole_does_not_get_past_an_anchor(bed: Bed, store: Store) -> None:
    await store.audit.record(ACME, [a_row(1)])
    await store.close()
    await bed.backup()
    store = await bed.open()
    await store.audit.record(ACME, [a_row(2)])
    anchor = (await verify(store.audit, ACME)).anchor
    await store.close()
    await bed.restore()
    store = await bed.open()
    try:
        audit = store.audit
        assert (await verify(audit, ACME)).intact, "by itself it is whole"
        anchors = dict([parse_anchor(anchor)])
        found = await verify(audit, ACME, anchors=anchors)
        assert not found.intact and found.first_broken == 2
        await audit.record(ACME, [a_row(3)])
        assert (await verify(audit, ACME, anchors=anchors)).first_broken == 2, "another row in its place"
    finally:
        await store.close()


LATER = UnixMs(NOW + 1000)


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
    async with reopened(bed, store) as again:
        await again.audit.record(ACME, [a_row(5)])
        found = await verify(again.audit, ACME)
        assert (found.intact, found.rows, found.trimmed) == (True, 4, 2)


async def test_whoever_writes_trims_and_checks_at_the_same_time(audit: AuditLog) -> None:
    await audit.record(ACME, [a_row(n) for n in range(30)])
    ends = [before(n) for n in range(1, 31, 3)]
    trimmed, checked = await asyncio.gather(
        asyncio.gather(*(trim(audit, ACME, before=end, now=LATER) for end in ends)), verify(audit, ACME, page=3)
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
    await audit.record(ACME, [a_row(n) for n in range(4)])
    await trim(audit, ACME, before=before(2), now=LATER)
    for statement in ("UPDATE audit SET at = 0", "DELETE FROM audit WHERE seq = 3"):
        with pytest.raises(Exception):  # noqa: B017, PT011 - whatever the database says
            await sql(store, statement)
    assert (await verify(audit, ACME)).rows == 3


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
    assert found.why.endswith("the chain says that row 4 was")
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
