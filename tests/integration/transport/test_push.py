"""Push through the doors: a device subscribes, and is told of an answer that nobody reads: encrypted, by ids only."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest

from sessions.model.push import GRACE_MS, address_of
from testbed.wire_client import connected
from tests.support.doors.assembly import assembled, wall_ms
from tests.support.doors.google_service import failure
from tests.support.doors.push_world import ACME, ANA, BEN, KEYS, SECRET_WORDS, PushWorld, a_push_world
from tests.support.stores.tables import is_empty, usage_in


@pytest.fixture
async def world() -> AsyncIterator[PushWorld]:
    async with a_push_world() as made:
        yield made


async def test_an_answer_that_nobody_reads_is_told_once_and_by_ids_alone(world: PushWorld) -> None:
    await world.subscribe()
    await world.subscribe("bens", BEN)
    session = await world.session()
    await world.ask(session)
    for _ in range(2):
        await world.relay.relay_batch()
    (push,) = world.service.pushes
    (response,) = [row.response_id for row in usage_in(world.server.journal.database)]
    offset = push.said["offset"]
    assert push.device == "phone" and push.said == {
        "v": 1,
        "id": f"{response}:{offset}",
        "cause": "answer",
        "session": session,
        "response": response,
        "offset": offset,
    }
    assert push.claims["sub"] == "mailto:us@example.org" and push.headers["ttl"] == "86400"
    assert push.headers["content-encoding"] == "aes128gcm" and len(push.headers["topic"]) == 32
    assert session not in str(push.headers) and SECRET_WORDS not in str(push.said)


async def test_apps_are_told_by_their_own_services_and_forgotten_when_they_say_so(world: PushWorld) -> None:
    apple, google = "0A" * 32, "c:APA91b" + "x" * 140
    made = await world.subscribe(kind="apns", token=apple, label="iPad")
    assert (made["kind"], made["service"], made["label"]) == ("apns", "apns", "iPad")
    await world.subscribe(kind="fcm", token=google)
    await world.subscribe()
    listed = await world.http.get("/v1/push/subscriptions", headers=ANA)
    assert [each["kind"] for each in listed.json()["data"]] == ["apns", "fcm", "web_push"]
    assert apple.lower() not in listed.text.lower() and google not in listed.text
    session = await world.session()
    await world.ask(session)
    await world.relay.relay_batch()
    ((push,), (told,), (message,)) = world.service.pushes, world.apple.told, world.google.told
    assert told.device == apple.lower() and told.said["sessile"] == push.said
    assert message.device == google and message.message["data"] == {name: str(each) for name, each in push.said.items()}
    for said in (told, message):
        assert SECRET_WORDS not in str(said)
    world.apple.answer = lambda device: (410, {"reason": "Unregistered"}, {})
    world.google.answer = lambda device: (404, failure("NOT_FOUND", "UNREGISTERED"), {})
    await world.ask(session, 2)
    await world.relay.relay_batch()
    kept = (await world.http.get("/v1/push/subscriptions", headers=ANA)).json()["data"]
    assert [each["kind"] for each in kept] == ["web_push"]


async def test_answers_of_one_session_are_one_push_the_newest(world: PushWorld) -> None:
    await world.subscribe()
    session = await world.session()
    for count in (1, 2, 3):
        await world.ask(session, count)
    await world.relay.relay_batch()
    (push,) = world.service.pushes
    responses = [row.response_id for row in usage_in(world.server.journal.database)]
    assert push.said["response"] == responses[-1]


async def test_no_push_where_a_device_reads_or_has_read_by_then(world: PushWorld) -> None:
    await world.subscribe()
    read, late = await world.session(), await world.session()
    async with connected(world.server.ws, auth="s3cret-of-ana") as wire:
        await wire.command("subscribe", session=read, offset=0)
        await wire.command("message.create", session=read, content="Hello.")
        await world.ended(read)
    await world.ask(late)
    assert world.server.journal.database.query("SELECT session FROM push_outbox") == [(late,)]
    async with connected(world.server.ws, auth="s3cret-of-ana") as wire:
        await wire.command("subscribe", session=late, offset=0)
        async with asyncio.timeout(60):
            while not is_empty(world.server.journal.database, "push_outbox"):
                await world.http.get("/v1/me", headers=ANA)
    await world.relay.relay_batch()
    assert world.service.pushes == []


async def test_a_device_that_is_gone_is_forgotten_and_one_that_is_busy_is_tried_again(world: PushWorld) -> None:
    await world.subscribe("gone")
    await world.subscribe("busy")
    world.service.answer = lambda device: (410, {}) if device == "gone" else (429, {"retry-after": "7"})
    await world.ask(await world.session())
    await world.relay.relay_batch()
    assert world.service.requests == 2
    assert [address_of(each.target)[-4:] for each in await world.push.subscriptions(ACME.tenant, "ana")] == ["busy"]
    ((due_at, attempts),) = world.server.journal.database.query("SELECT due_at, attempts FROM push_outbox")
    assert attempts == 1 and due_at > wall_ms() + GRACE_MS + 60_000 + 5_000
    world.service.answer = lambda device: (201, {})
    await world.relay.relay_batch()
    assert world.service.pushes == [], "not before that"
    world.ahead_ms = 8_000
    await world.relay.relay_batch()
    assert [push.device for push in world.service.pushes] == ["busy"]
    assert is_empty(world.server.journal.database, "push_outbox")


async def test_what_a_device_may_subscribe_with(world: PushWorld) -> None:
    whole = world.service.device("phone")
    other = {"p256dh": whole["keys"]["p256dh"], "auth": "short"}
    for change, param in (
        ({"endpoint": "http://push.example/x"}, "endpoint"),
        ({"endpoint": "https://10.0.0.1/x"}, "endpoint"),
        ({"endpoint": "https://[::1]/x"}, "endpoint"),
        ({"endpoint": "file:///etc/passwd"}, "endpoint"),
        ({"keys": {**whole["keys"], "p256dh": "AAAA"}}, "keys.p256dh"),
        ({"keys": other}, "keys.auth"),
        ({"quiet_hours": {"start": 0, "end": 1, "time_zone": "../etc/passwd"}}, "quiet_hours.time_zone"),
    ):
        answer = await world.http.post("/v1/push/subscriptions", json={**whole, **change}, headers=ANA)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), answer.text
    nobody = {"authorization": "Bearer s3cret-of-acme"}
    answer = await world.http.post("/v1/push/subscriptions", json=whole, headers=nobody)
    assert answer.json()["error"]["code"] == "user_required"


async def test_devices_are_listed_ended_exported_and_erased_with_their_user(world: PushWorld) -> None:
    quiet = {"start": 1320, "end": 420, "time_zone": "Europe/Berlin"}
    made = await world.subscribe(label="Ana's phone", quiet_hours=quiet)
    assert (made["label"], made["quiet_hours"], made["service"]) == ("Ana's phone", quiet, "127.0.0.1")
    assert (await world.subscribe())["id"] == made["id"], "the same device"
    listed = await world.http.get("/v1/push/subscriptions", headers=ANA)
    assert [each["id"] for each in listed.json()["data"]] == [made["id"]] and "/push/phone" not in listed.text
    assert (await world.http.get("/v1/push/subscriptions", headers=BEN)).json()["data"] == []
    ended = await world.http.delete(f"/v1/push/subscriptions/{made['id']}", headers=BEN)
    assert (ended.status_code, ended.json()["error"]["code"]) == (404, "subscription_not_found")
    exported = await world.http.get("/v1/users/ana/export", headers=ANA)
    if exported.status_code == 403:  # a key that speaks for a user administers nobody
        exported = await world.http.get("/v1/users/ana/export", headers={"authorization": "Bearer s3cret-of-acme"})
    assert made["id"] in exported.text and '"push_subscriptions":1' in exported.text
    assert (await world.http.delete(f"/v1/push/subscriptions/{made['id']}", headers=ANA)).status_code == 204
    await world.subscribe()
    await world.http.post("/v1/users/ana/erase", headers={"authorization": "Bearer s3cret-of-acme"})
    assert (await world.http.get("/v1/push/subscriptions", headers=ANA)).json()["data"] == []


async def test_a_server_without_push_says_so() -> None:
    async with assembled(keys=KEYS) as server, httpx.AsyncClient(base_url=server.server.url, timeout=60) as http:
        answer = await http.get("/v1/push", headers=ANA)  # a page asks before it offers them
        assert (answer.status_code, answer.json()["application_server_key"], answer.json()["kinds"]) == (200, "", [])
        body = {"endpoint": "https://push.example/x", "keys": {"p256dh": "x", "auth": "x"}}
        answer = await http.post("/v1/push/subscriptions", headers=ANA, json=body)
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "push_disabled")
        assert (await http.get("/v1/push/subscriptions", headers=ANA)).json()["data"] == []
