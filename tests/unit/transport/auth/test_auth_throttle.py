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
