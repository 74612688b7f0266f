"""Keys, tickets, and which host names a server without keys answers on."""

from __future__ import annotations

from typing import Any

import pytest

from sessions.model.errors import Limited, Unauthorized
from sessions.model.types import Principal, TenantId, UnixMs
from transport.auth import tickets
from transport.auth.authenticator import Authenticator, key_digest

ALICE = Principal(tenant=TenantId("acme"), key_id="k1", user="alice")


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def guarded(clock: Clock | None = None, **options: Any) -> Authenticator:
    return Authenticator({key_digest("sk-good"): ALICE}, clock=clock or Clock(), now_ms=lambda: UnixMs(0), **options)


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


def test_wrong_keys_of_an_address_count_for_keys_alone() -> None:
    """Its people still sign in, and their provider still says who signed out."""
    door = guarded()
    for _ in range(30):
        with pytest.raises((Unauthorized, Limited)):
            door.authenticate("sk-wrong", "192.0.2.1")
    with pytest.raises(Limited):
        door.authenticate("sk-wrong", "192.0.2.1")
    door.sign_ins.failed("192.0.2.1")
    door.logouts.failed("192.0.2.1")
