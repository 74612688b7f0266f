"""Keys, tickets, origins and host names."""

from __future__ import annotations

from typing import Any

import pytest

from sessions.model.errors import Forbidden, Limited, Unauthorized
from sessions.model.types import LOCAL_PRINCIPAL, Principal, TenantId
from transport.auth import tickets
from transport.auth.authenticator import Authenticator, is_loopback, key_digest

ALICE = Principal(tenant=TenantId("acme"), key_id="k1", user="alice")


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def guarded(clock: Clock | None = None, **options: Any) -> Authenticator:
    return Authenticator({key_digest("sk-good"): ALICE}, clock=clock or Clock(), **options)


def test_a_key_is_its_principal_and_everything_else_is_nobody() -> None:
    door = guarded()
    assert door.authenticate("sk-good") == ALICE
    for wrong in (
        None,
        "",
        "sk-goo",
        "SK-GOOD",
        key_digest("sk-good"),
        "x" * 1_000_000,
        "sk-g\N{CYRILLIC SMALL LETTER O}od",
    ):
        with pytest.raises(Unauthorized) as caught:
            door.authenticate(wrong)
        assert caught.value.code == "unauthorized"


def test_without_keys_everyone_is_the_local_principal() -> None:
    door = Authenticator({}, clock=Clock())
    assert door.open
    assert door.authenticate(None) == door.authenticate("anything") == LOCAL_PRINCIPAL


async def test_a_ticket_is_good_once_and_for_30_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    door = guarded(clock)
    first, second, third = [await door.issue_ticket(ALICE) for _ in range(3)]
    assert len({first, second, third}) == 3
    assert await door.redeem_ticket(first) == ALICE
    for used in (first, "tkt_made_up", ""):
        with pytest.raises(Unauthorized):
            await door.redeem_ticket(used)
    clock.now += 29.9
    assert await door.redeem_ticket(second) == ALICE
    clock.now += 0.1
    with pytest.raises(Unauthorized):
        await door.redeem_ticket(third)
    monkeypatch.setattr(tickets, "TICKETS_MAX", 2)
    await door.issue_ticket(ALICE)
    await door.issue_ticket(ALICE)
    with pytest.raises(Limited) as caught:
        await door.issue_ticket(ALICE)
    assert caught.value.retry_after_ms == 30_000
    clock.now += 31
    assert await door.issue_ticket(ALICE)


@pytest.mark.parametrize(
    "host", ["localhost:8080", "127.0.0.1", "127.0.0.1:1", "[::1]:8080", "LOCALHOST", "box.lan:8080"]
)
def test_an_open_server_answers_on_names_of_this_machine(host: str) -> None:
    Authenticator({}, clock=Clock(), hosts=["box.lan"]).check_host(host)


@pytest.mark.parametrize(
    "host",
    [
        None,
        "",
        "evil.example",
        "localhost.evil.example",
        "127.0.0.1.evil.example:8080",
        "127.0.0.1/x",
        "0.0.0.0",
        "user@evil.example",
        "[",
    ],
)
def test_an_open_server_does_not_answer_on_others(host: str | None) -> None:
    with pytest.raises(Forbidden):
        Authenticator({}, clock=Clock()).check_host(host)
    guarded().check_host(host)


@pytest.mark.parametrize(
    "origin",
    [
        None,
        "http://chat.example:8080",
        "https://chat.example:8080",
        "https://Other.Example",
        "HTTP://CHAT.EXAMPLE:8080",
    ],
)
def test_programs_our_own_page_and_listed_pages_may_connect(origin: str | None) -> None:
    guarded(origins=["https://other.example/"]).check_origin(origin, "chat.example:8080")


@pytest.mark.parametrize(
    "origin",
    [
        "null",
        "",
        "https://evil.example",
        "http://chat.example",
        "http://chat.example:8080.evil.example",
        "file://",
        "chat.example:8080",
    ],
)
def test_other_pages_may_not(origin: str) -> None:
    with pytest.raises(Forbidden):
        guarded(origins=["https://other.example"]).check_origin(origin, "chat.example:8080")
    guarded(origins=["*"]).check_origin(origin, "chat.example:8080")


def test_loopback() -> None:
    assert all(is_loopback(host) for host in ("localhost", "127.0.0.1", "127.9.9.9", "::1", "[::1]", "LocalHost"))
    assert not any(
        is_loopback(host) for host in ("0.0.0.0", "::", "", "192.168.1.2", "example.com", "127.0.0.1.nip.io")
    )
