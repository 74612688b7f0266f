"""Failed authentications are counted per address; a good key is let in all the same."""

from __future__ import annotations

import pytest

from sessions.model.errors import Limited, Unauthorized
from sessions.model.types import Principal, TenantId, UnixMs
from transport.auth.auth_throttle import AuthThrottle, AuthThrottleLimits
from transport.auth.authenticator import Authenticator, key_digest

LIMITS = AuthThrottleLimits(failures=3, refill_s=2.0, addresses_max=4)


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def limited(throttle: AuthThrottle, address: str | None) -> bool:
    try:
        throttle.failed(address)
    except Limited as error:
        return 0 < (error.retry_after_ms or 0) <= 3001
    return False


def test_an_address_may_be_wrong_so_often_and_again_later() -> None:
    clock = Clock()
    throttle = AuthThrottle(clock=clock, limits=LIMITS)
    assert [limited(throttle, "192.0.2.1") for _ in range(5)] == [False, False, False, True, True]
    assert not limited(throttle, "192.0.2.2")
    clock.now += 2.0
    assert [limited(throttle, "192.0.2.1") for _ in range(2)] == [False, True]
    clock.now += 1000
    assert [limited(throttle, "192.0.2.1") for _ in range(4)] == [False, False, False, True]


def test_a_forgiven_failure_does_not_count() -> None:
    throttle = AuthThrottle(clock=Clock(), limits=LIMITS)
    for _ in range(10):
        throttle.failed("192.0.2.1")
        throttle.forgive("192.0.2.1")
    throttle.forgive("192.0.2.2")  # who was never wrong gains nothing
    for address in ("192.0.2.1", "192.0.2.2"):
        assert [limited(throttle, address) for _ in range(4)] == [False, False, False, True]


def test_a_crowd_of_addresses_is_forgotten_in_order() -> None:
    throttle = AuthThrottle(clock=Clock(), limits=LIMITS)
    for number in range(1000):
        throttle.failed(f"192.0.{number // 250}.{number % 250}")
    assert len(throttle._spent) == 4


async def test_wrong_keys_are_limited_and_a_good_one_is_not() -> None:
    alice = Principal(tenant=TenantId("acme"), key_id="k1")
    access = Authenticator({key_digest("sk-good"): alice}, clock=Clock(), now_ms=lambda: UnixMs(0))
    answers = []
    for _ in range(30):
        with pytest.raises((Unauthorized, Limited)) as caught:
            access.authenticate("sk-wrong", "192.0.2.1")
        answers.append(caught.value.code)
    assert answers == ["unauthorized"] * 20 + ["rate_limited"] * 10
    assert access.authenticate("sk-good", "192.0.2.1") == alice
    with pytest.raises(Limited):
        await access.redeem_ticket("tkt_wrong", "192.0.2.1")
    with pytest.raises(Unauthorized):
        access.authenticate(None, "192.0.2.1")  # no key is no wrong key
