"""Push as the settings say: nothing without a key, and no start with half of what it takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from persistence.memory.store import MemoryStore
from sessions.metrics import Metrics
from sessions.model.errors import BadInput
from tests.support.doors.apple_service import APP, KEY_ID, TEAM
from tests.support.doors.google_service import GoogleService
from tests.support.doors.push_service import vapid_pem
from tests.support.stores.journals import NOW
from transport.cli.settings import Settings
from transport.push.opening import open_senders, push_door, push_relays, read_push_credentials, sends_pushes


def test_no_key_no_push() -> None:
    assert push_door(Settings()) is None
    assert push_relays(Settings(), MemoryStore().push, lambda: NOW, Metrics()) == []


def key_file(folder: Path, name: str = "push.pem") -> str:
    file = folder / name
    file.touch(0o600)
    file.write_bytes(vapid_pem())
    return str(file)


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
    service = GoogleService()
    service.port = 1
    account = str(service.account_file(tmp_path, token_uri="https://oauth2.googleapis.com/token"))
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
    service = GoogleService()
    service.port = 1
    account = str(service.account_file(tmp_path))
    for more in (apple(tmp_path, push_apns_url=url), {"push_fcm_account": account, "push_fcm_url": url}):
        with pytest.raises(BadInput) as refused:
            push_relays(Settings(**more), MemoryStore().push, lambda: NOW, Metrics())
        assert str(refused.value.param).endswith("_url")
    if url.startswith(("https://push.example/", "https://push.example?")):
        return  # a token address has a path
    with pytest.raises(BadInput, match="token_uri"):
        push_door(Settings(push_fcm_account=str(service.account_file(tmp_path, token_uri=url))))


def test_a_network_that_is_named_may_hold_a_stand_in(tmp_path: Path) -> None:
    service = GoogleService()
    service.port = 1
    account = str(service.account_file(tmp_path))
    networks = ("127.0.0.0/8",)
    settings = Settings(push_fcm_account=account, push_fcm_url=service.url, push_networks=networks)
    assert push_door(settings) is not None
    url = "https://push.example:8443/"
    assert push_door(Settings(**apple(tmp_path, push_apns_url=url), push_networks=networks)) is not None
