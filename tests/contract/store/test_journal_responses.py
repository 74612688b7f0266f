"""The contract of the Journal port, on every implementation: which session a response is in."""

from __future__ import annotations

import pytest

from sessions.model.errors import Fenced
from sessions.model.events import Private, Record, ResponseBody, ResponseCreated, ResponseQueued
from sessions.model.journal_types import Due, ResponsePlace
from sessions.model.types import ResponseId, Sampling, Status, TenantId, UnixMs
from sessions.ports import Journal
from sessions.store import Store
from tests.support.stores.journals import ACME, NOW, a_log, an_append, delta, grant, key, patch, purge


def begun(offset: int, response: str, status: Status = "in_progress") -> Record:
    response_id = ResponseId(response)
    body = ResponseBody(id=response_id, created_at=NOW, status=status, model="m", parent_id=None)
    kind = ResponseQueued if status == "queued" else ResponseCreated
    event = kind(response_id=response_id, sequence_number=0, response=body)
    return Record(offset, NOW, event, Private(sampling=Sampling(), after=ResponseId("resp_0")))


async def test_a_response_is_found_where_it_begins(journal: Journal) -> None:
    head = await a_log(journal, "s", 3)
    await journal.append(an_append(head, records=(begun(4, "resp_a"), delta(5), begun(6, "resp_b"))))
    await a_log(journal, "t", 1)
    assert await journal.find_response(ACME, ResponseId("resp_a")) == ResponsePlace(key("s"), 4)
    assert await journal.find_response(ACME, ResponseId("resp_b")) == ResponsePlace(key("s"), 6)
    assert await journal.find_response(ACME, ResponseId("resp_c")) is None


async def test_a_response_that_waited_stays_where_it_was_accepted(journal: Journal) -> None:
    head = await a_log(journal, "s", 1)
    await journal.append(an_append(head, records=(begun(2, "resp_a", "queued"),)))
    await journal.append(an_append(head, top=2, records=(begun(3, "resp_a"), begun(4, "resp_b", "queued"))))
    assert await journal.find_response(ACME, ResponseId("resp_a")) == ResponsePlace(key("s"), 2)
    assert await journal.find_response(ACME, ResponseId("resp_b")) == ResponsePlace(key("s"), 4)


async def test_responses_of_tenants_are_apart(journal: Journal) -> None:
    for tenant, session in ((ACME, "s"), ("other", "t")):
        head = await grant(journal, key(session, tenant))
        await journal.append(an_append(head, records=(begun(1, "resp_a"),)))
    assert await journal.find_response(ACME, ResponseId("resp_a")) == ResponsePlace(key("s"), 1)
    found = await journal.find_response(TenantId("other"), ResponseId("resp_a"))
    assert found == ResponsePlace(key("t", "other"), 1)
    assert await journal.find_response(TenantId("third"), ResponseId("resp_a")) is None


async def test_what_was_refused_or_purged_is_not_found(journal: Journal) -> None:
    head = await a_log(journal, "s", 1, head=patch(deleted_at=NOW))
    with pytest.raises(Fenced):
        await journal.append(an_append(head, top=7, records=(begun(8, "resp_lost"),)))
    assert await journal.find_response(ACME, ResponseId("resp_lost")) is None
    await journal.append(an_append(head, records=(begun(2, "resp_a"),)))
    assert await journal.find_response(ACME, ResponseId("resp_a")) is not None
    await purge(journal, Due(deleted_before=UnixMs(NOW + 1)), commands_before=UnixMs(0), limit=9)
    assert await journal.find_response(ACME, ResponseId("resp_a")) is None


async def test_what_a_tenant_and_a_user_have_is_counted(store: Store) -> None:
    journal, tallies = store.journal, store.tallies
    await a_log(journal, "a", 3, head=patch(user="ann"))
    await a_log(journal, "b", 2, head=patch(user="bob"))
    await a_log(journal, "hidden", 1, head=patch(user="ann", listed=False))
    await a_log(journal, "gone", 1, head=patch(user="ann", deleted_at=NOW))
    await grant(journal, key("claimed only"))
    await a_log(journal, "a", 5, tenant="other", head=patch(user="ann"))
    whole = await tallies.tally(ACME, user=None, stored=True)
    anns = await tallies.tally(ACME, user="ann", stored=True)
    assert (whole.sessions, anns.sessions) == (2, 1)
    assert 0 < anns.stored_bytes < whole.stored_bytes
    assert (await tallies.tally(ACME, user=None, stored=False)).stored_bytes == 0
    empty = await tallies.tally(TenantId("nobody"), user="ann", stored=True)
    assert (empty.sessions, empty.stored_bytes) == (0, 0)
