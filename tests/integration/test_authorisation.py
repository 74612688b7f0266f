"""The authorisation matrix, every cell of it."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from sessions.model.types import Scope
from tests.support.authorisation.attempts import attempt, over_http, talk
from tests.support.authorisation.chosen import beforehand, leaks, one_chosen
from tests.support.authorisation.entries import COMMANDS, HTTP, Entry, Http, Names
from tests.support.authorisation.matrix import ENTRIES, askers, judged, kind_of, missing
from tests.support.authorisation.world import KINDS, World, a_world, without
from tests.support.doors.transport import app_of

# What is answered with something else than a refusal where there is nothing to do: a call that is open, replicas, a
# case that is claimed, an answer of which something was withheld, a share.
AS_IF = {
    *("tool.output", "AnswerTool", "response.steer", "Steer", "review.appeal", "Appeal"),
    *("compaction.undo", "UndoCompaction", "tool.approve", "Approve"),
} | {
    entry.name
    for entry in HTTP
    if "/v1/operator/" in entry.path
    or "{store_id}" in entry.path  # one that never was: whose a store is, `tests/attacks/documents` asks
    or entry.path.endswith(
        ("/decide", "/appeal", "/steer", "/{share_id}", "/{memory_id}", "/{subscription}", "/content", "/agreements")
    )
    or "/v1/files/" in entry.path
    or (entry.method != "PUT" and entry.path in ("/v1/tools/{name}", "/v1/tool_servers/{server}"))
    or (entry.method, entry.path) == ("POST", "/v1/files")
}


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with a_world() as made:
        yield made


def names_of(world: World) -> Names:
    victim = world.victim
    return Names(victim.session, victim.response, victim.item, victim.key_id, victim.review)


async def test_every_route_command_and_method_has_an_entry(world: World) -> None:
    assert await missing(world) == []


async def test_a_new_route_without_an_entry_is_found(world: World) -> None:
    (await app_of(world.assembly.server)).add_api_route("/v1/new", lambda: None)
    assert await missing(world) == ["GET /v1/new"]


@pytest.mark.parametrize("kind", ["route", "command", "method"])
async def test_nobody_is_let_in_to_what_is_not_theirs(world: World, kind: str) -> None:
    names, before, keys = names_of(world), await world.log_of(world.victim), world.keys_of_acme()
    wrong: list[str] = []
    asked = set()
    for entry in ENTRIES:
        if kind_of(entry) != kind:
            continue
        for asker in askers(world, entry):
            asked.add(asker.kind)
            wrong += await judged(world, entry, asker, names)
    assert wrong == []
    assert asked == set(KINDS)
    assert (await world.log_of(world.victim), world.keys_of_acme()) == (before, keys)


def rightful(world: World, entry: Entry) -> str:
    match entry.needs:
        case "administrator" | "reviewer":
            return without(world, "service", "usage")
        case "operator":
            return without(world, "operator", "usage")
        case _:
            return world.credentials["victim"]


@pytest.mark.parametrize("kind", ["route", "command", "method"])
async def test_who_may_is_let_in(world: World, kind: str) -> None:
    """Otherwise a server that refuses everybody would pass."""
    wrong = []
    for entry in ENTRIES:
        if kind_of(entry) != kind:
            continue
        if isinstance(entry, Http) and entry.needs is None:
            continue
        victim = await world.owned(world.credentials["victim"], world.victim.key_id)
        spare = await world.key(tenant="acme", user="ana")
        names = Names(victim.session, victim.response, victim.item, spare.split("-")[2], victim.review)
        came = await attempt(world, entry, rightful(world, entry), names)
        let_in = came.outcome not in ("unauthorized", "forbidden") if entry.name in AS_IF else came.outcome == "allowed"
        if not let_in:
            wrong.append(f"{entry.name}: {came.outcome}: {came.said[:300]}")
    assert wrong == []


@pytest.mark.parametrize("scope", ["chat", "read"])
async def test_resuming_in_hello_is_reading(world: World, scope: Scope) -> None:
    names = names_of(world)
    point = ({"session": names.session, "epoch": "e", "offset": 0},)
    for who, credential, outcome in (
        ("other tenant", world.credentials["other tenant"], "not found"),
        ("other user", world.credentials["other user"], "not found"),
        ("none", None, "unauthorized"),
        ("revoked", world.credentials["revoked"], "unauthorized"),
        ("wrong scope", without(world, "user", "read"), "forbidden"),
        ("victim", world.credentials["victim"], "allowed"),
    ):
        came = await talk(world, [], credential, resume=point)
        assert (who, came.outcome) == (who, outcome)
        assert (world.canary in came.said) == (who == "victim")


async def test_a_key_that_is_revoked_while_its_streams_are_open_shows_nothing_more(world: World) -> None:
    """On every door at once: what comes after the revocation is for others."""
    credential = await world.key(tenant="acme", user="ana")
    headers, session = {"Authorization": f"Bearer {credential}"}, world.victim.session
    async with connect(world.assembly.ws, additional_headers=headers, compression=None) as socket:
        await socket.send(json.dumps([{"type": "hello"}, {"type": "subscribe", "id": "1", "session": session}]))
        async with world.http.stream("GET", f"/v1/sessions/{session}/events", headers=headers) as stream:
            lines = stream.aiter_lines()
            while "caught_up" not in await anext(lines):
                pass
            while "caught_up" not in str(await socket.recv()):
                pass
            await world.ring.revoke(credential.split("-")[2], revoked_by="test")
            owner = {"authorization": f"Bearer {world.credentials['victim']}"}
            after = {"title": "said-after-the-revocation"}
            (await world.http.patch(f"/v1/sessions/{session}", headers=owner, json=after)).raise_for_status()
            said = "\n".join([line async for line in lines])
            assert "said-after-the-revocation" not in said and '"unauthorized"' in said
        heard = []
        with pytest.raises(ConnectionClosed) as closed:
            async with asyncio.timeout(60):
                while True:
                    heard.append(str(await socket.recv()))
        assert closed.value.rcvd is not None and closed.value.rcvd.code == 4401
        assert "said-after-the-revocation" not in "".join(heard)


async def test_credentials_in_every_place_of_a_handshake_are_looked_at(world: World) -> None:
    entry = next(each for each in COMMANDS if each.name == "session.get")
    frame = entry.make(names_of(world), "attempt")
    good, bad = world.credentials["victim"], world.credentials["revoked"]
    ticket = next(each for each in HTTP if each.path == "/v1/ws/tickets")
    issued = await over_http(world, ticket, good, names_of(world))
    query = f"?ticket={issued.said.partition('tkt_')[1]}{issued.said.partition('tkt_')[2].split(chr(34))[0]}"
    assert (await talk(world, [frame], None, header=f"Bearer {good}")).outcome == "allowed"
    assert (await talk(world, [frame], good, header=f"Bearer {bad}")).outcome == "unauthorized"
    assert (await talk(world, [frame], good, header="Basic x")).outcome == "unauthorized"
    assert (await talk(world, [frame], None, query=query)).outcome == "allowed"
    assert (await talk(world, [frame], None, query=query)).outcome == "unauthorized"


async def test_what_one_calls_a_thing_of_ones_own_leads_to_nobody_elses(world: World) -> None:
    rng = random.Random(7)
    before, keys = await world.log_of(world.named), world.keys_of_acme()
    made, wrong = await beforehand(world)
    for _ in range(80):
        wrong += await one_chosen(world, rng)
    wrong += await leaks(world)
    assert (wrong, made) == ([], 52)
    assert (await world.log_of(world.named), world.keys_of_acme()) == (before, keys)


async def test_a_secret_in_a_strangers_session_is_found(world: World) -> None:
    """Otherwise the search at the end would find nothing whatever happened."""
    body = {"model": "simulated", "input": f"{world.canary} in ben's"}
    ben = {"authorization": f"Bearer {world.credentials['other user']}"}
    (await world.http.post("/v1/responses", headers=ben, json=body)).raise_for_status()
    (found,) = await leaks(world)
    assert "of ben" in found
