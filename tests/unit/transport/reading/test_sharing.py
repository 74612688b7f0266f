"""Sharing by links: what is shown, to whom, how often, and when no more."""

from __future__ import annotations

import json
from typing import Any

import httpx
import msgspec
import pytest

from sessions.limits import TenantLimits
from sessions.model import commands as cm
from sessions.model import events as ev
from sessions.model.audit import public
from sessions.model.errors import Limited
from sessions.model.types import CallId, FunctionCallOutput, InputFile, InputText, ItemId, TenantId, UnixMs
from tests.support.doors.transport import (
    TENANT,
    FakeSessions,
    begun,
    gateway_over,
    http_client,
    memory_sessions,
    message_created,
)
from transport.gateway import Gateway
from transport.reading.sharing import (
    READS_PER_ADDRESS,
    READS_PER_MINUTE,
    READS_PER_SHARE,
    READS_PER_TENANT,
    UNKNOWN_PER_MINUTE,
    ReadRate,
)


@pytest.fixture
async def sessions() -> FakeSessions:
    made = await memory_sessions()
    info = ev.SessionInfo(
        model="m", title="Bread", instructions="secret orders", metadata={"a": "secret note"}, created_at=UnixMs(1)
    )
    output = FunctionCallOutput(
        id=ItemId("o"), parent_id=ItemId("b"), call_id=CallId("c"), output="secret output", created_at=UnixMs(1)
    )
    await made.append(
        "s",
        ev.SessionCreated(info=info),
        message_created("how?", "a", None),
        message_created("so", "b", "a", "assistant"),
        ev.ItemCreated(item=output),
        message_created("secret prompt", "p", "o", "system"),
        message_created("thanks", "d", "p"),
    )
    return made


@pytest.fixture
async def gateway(sessions: FakeSessions) -> Gateway:
    return gateway_over(sessions)


async def shared(client: httpx.AsyncClient, **body: Any) -> dict[str, Any]:
    answer = await client.post("/v1/sessions/s/shares", json=body)
    assert answer.status_code == 201, answer.text
    made: dict[str, Any] = answer.json()
    return made


async def texts(client: httpx.AsyncClient, token: str) -> list[str] | int:
    answer = await client.get(f"/v1/shares/{token}")
    return [each["text"] for each in answer.json()["messages"]] if answer.status_code == 200 else answer.status_code


async def test_the_token_is_shown_once_and_stored_nowhere(gateway: Gateway) -> None:
    async with http_client(gateway) as client:
        made = await shared(client)
        listed = await client.get("/v1/sessions/s/shares")
    assert len(made["token"]) == 43 and made["token"] not in listed.text
    assert [each["id"] for each in listed.json()["data"]] == [made["id"]]
    database = gateway.store.shares._database  # type: ignore[attr-defined]
    assert made["token"] not in repr(database.shares) and made["token"] not in repr(database.audit_rows)


async def test_a_share_names_the_files_and_keeps_their_texts(sessions: FakeSessions, gateway: Gateway) -> None:
    file = InputFile(filename="pay.txt", text="secret salaries")
    for item, content in (("f", (file,)), ("g", (file, InputText(text="Who earns most?")))):
        created = message_created("", item, "d").item
        await sessions.append("s", ev.ItemCreated(item=msgspec.structs.replace(created, content=content)))
        async with http_client(gateway) as client:
            answer = await client.get(f"/v1/shares/{(await shared(client))['token']}")
        assert "secret" not in answer.text
        message = answer.json()["messages"][-1]
        assert message["files"] == ["pay.txt"] and message["text"] == ("" if item == "f" else "Who earns most?")
    filtered = cm.content_parts(cm.filtered_content((file,), "secret salaries"))
    created = message_created("", "h", "d").item
    await sessions.append("s", ev.ItemCreated(item=msgspec.structs.replace(created, content=filtered)))
    async with http_client(gateway) as client:
        answer = await client.get(f"/v1/shares/{(await shared(client))['token']}")
    assert "secret" not in answer.text and answer.json()["messages"][-1]["files"] == ["pay.txt"]


async def test_a_share_stays_as_it_was_but_for_what_is_taken_back(sessions: FakeSessions, gateway: Gateway) -> None:
    async with http_client(gateway) as client:
        token = (await shared(client))["token"]
        await sessions.append("s", message_created("later", "e", "d"), message_created("edited", "x", None))
        assert await texts(client, token) == ["how?", "so", "thanks"]
        taken = {"response_id": "", "item_id": "b", "content_index": 0, "start": 0, "end": 2, "replacement": "[gone]"}
        event = msgspec.convert({**taken, "category": "deleted", "type": "content.retracted"}, ev.ContentRetracted)
        await sessions.append("s", event)
        assert await texts(client, token) == ["how?", "[gone]", "thanks"]
        first = (await shared(client, item_id="a"))["token"]
        assert await texts(client, first) == ["how?"]


async def test_a_title_of_later_is_not_shown(sessions: FakeSessions, gateway: Gateway) -> None:
    info = ev.SessionInfo(model="m", title="Bread", metadata={"pinned": True}, created_at=UnixMs(1))
    async with http_client(gateway) as client:
        token = (await shared(client))["token"]
        titles = []
        for title in ("Bread", "Why I leave my employer", "Bread"):
            await sessions.append("s", ev.SessionUpdated(info=msgspec.structs.replace(info, title=title)))
            titles.append((await client.get(f"/v1/shares/{token}")).json()["title"])
    assert titles == ["Bread", None, None]


async def test_a_share_ends_at_once_when_it_is_revoked_or_its_session_deleted(
    sessions: FakeSessions, gateway: Gateway
) -> None:
    async with http_client(gateway) as client:
        one, two = await shared(client), await shared(client)
        path = f"/v1/sessions/s/shares/{one['id']}"
        assert (await client.delete(path)).json() == {
            "object": "session.share.deleted",
            "id": one["id"],
            "deleted": True,
        }
        assert (await client.delete(path)).status_code == 404
        assert (await texts(client, one["token"]), await texts(client, two["token"])) == (404, ["how?", "so", "thanks"])
        await sessions.append("s", ev.SessionDeleted(), deleted=True)
        assert await texts(client, two["token"]) == 404
        assert (await client.post("/v1/sessions/s/shares", json={})).status_code == 410
        unknown = (await client.get(f"/v1/shares/{'x' * 43}")).json()["error"]
        assert unknown == (await client.get(f"/v1/shares/{one['token']}")).json()["error"]
    rows = await gateway.store.audit.rows(gateway_tenant(gateway), after=0, limit=9)
    assert [public(row)["action"] for row in rows] == ["session.shared", "session.shared", "session.unshared"]


def gateway_tenant(_: Gateway) -> Any:
    return "local"


async def test_an_answer_that_is_being_written_is_not_shared(sessions: FakeSessions, gateway: Gateway) -> None:
    first, added, *rest = begun("item_z")
    assert isinstance(first, ev.ResponseCreated) and isinstance(added, ev.OutputItemAdded)
    body = msgspec.structs.replace(first.response, parent_id=ItemId("d"))
    item = msgspec.structs.replace(added.item, parent_id=ItemId("d"))
    await sessions.append(
        "s", msgspec.structs.replace(first, response=body), msgspec.structs.replace(added, item=item), *rest
    )
    async with http_client(gateway) as client:
        refused = await client.post("/v1/sessions/s/shares", json={"item_id": "item_z"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (409, "response_in_progress")
        assert (await shared(client))["item_id"] == "d"
        assert (await client.post("/v1/sessions/s/shares", json={"item_id": "nothing"})).status_code == 404
        await sessions.append("empty", ev.SessionCreated(info=ev.SessionInfo(model="m", created_at=UnixMs(1))))
        refused = await client.post("/v1/sessions/empty/shares", json={})
        assert (refused.status_code, refused.json()["error"]["code"]) == (409, "nothing_to_share")


async def test_a_tenant_that_shares_nothing_shows_nothing_either(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with http_client(gateway) as client:
        token = (await shared(client))["token"]
        monkeypatch.setitem(vars(gateway.sharing), "table", lambda _: TenantLimits(sharing=False))
        assert await texts(client, token) == 404
        refused = await client.post("/v1/sessions/s/shares", json={})
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "sharing_disabled")
        assert json.loads((await client.get("/v1/sessions/s/shares")).text)["data"]  # to be revoked


def test_looks_are_limited_by_address_and_reads_in_all() -> None:
    now = 0.0
    rate = ReadRate(lambda: now)
    for _ in range(READS_PER_ADDRESS):
        rate.take_look("127.0.0.1", b"one")
    with pytest.raises(Limited) as refused:
        rate.take_look("127.0.0.1", b"one")
    assert refused.value.retry_after_ms is not None and refused.value.retry_after_ms > 0
    rate.take_look("127.0.0.2", b"one")
    for number in range(READS_PER_MINUTE):
        rate.take_read(str(number).encode(), TenantId(f"t{number}"))
    with pytest.raises(Limited):
        rate.take_read(b"another", TENANT)
    with pytest.raises(Limited):
        rate.take_look("127.0.0.2", str(READS_PER_MINUTE - 1).encode())  # a read of what was there a moment ago
    now = 1.0
    rate.take_look("127.0.0.1", b"one")
    rate.take_read(b"one", TENANT)


def test_a_link_that_is_read_from_everywhere_takes_nobody_else_s_reads() -> None:
    rate = ReadRate(lambda: 0.0)
    hers, others = TenantId("hers"), TenantId("others")

    def reads(token: bytes, tenant: TenantId) -> int:
        """How often a link is read, from as many addresses as it takes."""
        for number in range(READS_PER_MINUTE):
            address = f"10.{token[0]}.{number // 250}.{number % 250}"
            try:
                rate.take_look(address, token)
                rate.take_read(token, tenant)
            except Limited:
                return number
        return READS_PER_MINUTE

    assert reads(b"1", hers) == READS_PER_SHARE
    assert sum(reads(bytes((number,)), hers) for number in range(2, 20)) == READS_PER_TENANT - READS_PER_SHARE
    assert reads(b"o", others) == READS_PER_SHARE


def test_guesses_from_everywhere_have_a_bound_that_who_has_a_token_does_not_meet() -> None:
    rate = ReadRate(lambda: 0.0)
    rate.take_look("127.0.0.1", b"good")
    rate.take_read(b"good", TENANT)
    for number in range(1, UNKNOWN_PER_MINUTE):
        rate.take_look(f"10.0.{number // 250}.{number % 250}", str(number).encode())
    with pytest.raises(Limited):
        rate.take_look("127.0.0.2", b"guess")
    rate.take_look("127.0.0.1", b"good")
    rate.forget(b"good")  # revoked
    with pytest.raises(Limited):
        rate.take_look("127.0.0.1", b"good")
