"""One suite for the audit log on every journal: chained per tenant, in the transaction of what it tells of, and every
change of what is stored is found.
"""

from __future__ import annotations

import asyncio
from typing import Any, cast

import msgspec
import pytest

from persistence.memory.store import MemoryStore
from sessions.governance.audit_verify import parse_anchor, verify
from sessions.model.audit import INSTALLATION, AuditLog, AuditRow, public
from sessions.model.errors import Fenced
from sessions.model.journal_types import Due
from sessions.model.types import Principal, TenantId, UnixMs
from sessions.model.verdicts import Finding
from sessions.ports import Journal
from sessions.store import Store
from tests.support.stores.audit_tables import BETA, Tampered, a_row, bodies, put_back, sql, unlock
from tests.support.stores.journals import ACME, NOW, Bed, a_log, a_usage, an_append, grant, key, patch, purge


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
    await store.close()
    again = await bed.open()
    try:
        await again.audit.record(ACME, [a_row(2)])
        found = await verify(again.audit, ACME)
        assert found.intact and found.rows == 2
    finally:
        await again.close()


async def test_writers_at_the_same_time_keep_one_chain(journal: Journal, audit: AuditLog) -> None:
    heads = [await grant(journal, key(f"s{n}")) for n in range(8)]

    async def appends(head: Any) -> None:
        for n in range(5):
            await journal.append(an_append(msgspec.structs.replace(head, top=n), 1, audit=(a_row(n),)))

    await asyncio.gather(*(appends(head) for head in heads), *(audit.record(ACME, [a_row(n)]) for n in range(20)))
    found = await verify(audit, ACME)
    assert found.intact and found.rows == 60


# -- whoever gets at the tables ---------------------------------------------------------------------------------------


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
    if isinstance(store, MemoryStore):
        return
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
    if not isinstance(store, MemoryStore):
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
