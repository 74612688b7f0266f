"""Attacks on push: addresses inside the network, addresses and tokens that are none, devices of others, keys that
others may read, push services that lie, wait or flood, and subscriptions without end."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from persistence.sql.push import PushBody
from sessions.model.push import SUBSCRIPTIONS_MAX, ApnsTarget, FcmTarget, WebPushTarget
from testbed.server_process import ROOT
from tests.support.doors.google_service import GoogleService
from tests.support.doors.push_service import vapid_pem
from tests.support.doors.push_world import ACME, ANA, BEN, PushWorld, a_push_world
from tests.support.stores.tables import is_empty

SUBSCRIPTIONS = "/v1/push/subscriptions"
APPLE, GOOGLE = "0a" * 32, "c:APA91b" + "x" * 140

ADDRESSES = (  # most of those that nothing can be sent to ended the relay, for everybody
    "http://push.example/x",
    "https://127.0.0.1:99999/x",
    "https://127.0.0.1:0/x",
    "https://127.0.0.1/\x01",
    "https://10.0.0.1/x",
    "https://169.254.169.254/latest/meta-data/",
    "https://168.63.129.16/x",
    "https://192.0.0.192/x",
    "https://[::10.0.0.1]/x",
    "https://[fec0::1]/x",
    "https://[64:ff9b::a9fe:a9fe]/x",
    "https://[2002:a00:1::]/x",
    "https://b\u00fccher.example/x",
    "https://push.example:\u0663/x",
    "https://[::1]/x",
    "https://[::ffff:10.0.0.1]/x",
    "https://[64:ff9b::10.0.0.1]/x",
    "https://[fd00::1]/x",
    "https://100.64.0.1/x",
    "https://ana:secret@push.example/x",
    "https://push.example\\@10.0.0.1/x",
    "https://push.example:99999/x",
    "https://push.example:port/x",
    "https://push.example:0/x",
    "https://push.example/a\r\nx-injected: 1",
    "https://push.exa\0mple/x",
    "https://é.example/x",
    "https://[v1.x]/x",
    "https://[::1",
    "https://" + "a" * 64 + ".example/x",
    "//push.example/x",
    "file:///etc/passwd",
    "javascript:alert(1)",
)
APPLE_TOKENS = ("", "0a" * 31, "0a" * 32 + "/../../x", "0a" * 32 + "?x", "0a" * 32 + "\r\nx: y", "é" * 64, "zz" * 32)
GOOGLE_TOKENS = ("", "x" * 31, "x" * 40 + '","topic":"all', "x" * 40 + "\n", "../" * 40, "é" * 64)


def refused_start(folder: Path, *flags: str) -> str:
    """What a server says that does not start."""
    command = [sys.executable, "app.py", "serve", "--engine", "sim", "--port", "0", "--data", str(folder / "data")]
    run = subprocess.run([*command, *flags], cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    assert run.returncode != 0, run.stdout
    return run.stdout + run.stderr


@pytest.fixture
async def world() -> AsyncIterator[PushWorld]:
    async with a_push_world() as made:
        yield made


async def test_addresses_inside_and_tokens_that_are_none_are_refused_by_their_name(world: PushWorld) -> None:
    browser = world.service.device("phone")
    bodies: list[tuple[dict[str, Any], str]] = [
        *(({**browser, "endpoint": each}, "endpoint") for each in ADDRESSES),
        *(({"kind": "apns", "token": each}, "token") for each in APPLE_TOKENS),
        *(({"kind": "fcm", "token": each}, "token") for each in GOOGLE_TOKENS),
        ({"kind": "fcm", "token": GOOGLE, "sandbox": True}, "sandbox"),
        ({"kind": "apns", "token": APPLE, "endpoint": "https://push.example/x"}, "endpoint"),
        ({"kind": "apns"}, "token"),
        ({"kind": "web_push", "token": APPLE}, "endpoint"),
        ({"endpoint": "https://push.example/x"}, "keys"),
        ({"kind": "email", "token": "ana@example.org"}, "kind"),
        ({**browser, "token": GOOGLE}, "token"),
    ]
    for body, param in bodies:
        answer = await world.http.post(SUBSCRIPTIONS, json=body, headers=ANA)
        assert answer.status_code == 400 and answer.json()["error"]["param"].split(".")[0] == param, answer.text
    assert (await world.http.get(SUBSCRIPTIONS, headers=ANA)).json()["data"] == []


async def test_an_address_that_came_in_before_it_was_refused_ends_no_relay(world: PushWorld) -> None:
    """As stored by an earlier release: such a port used to end the relay, and the process with it."""
    database = world.server.journal.database
    for first in range(0, len(ADDRESSES), SUBSCRIPTIONS_MAX):
        for number, endpoint in enumerate(ADDRESSES[first : first + SUBSCRIPTIONS_MAX]):
            keys = world.service.device(str(number))["keys"]
            made = await world.subscribe(str(number))
            body = msgspec.json.encode(PushBody(WebPushTarget(endpoint=endpoint, **keys), "", None))
            database.query("UPDATE push_subscriptions SET body = ?1 WHERE id = ?2", body, made["id"])
        await world.ask(await world.session())
        await world.relay.relay_batch()
    assert world.service.requests == 0 and is_empty(world.server.journal.database, "push_outbox")
    await world.subscribe("bens", BEN)
    await world.ask(await world.session(auth="s3cret-of-ben"), auth="s3cret-of-ben")
    await world.relay.relay_batch()
    assert [push.device for push in world.service.pushes] == ["bens"]


async def test_a_device_is_its_last_users_and_nobody_else_ends_or_sees_it(world: PushWorld) -> None:
    made = await world.subscribe(kind="apns", token=APPLE)
    for method, path in (("DELETE", f"{SUBSCRIPTIONS}/{made['id']}"), ("GET", SUBSCRIPTIONS)):
        answer = await world.http.request(method, path, headers=BEN)
        assert answer.status_code == 404 or answer.json()["data"] == []
        assert APPLE not in answer.text
    await world.ask(await world.session())
    # Who has the phone, and with it the token, is who is told; what waited for the one before is dropped.
    await world.subscribe(headers=BEN, kind="apns", token=APPLE.upper())
    await world.relay.relay_batch()
    assert world.apple.told == [] and (await world.http.get(SUBSCRIPTIONS, headers=ANA)).json()["data"] == []
    await world.ask(await world.session())
    await world.relay.relay_batch()
    assert world.apple.told == [], "Ben is told of nothing of Ana's"


async def test_no_answer_log_or_export_has_a_token_or_an_address(world: PushWorld) -> None:
    with capture_logs() as logs:
        await world.subscribe(kind="apns", token=APPLE)
        await world.subscribe(kind="fcm", token=GOOGLE)
        await world.subscribe("very-secret-device")
        world.apple.answer = lambda device: (400, {"reason": "x\r\nforged: line" * 9}, {})
        world.google.answer = lambda device: (503, {"error": {"status": "\x1b[31m"}}, {})
        world.service.answer = lambda device: (500, {})
        await world.ask(await world.session())
        await world.relay.relay_batch()
    service = {"authorization": ANA["authorization"]}
    exported = await world.http.get("/v1/users/ana/export", headers=service)
    assert exported.text.count('"object":"push_subscription"') == 3
    for text in (str(logs), exported.text):
        for secret in (APPLE, GOOGLE, "very-secret-device", "forged", "\x1b[31m", "\\x1b"):
            assert secret not in text
    assert any(entry["event"] == "push_not_taken" for entry in logs)


async def test_a_service_that_never_answers_holds_up_nobody_elses_pushes(world: PushWorld) -> None:
    await world.subscribe("anas")
    hang = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await hang.wait()
        writer.close()

    slow = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = slow.sockets[0].getsockname()[1]
    for n in range(16):
        body = {**world.service.device("x"), "endpoint": f"http://127.0.0.1:{port}/{n}"}
        made = await world.http.post("/v1/push/subscriptions", json=body, headers=BEN)
        assert made.status_code == 201, made.text
    for _ in range(4):  # 64 rows: four times as many as he may have on their way
        await world.ask(await world.session(auth="s3cret-of-ben"), auth="s3cret-of-ben")
    running = asyncio.create_task(world.relay.run())
    try:
        await world.ask(await world.session())
        assert [push.device for push in await world.service.wait_for(1)] == ["anas"]
    finally:
        running.cancel()
        hang.set()
        await asyncio.gather(running, return_exceptions=True)
        slow.close()


async def test_nobody_ends_a_device_of_another_user_or_tells_its_id(world: PushWorld) -> None:
    made = await world.subscribe()
    ended = await world.http.delete(f"/v1/push/subscriptions/{made['id']}", headers=BEN)
    none = await world.http.delete(f"/v1/push/subscriptions/push_{'0' * 24}", headers=BEN)
    assert ended.status_code == none.status_code == 404
    assert ended.text.replace(made["id"], "") == none.text.replace(f"push_{'0' * 24}", "")
    assert len(await world.push.subscriptions(ACME.tenant, "ana")) == 1


@pytest.mark.parametrize(
    "zone", ["../../../etc/passwd", "/etc/passwd", "Europe", "\0", ".", "posixrules/../..", "Europe/Berlin\n", "🕛"]
)
async def test_a_time_zone_is_no_path(world: PushWorld, zone: str) -> None:
    body = {**world.service.device("phone"), "quiet_hours": {"start": 0, "end": 1, "time_zone": zone}}
    answer = await world.http.post("/v1/push/subscriptions", json=body, headers=ANA)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "quiet_hours.time_zone"), answer.text


async def test_a_push_service_that_redirects_floods_or_lies_moves_nothing(world: PushWorld) -> None:
    await world.subscribe("elsewhere")
    await world.subscribe(kind="fcm", token=GOOGLE)
    world.service.answer = lambda device: (308, {"location": world.service.device("inside")["endpoint"]})
    world.google.answer = lambda device: (200, {"name": "x" * 1_000_000}, {})
    await world.ask(await world.session())
    await world.relay.relay_batch()
    assert world.service.requests == 1 and world.service.pushes == [] and len(world.google.told) == 1
    assert is_empty(world.server.journal.database, "push_outbox")


async def test_subscriptions_have_an_end(world: PushWorld) -> None:
    for number in range(SUBSCRIPTIONS_MAX):
        await world.subscribe(kind="fcm", token=f"{number:040}")
    answer = await world.http.post(SUBSCRIPTIONS, json={"kind": "fcm", "token": "y" * 40}, headers=ANA)
    assert (answer.status_code, answer.json()["error"]["code"]) == (429, "quota_exceeded")
    again = await world.http.post(SUBSCRIPTIONS, json={"kind": "fcm", "token": f"{3:040}"}, headers=ANA)
    assert again.status_code == 201, "a device that is there may say anew what it wants"
    at_once = await asyncio.gather(
        *(
            world.http.post(SUBSCRIPTIONS, json={"kind": "apns", "token": f"{number:064x}"}, headers=BEN)
            for number in range(3 * SUBSCRIPTIONS_MAX)
        )
    )
    statuses = [each.status_code for each in at_once]
    assert set(statuses) == {201, 429} and statuses.count(201) == SUBSCRIPTIONS_MAX
    kept = await world.push.subscriptions(ACME.tenant, "ben")
    assert len(kept) == SUBSCRIPTIONS_MAX and all(isinstance(each.target, ApnsTarget | FcmTarget) for each in kept)


def test_a_server_does_not_start_with_keys_that_others_may_read_or_with_addresses_inside(tmp_path: Path) -> None:
    google = GoogleService()
    google.port = 1
    key, account = tmp_path / "key.pem", google.account_file(tmp_path, token_uri="https://oauth2.googleapis.com/token")
    key.write_bytes(vapid_pem())
    key.chmod(0o600)
    apple = ["--push-apns-key", str(key), "--push-apns-key-id", "ABC123DEFG", "--push-apns-team", "DEF123GHIJ"]
    apple += ["--push-apns-app", "com.example.chat"]
    said = refused_start(tmp_path, "--push-fcm-account", str(account), "--push-fcm-url", "https://10.0.0.1")
    assert "push_fcm_url" in said and "PRIVATE" not in said
    key.chmod(0o640)
    said = refused_start(tmp_path, *apple)
    assert "chmod 600" in said and "PRIVATE" not in said
