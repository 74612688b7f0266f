"""Attacks on what is shared by links: tokens that are guessed, kept or borrowed, and what a link might show besides."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from structlog.testing import capture_logs

from sessions.model.types import SCOPES
from tests.support.authorisation.world import World, a_world, without
from transport.reading.sharing import ConversationShares


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with a_world() as made:
        yield made


def bearer(credential: str) -> dict[str, str]:
    return {"authorization": f"Bearer {credential}"}


async def shared(world: World) -> dict[str, str]:
    answer = await world.http.post(
        f"/v1/sessions/{world.victim.session}/shares", headers=bearer(world.credentials["victim"]), json={}
    )
    assert answer.status_code == 201, answer.text
    made: dict[str, str] = answer.json()
    return made


async def test_a_link_opens_one_conversation_without_a_key_and_nothing_else(world: World) -> None:
    token = (await shared(world))["token"]
    read = await world.http.get(f"/v1/shares/{token}")
    assert read.status_code == 200 and f"{world.canary} message" in read.text
    for secret in (world.victim.session, world.victim.item, world.victim.key_id, "ana", "acme", "metadata"):
        assert secret not in read.text.replace(world.canary, "")
    for method, path in (
        ("GET", "/v1/shares"),
        ("GET", "/v1/shares2/x"),
        ("GET", f"/v1/sessions/{world.victim.session}"),
    ):
        assert (await world.http.request(method, path)).status_code == 401
    for method in ("POST", "PUT", "PATCH", "DELETE"):
        assert (await world.http.request(method, f"/v1/shares/{token}")).status_code == 401
    answer = await world.http.get(f"/v1/sessions/{world.victim.session}", headers=bearer(token))
    assert answer.status_code == 401


async def test_nobody_else_shares_lists_or_revokes(world: World) -> None:
    made, path = await shared(world), f"/v1/sessions/{world.victim.session}/shares"
    strangers = [world.credentials[name] for name in ("other tenant", "other user", "operator of another tenant")]
    for credential in (*strangers, without(world, "user", "chat")):
        for method, where in (("POST", path), ("GET", path), ("DELETE", f"{path}/{made['id']}")):
            answer = await world.http.request(
                method, where, headers=bearer(credential), json={} if method == "POST" else None
            )
            assert answer.status_code in (403, 404), answer.text
            assert made["id"] not in answer.text
    assert (await world.http.get(f"/v1/shares/{made['token']}")).status_code == 200


@pytest.mark.parametrize("how", ["revoked", "deleted", "erased"])
async def test_a_link_that_has_ended_is_like_one_that_never_was(world: World, how: str) -> None:
    made, owner = await shared(world), bearer(world.credentials["victim"])
    if how == "revoked":
        ended = await world.http.delete(f"/v1/sessions/{world.victim.session}/shares/{made['id']}", headers=owner)
    elif how == "deleted":
        ended = await world.http.delete(f"/v1/sessions/{world.victim.session}", headers=owner)
    else:
        boss = await world.key(tenant="acme", role="service", scopes=SCOPES)
        ended = await world.http.post("/v1/users/ana/erase", headers=bearer(boss))
    assert ended.status_code in (200, 202), ended.text
    answer = await world.http.get(f"/v1/shares/{made['token']}")
    never = await world.http.get(f"/v1/shares/{'x' * 43}")
    assert (answer.status_code, answer.json()) == (404, never.json())
    assert world.canary not in answer.text and answer.headers["cache-control"] == "no-store"


async def test_a_share_shows_nothing_that_was_taken_back_later(world: World) -> None:
    token = (await shared(world))["token"]
    item = f"/v1/conversations/{world.victim.session}/items/{world.victim.item}"
    taken = await world.http.delete(item, headers=bearer(world.credentials["victim"]))
    assert taken.status_code == 200, taken.text
    answer = await world.http.get(f"/v1/shares/{token}")
    assert f"{world.canary} message" not in answer.text


async def test_reads_of_shares_by_one_address_are_limited(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transport.reading.sharing.READS_PER_ADDRESS", 3)  # the next one is due after 20 s
    statuses = [(await world.http.get(f"/v1/shares/{'y' * 43}")).status_code for _ in range(4)]
    assert statuses == [404, 404, 404, 429]


async def test_guesses_take_no_reads_from_who_has_a_link(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transport.reading.sharing.READS_PER_MINUTE", 2)  # the next one is due after 30 s
    token = (await shared(world))["token"]
    guesses = [(await world.http.get(f"/v1/shares/{'y' * 43}")).status_code for _ in range(4)]
    reads = [(await world.http.get(f"/v1/shares/{token}")).status_code for _ in range(3)]
    assert (guesses, reads) == ([404] * 4, [200, 200, 429])


async def test_a_requested_erasure_ends_a_share(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    token = (await shared(world))["token"]
    monkeypatch.setattr(world.assembly.gateway, "_erase", None)  # a cluster's replicas come to it later
    boss = await world.key(tenant="acme", role="service", scopes=SCOPES)
    ended = await world.http.post("/v1/users/ana/erase", headers=bearer(boss))
    assert ended.status_code == 202, ended.text
    assert (await world.http.get(f"/v1/shares/{token}")).status_code == 404


async def test_a_failure_of_the_server_logs_no_token(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fails(*_: object) -> None:
        raise RuntimeError("a bug")

    token = (await shared(world))["token"]
    monkeypatch.setattr(ConversationShares, "read", fails)
    with capture_logs() as logged:
        assert (await world.http.get(f"/v1/shares/{token}")).status_code == 500
    assert "request_failed" in [each["event"] for each in logged] and token not in repr(logged)


async def test_many_at_once_make_so_many_links_and_no_more(world: World) -> None:
    path, owner = f"/v1/sessions/{world.victim.session}/shares", bearer(world.credentials["victim"])
    answers = await asyncio.gather(*(world.http.post(path, headers=owner, json={}) for _ in range(40)))
    assert sorted(each.status_code for each in answers) == [201] * 32 + [429] * 8
    assert all(each.headers["cache-control"] == "no-store" for each in answers if each.status_code == 201)
    theirs = await world.http.post(path, headers=owner, json={"item_id": world.named.item})
    assert theirs.status_code == 404
