"""What holds while a cluster's counts are away, and that they are left alone for a moment."""

from __future__ import annotations

import pytest

from actors.limits.fallback import PAUSE_MS, FallbackLimiter
from sessions.limits import Ceilings, Demand, Grant, Limits, RateLimitStatus
from sessions.model.errors import OutcomeUnknown, Unavailable
from sessions.model.types import ResponseId, SessionId, TenantId

AWAY = Unavailable("limits_unavailable", "away")


class Store:
    """Fails as it is told, one call after another; then grants."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.calls = 0

    async def reserve(self, demand: Demand) -> Grant:
        self.calls += 1
        if self.errors:
            raise self.errors.pop(0)
        return Grant(RateLimitStatus())

    async def settle(self, tenant: TenantId, name: ResponseId, session: SessionId, tokens: int) -> None:
        raise AWAY

    async def release(self, tenant: TenantId, name: ResponseId, *, unasked: bool) -> None:
        raise AWAY


class Time:
    ms = 10_000.0


def limiter(store: Store, **limits: object) -> FallbackLimiter:
    return FallbackLimiter(store, lambda: Limits(**limits), lambda: Time.ms)  # type: ignore[arg-type]


async def ask(limiter: FallbackLimiter, name: str = "a") -> Grant:
    ceilings = Ceilings(requests_per_minute=4)
    return await limiter.reserve(
        Demand(
            tenant=TenantId("t"),
            user="u",
            session=SessionId("s"),
            name=ResponseId(name),
            input_tokens=1,
            output_tokens=1,
            tenant_ceilings=ceilings,
            user_ceilings=Ceilings(),
            hold_ms=60_000,
        )
    )


async def test_an_unknown_outcome_is_repeated_under_the_same_name() -> None:
    store = Store(OutcomeUnknown("limits_outcome_unknown", "?"))
    assert (await ask(limiter(store))).refusal is None and store.calls == 2


async def test_this_process_counts_its_share_while_the_store_is_away_and_leaves_it_alone() -> None:
    store = Store(AWAY)
    fallback = limiter(store, local_share=0.5)
    answers = [await ask(fallback, name) for name in ("a", "b", "c")]
    assert [answer.refusal is None for answer in answers] == [True, True, False], "half of four"
    assert store.calls == 1 and fallback.lost
    Time.ms += PAUSE_MS
    assert (await ask(fallback, "d")).refusal is None
    assert store.calls == 2 and not fallback.lost


async def test_the_file_may_open_or_close_the_door_instead() -> None:
    opened = limiter(Store(AWAY), store_lost="open")
    assert all([(await ask(opened, str(number))).refusal is None for number in range(9)])
    with pytest.raises(Unavailable) as refused:
        await ask(limiter(Store(AWAY), store_lost="closed"))
    assert refused.value.code == "limits_unavailable" and refused.value.retry_after_ms


async def test_a_settlement_that_fails_is_its_callers_to_repeat() -> None:
    with pytest.raises(Unavailable):
        await limiter(Store()).settle(TenantId("t"), ResponseId("a"), SessionId("s"), 1)
