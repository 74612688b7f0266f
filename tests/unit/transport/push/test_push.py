"""Push: who subscribes with what, which keys it takes, and the relay."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from persistence.memory.store import MemoryStore
from persistence.sql.push import SqlPush
from sessions.metrics import Metrics
from sessions.model.errors import BadInput, Forbidden, Unavailable
from sessions.model.push import (
    GRACE_MS,
    KEPT_MS,
    SUBSCRIPTIONS_MAX,
    ApnsTarget,
    FcmTarget,
    PushDelivery,
    PushSubscription,
    QuietHours,
    WebPushTarget,
)
from sessions.model.types import UnixMs
from sessions.public_addresses import AddressRules
from tests.support.doors.apple_service import APP, KEY_ID, TEAM
from tests.support.doors.google_service import GoogleService
from tests.support.doors.push_service import PushService, vapid_key, vapid_pem
from tests.support.stores.journals import ACME, NOW
from tests.support.stores.push_rows import a_device, noted
from transport.cli.settings import Settings
from transport.push.credentials import open_senders, read_push_credentials
from transport.push.door import PushDoor
from transport.push.key_files import BYTES_MAX, p256_key, read_key_file
from transport.push.opening import push_door, push_relays
from transport.push.quiet_hours import quiet_until
from transport.push.relay import CLAIM_MS, IN_FLIGHT_MAX, OF_ONE_USER_MAX, RETRY_MAX_MS, RETRY_MS, PushRelay
from transport.push.send_result import SendResult
from transport.push.settings import sends_pushes
from transport.push.vapid import read_vapid_key


def test_keys_and_addresses_are_looked_at() -> None:
    door = PushDoor(vapid_key().public, AddressRules())
    service = PushService()
    service.port = 1
    good = WebPushTarget(endpoint="https://push.example/x", **service.device("phone")["keys"])
    door.check(good, QuietHours(start=0, end=1, time_zone="UTC"))
    for change, param in (
        ({"endpoint": "https://[::1"}, "endpoint"),
        ({"p256dh": "A" * 87}, "keys.p256dh"),
        ({"p256dh": "ü"}, "keys.p256dh"),
        ({"auth": "AAAA"}, "keys.auth"),
        ({"auth": "ü"}, "keys.auth"),
    ):
        with pytest.raises(BadInput) as refused:
            door.check(msgspec.structs.replace(good, **change), None)
        assert refused.value.param == param
    for zone in ("", "/etc/passwd", "Nowhere"):
        with pytest.raises(BadInput):
            door.check(good, QuietHours(start=0, end=1, time_zone=zone))


def test_tokens_of_apps_are_looked_at_and_only_kinds_that_are_sent_are_taken() -> None:
    door = PushDoor("", AddressRules(), ("apns", "fcm"))
    door.check(ApnsTarget(token="0a" * 32), None)
    door.check(FcmTarget(token="c" * 11 + ":APA91b_-" + "x" * 140), None)
    hostile = ("", "0a" * 31, "0A" * 32, "0a" * 101, "0a" * 32 + "\n", "../" * 30, "0a" * 32 + "/../x", "ü" * 64)
    for token in hostile:
        with pytest.raises(BadInput) as refused:
            door.check(ApnsTarget(token=token), None)
        assert refused.value.param == "token"
    for token in ("", "x" * 31, "x" * 2049, "x" * 40 + '"', "x" * 40 + "\r\n", "../" * 30):
        with pytest.raises(BadInput):
            door.check(FcmTarget(token=token), None)
    with pytest.raises(BadInput) as refused:
        door.check(WebPushTarget(endpoint="https://push.example/x", p256dh="", auth=""), None)
    assert refused.value.param == "kind" and "apns, fcm" in refused.value.public_message


@pytest.mark.parametrize("mode", [0o640, 0o644, 0o620, 0o604, 0o610, 0o666, 0o777])
def test_a_key_that_others_may_read_or_change_is_refused(tmp_path: Path, mode: int) -> None:
    file = tmp_path / "key.pem"
    file.write_bytes(vapid_pem())
    file.chmod(mode)
    with pytest.raises(BadInput, match="chmod 600") as refused:
        p256_key("push_key", str(file), "?")
    assert refused.value.param == "push_key"
    file.chmod(0o400)
    assert p256_key("push_key", str(file), "?").curve.name == "secp256r1"


def test_what_is_no_file_is_refused_at_once(tmp_path: Path) -> None:
    pipe, large = tmp_path / "pipe", tmp_path / "large"
    os.mkfifo(pipe, 0o600)
    large.touch(0o600)
    large.write_bytes(b"x" * (BYTES_MAX + 1))
    for path, words in (
        (pipe, "no file"),
        (tmp_path, "no file|directory"),
        (large, "more than"),
        (tmp_path / "none", "No such file"),
    ):
        with pytest.raises(BadInput, match=words) as refused:
            read_key_file("push_apns_key", str(path), "make one")
        assert refused.value.param == "push_apns_key"


def test_no_key_no_push() -> None:
    assert push_door(Settings()) is None
    assert push_relays(Settings(), MemoryStore().push, lambda: NOW, Metrics()) == []


def key_file(folder: Path, name: str = "push.pem") -> str:
    file = folder / name
    file.touch(0o600)
    file.write_bytes(vapid_pem())
    return str(file)


def account_file(folder: Path, **more: Any) -> str:
    service = GoogleService()
    service.port = 1
    return str(service.account_file(folder, **more))


def apple(folder: Path, **more: Any) -> dict[str, Any]:
    key = key_file(folder, "apple.p8")
    ids = {"push_apns_key_id": KEY_ID, "push_apns_team": TEAM, "push_apns_app": APP}
    return {"push_apns_key": key, **ids, **more}


@pytest.mark.parametrize(
    ("more", "flags"),
    [
        ({"push_contact": "mailto:us@example.org"}, ["--push-key"]),
        ({"push_networks": ("10.1.0.0/16",)}, ["--push-key", "--push-apns-key", "--push-fcm-account"]),
        ({"push_apns_key_id": KEY_ID}, ["--push-apns-key"]),
        ({"push_apns_team": TEAM}, ["--push-apns-key"]),
        ({"push_apns_app": APP}, ["--push-apns-key"]),
        ({"push_apns_url": "https://push.example"}, ["--push-apns-key"]),
        ({"push_fcm_url": "https://push.example"}, ["--push-fcm-account"]),
    ],
)
def test_what_says_how_to_send_wants_a_key_to_send_with(more: dict[str, Any], flags: list[str]) -> None:
    for opened in (push_door, lambda all_: push_relays(all_, MemoryStore().push, lambda: NOW, Metrics())):
        with pytest.raises(BadInput) as refused:
            opened(Settings(**more))
        assert refused.value.param == next(iter(more))
        assert all(f"{flag} FILE" in refused.value.public_message for flag in flags)


def test_one_ways_key_is_none_for_another_ways_settings(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="--push-key FILE"):
        push_door(Settings(**apple(tmp_path), push_contact="mailto:us@example.org"))
    with pytest.raises(BadInput, match="--push-fcm-account FILE"):
        push_door(Settings(**apple(tmp_path), push_fcm_url="https://push.example"))


async def test_a_key_opens_the_door_and_relays(tmp_path: Path) -> None:
    settings = Settings(push_key=key_file(tmp_path), push_contact="mailto:us@example.org")
    door = push_door(settings)
    assert door is not None and len(door.public_key) == 87 and door.kinds == ("web_push",)
    (relay,) = push_relays(settings, MemoryStore().push, lambda: NOW, Metrics())
    relay.close()
    with pytest.raises(BadInput, match="push_contact"):
        push_door(Settings(push_key=settings.push_key))


async def test_apples_and_googles_keys_do_without_a_browsers(tmp_path: Path) -> None:
    account = account_file(tmp_path, token_uri="https://oauth2.googleapis.com/token")
    settings = Settings(**apple(tmp_path), push_fcm_account=account)
    assert sends_pushes(settings) and not sends_pushes(Settings())
    door = push_door(settings)
    assert door is not None and door.public_key == "" and door.kinds == ("apns", "fcm")
    async with open_senders(read_push_credentials(settings), app=APP) as senders:
        assert senders.kinds == door.kinds
    (relay,) = push_relays(settings, MemoryStore().push, lambda: NOW, Metrics())
    relay.close()


def test_what_is_wrong_with_a_setting_is_said_with_its_name(tmp_path: Path) -> None:
    for more in (
        {"push_apns_key_id": "abc"},
        {"push_apns_team": TEAM + "\n"},
        {"push_apns_app": "com.example.chat\r\nx: y"},
        {"push_apns_key": str(tmp_path / "none")},
    ):
        with pytest.raises(BadInput) as refused:
            push_door(Settings(**apple(tmp_path, **more)))
        assert refused.value.param == next(iter(more))


@pytest.mark.parametrize(
    "url",
    [
        "http://push.example",
        "http://127.0.0.1:1",
        "https://127.0.0.1",
        "https://10.0.0.1",
        "https://[::1]",
        "https://169.254.169.254",
        "https://u:p@push.example",
        "https://push.example/path",
        "https://push.example?x=",
        "https://push.example:port",
        "file:///etc/passwd",
        "push.example",
    ],
)
def test_another_server_in_the_place_of_apples_or_googles_is_held_to_the_same_rules(tmp_path: Path, url: str) -> None:
    account = account_file(tmp_path)
    for more in (apple(tmp_path, push_apns_url=url), {"push_fcm_account": account, "push_fcm_url": url}):
        with pytest.raises(BadInput) as refused:
            push_relays(Settings(**more), MemoryStore().push, lambda: NOW, Metrics())
        assert str(refused.value.param).endswith("_url")
    if url.startswith(("https://push.example/", "https://push.example?")):
        return  # a token address has a path
    with pytest.raises(BadInput, match="token_uri"):
        push_door(Settings(push_fcm_account=account_file(tmp_path, token_uri=url)))


def test_a_network_that_is_named_may_hold_a_stand_in(tmp_path: Path) -> None:
    account = account_file(tmp_path)
    networks = ("127.0.0.0/8",)
    settings = Settings(push_fcm_account=account, push_fcm_url="http://127.0.0.1:1", push_networks=networks)
    assert push_door(settings) is not None
    url = "https://push.example:8443/"
    assert push_door(Settings(**apple(tmp_path, push_apns_url=url), push_networks=networks)) is not None


BERLIN = ZoneInfo("Europe/Berlin")


def at(day: int, hour: int, minute: int = 0, zone: ZoneInfo = BERLIN) -> UnixMs:
    return UnixMs(int(datetime(2026, 11, day, hour, minute, tzinfo=zone).timestamp() * 1000))


def test_a_night_ends_in_the_morning() -> None:
    night = QuietHours(start=22 * 60, end=7 * 60 + 30, time_zone="Europe/Berlin")
    assert quiet_until(night, at(3, 22)) == at(4, 7, 30)
    assert quiet_until(night, at(4, 0)) == at(4, 7, 30)
    assert quiet_until(night, at(4, 7, 29)) == at(4, 7, 30)
    assert quiet_until(night, at(4, 7, 30)) is None and quiet_until(night, at(3, 21, 59)) is None


def test_no_hours_and_zones_that_are_not_known_any_more() -> None:
    assert quiet_until(None, at(3, 3)) is None
    assert quiet_until(QuietHours(start=60, end=60, time_zone="Europe/Berlin"), at(3, 1)) is None
    lost = QuietHours(start=0, end=60, time_zone="Nowhere/Atlantis")
    inside = UnixMs(int(datetime(2026, 11, 3, 0, 30, tzinfo=UTC).timestamp() * 1000))
    assert quiet_until(lost, inside) == UnixMs(inside + 30 * 60_000)


class Sender:
    def __init__(self, *results: SendResult | Exception) -> None:
        self.results = list(results)
        self.sent: list[PushDelivery] = []

    async def send(self, delivery: PushDelivery, to: PushSubscription, now: UnixMs) -> SendResult:
        self.sent.append(delivery)
        result = self.results.pop(0) if self.results else SendResult("sent")
        if isinstance(result, Exception):
            raise result
        return result


class World:
    def __init__(self, *results: SendResult | Exception) -> None:
        self.now = UnixMs(NOW + GRACE_MS)
        self.store, self.sender = MemoryStore(), Sender(*results)
        self.push = SqlPush(self.store.database)
        self.relay = PushRelay(self.push, self.sender, now_ms=lambda: self.now, metrics=Metrics())

    async def with_notice(self, **more: Any) -> World:
        await self.store.open()
        await self.push.subscribe(a_device("phone", **more))
        await noted(self.store.journal)
        return self

    @property
    def due(self) -> list[int]:
        return [due_at - self.now for (due_at,) in self.store.database.query("SELECT due_at FROM push_outbox")]


async def test_retries_wait_longer_each_time_and_end() -> None:
    world = await World(*[SendResult("later")] * 20).with_notice()
    waits = []
    for _ in range(14):
        await world.relay.relay_batch()
        waits += world.due
        world.now = UnixMs(world.now + world.due[0])
    assert waits[:3] == [RETRY_MS, 2 * RETRY_MS, 4 * RETRY_MS] and max(waits) == RETRY_MAX_MS
    world.now = UnixMs(NOW + KEPT_MS)
    num_sent = len(world.sender.sent)
    await world.relay.relay_batch()
    assert world.due == [] and len(world.sender.sent) == num_sent, "too old to be of use"


@pytest.mark.parametrize("failure", [Unavailable("push_service_away", "?"), SendResult("later")])
async def test_a_service_that_is_away_costs_no_push(failure: SendResult | Exception) -> None:
    world = await World(failure).with_notice()
    await world.relay.relay_batch()
    world.now = UnixMs(world.now + RETRY_MS)
    await world.relay.relay_batch()
    assert len(world.sender.sent) == 2 and world.due == []


@pytest.mark.parametrize("failure", [Forbidden("forbidden", "inside"), SendResult("refused")])
async def test_what_will_never_do_is_not_tried_again(failure: SendResult | Exception) -> None:
    world = await World(failure).with_notice()
    await world.relay.relay_batch()
    assert world.due == [] and len(await world.push.subscriptions(ACME, "ü")) == 1


async def test_quiet_hours_put_it_off() -> None:
    minute = (NOW + GRACE_MS) // 60_000 % (24 * 60)
    quiet = QuietHours(start=(minute - 1) % 1440, end=(minute + 10) % 1440, time_zone="UTC")
    world = await World().with_notice(quiet=quiet)
    await world.relay.relay_batch()
    assert world.sender.sent == [] and 0 < world.due[0] <= 10 * 60_000
    world.now = UnixMs(world.now + world.due[0])
    await world.relay.relay_batch()
    assert len(world.sender.sent) == 1


async def test_a_bug_with_one_row_costs_that_attempt_alone() -> None:
    world = await World(ValueError("Port out of range")).with_notice()
    await noted(world.store.journal, "t")
    await world.relay.relay_batch()
    assert len(world.sender.sent) == 2 and world.due == [CLAIM_MS]


async def test_a_device_that_does_not_answer_is_asked_once_for_all_its_sessions() -> None:
    world = await World(SendResult("later"), SendResult("sent")).with_notice()
    await world.relay.relay_batch()
    for session in ("t", "u", "v"):
        await noted(world.store.journal, session)
    await world.relay.relay_batch()
    assert len(world.sender.sent) == 1 and world.due == [RETRY_MS] * 4
    world.now = UnixMs(world.now + RETRY_MS)
    await world.relay.relay_batch()
    assert len(world.sender.sent) == 5 and world.due == []


class Hanging(Sender):
    """Answers nobody but Ana."""

    def __init__(self) -> None:
        super().__init__()
        self.on_their_way = Counter[str]()
        self.full = asyncio.Event()
        self.told = asyncio.Event()

    async def send(self, delivery: PushDelivery, to: PushSubscription, now: UnixMs) -> SendResult:
        if to.user == "ana":
            self.told.set()
            return SendResult("sent")
        self.on_their_way[to.user] += 1
        if self.on_their_way.total() in (2 * OF_ONE_USER_MAX, IN_FLIGHT_MAX):
            self.full.set()
        await asyncio.Event().wait()
        raise AssertionError


@asynccontextmanager
async def hanging_world(users: Sequence[str]) -> AsyncIterator[tuple[World, Hanging]]:
    """A running relay. Each of the users has all the devices that a user may have, and four answers to be told of."""
    world, sender = World(), Hanging()
    await world.store.open()
    world.relay = PushRelay(world.push, sender, now_ms=lambda: world.now, metrics=Metrics())
    for user in users:
        for number in range(SUBSCRIPTIONS_MAX):
            await world.push.subscribe(a_device(f"{user}-{number}", user))
        for session in range(4):
            await noted(world.store.journal, f"{user}-{session}", user=user)
    running = asyncio.create_task(world.relay.run())
    try:
        async with asyncio.timeout(60):
            yield world, sender
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_what_never_answers_holds_up_nobody_else_and_a_user_has_a_share_at_a_time() -> None:
    async with hanging_world(["ü", "ben"]) as (world, sender):
        await sender.full.wait()
        await world.push.subscribe(a_device("anas", "ana"))
        await noted(world.store.journal, "anas", user="ana")
        await sender.told.wait()
        assert sender.on_their_way == {"ü": OF_ONE_USER_MAX, "ben": OF_ONE_USER_MAX}
        put_off = [due for due in world.due if due < CLAIM_MS]
        assert len(put_off) == 2 * 3 * SUBSCRIPTIONS_MAX and set(put_off) == {RETRY_MS}


async def test_so_many_are_on_their_way_from_one_relay() -> None:
    async with hanging_world([str(number) for number in range(IN_FLIGHT_MAX // OF_ONE_USER_MAX + 2)]) as (_, sender):
        while sender.on_their_way.total() < IN_FLIGHT_MAX:
            sender.full.clear()
            await sender.full.wait()
        for _ in range(100):
            await asyncio.sleep(0)
        assert sender.on_their_way.total() == IN_FLIGHT_MAX
        assert max(sender.on_their_way.values()) == OF_ONE_USER_MAX


CONTACT = "mailto:us@example.org"


def test_what_is_no_key_is_refused_with_what_to_do(tmp_path: Path) -> None:
    other = rsa.generate_private_key(65537, 2048).private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    for text, words in ((b"no key", "no private key"), (other, "P-256"), (None, "No such file")):
        file = tmp_path / "push.pem"
        file.unlink(missing_ok=True)
        if text is not None:
            file.touch(0o600)
            file.write_bytes(text)
        with pytest.raises(BadInput, match=words) as refused:
            read_vapid_key(str(file), CONTACT)
        assert "openssl" in refused.value.public_message
    for contact in ("us", "mailto:", "mailto:us", "https://", "http://a.example", "mailto:a b@c", "mailto:a@b\n"):
        with pytest.raises(BadInput, match="push_contact"):
            read_vapid_key(str(tmp_path / "push.pem"), contact)
