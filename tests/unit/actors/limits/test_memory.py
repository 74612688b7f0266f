"""What one process counts: buckets, turns under way, and reservations that end or lapse."""

from __future__ import annotations

from actors.limits.memory import MemoryLimiter
from sessions.limits import Ceilings, Demand, Grant
from sessions.model.types import ResponseId, SessionId, TenantId

TENANT = TenantId("acme")


class Clock:
    def __init__(self) -> None:
        self.ms = 0.0

    def __call__(self) -> float:
        return self.ms


async def reserve(limiter: MemoryLimiter, name: str, tokens: int = 10, **ceilings: int) -> Grant:
    demand = Demand(
        tenant=TENANT,
        user="u",
        session=SessionId("s"),
        name=ResponseId(name),
        input_tokens=tokens,
        output_tokens=0,
        tenant_ceilings=Ceilings(**ceilings),
        user_ceilings=Ceilings(),
        hold_ms=60_000,
    )
    return await limiter.reserve(demand)


async def test_a_bucket_refuses_with_the_time_until_it_fits_again() -> None:
    clock = Clock()
    limiter = MemoryLimiter(clock)
    for name in ("a", "b"):
        assert (await reserve(limiter, name, requests_per_minute=2)).refusal is None
    refusal = (await reserve(limiter, "c", requests_per_minute=2)).refusal
    assert refusal is not None
    assert (refusal.what, refusal.scope, refusal.limit) == ("requests_per_minute", "tenant", 2)
    clock.ms += refusal.retry_after_ms
    assert (await reserve(limiter, "c", requests_per_minute=2)).refusal is None


async def test_a_repeat_is_charged_once_and_an_ended_turn_gives_back_what_it_did_not_use() -> None:
    limiter = MemoryLimiter(Clock())
    for _ in range(3):
        grant = await reserve(limiter, "a", 80, tokens_per_minute=100)
    assert grant.standing.tokens is not None and grant.standing.tokens.remaining == 20
    await limiter.settle(TENANT, ResponseId("a"), SessionId("s"), 30)
    await limiter.settle(TENANT, ResponseId("a"), SessionId("s"), 30)
    grant = await reserve(limiter, "a", 80, tokens_per_minute=100)
    assert grant.standing.tokens is not None and grant.standing.tokens.remaining == 70


async def test_what_a_session_holds_counts_with_its_next_turn() -> None:
    limiter = MemoryLimiter(Clock())
    await limiter.settle(TENANT, ResponseId("old"), SessionId("s"), 95)
    refusal = (await reserve(limiter, "a", 10, tokens_per_minute=100)).refusal
    assert refusal is None, "a bucket that is full lets more than it holds in once"
    assert (await reserve(limiter, "b", 10, tokens_per_minute=100)).refusal is not None


async def test_turns_under_way_are_bounded_until_they_end_are_released_or_lapse() -> None:
    clock = Clock()
    limiter = MemoryLimiter(clock)
    assert (await reserve(limiter, "a", concurrent_turns=1)).refusal is None
    refusal = (await reserve(limiter, "b", concurrent_turns=1)).refusal
    assert refusal is not None and refusal.what == "concurrent_turns"
    await limiter.release(TENANT, ResponseId("a"), unasked=True)
    assert (await reserve(limiter, "b", concurrent_turns=1)).refusal is None
    clock.ms += 60_001
    assert (await reserve(limiter, "c", concurrent_turns=1)).refusal is None
