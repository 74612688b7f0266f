"""Ceilings, targets, brownout steps and the bucket's arithmetic."""

from __future__ import annotations

import msgspec
import pytest

from sessions.limits import (
    BrownoutStep,
    Bucket,
    Ceilings,
    Limits,
    Target,
    TenantLimits,
)
from sessions.model.types import LOCAL_PRINCIPAL, TenantId


def test_a_share_of_a_ceiling_is_at_least_one_and_none_stays_none() -> None:
    scaled = Ceilings(requests_per_minute=2, tokens_per_minute=100, sessions=9).scaled(0.25)
    assert (scaled.requests_per_minute, scaled.tokens_per_minute) == (1, 25)
    assert (scaled.concurrent_turns, scaled.sessions) == (None, 9)


def test_more_than_a_minutes_worth_waits_for_a_full_bucket() -> None:
    bucket = Bucket(60, 0)
    assert bucket.wait_ms(1_000) == 0
    bucket.take(1_000)
    assert bucket.level == -940
    bucket.take(-1_000)
    assert bucket.level == 60


def test_a_changed_ceiling_keeps_what_was_spent() -> None:
    bucket = Bucket(60, 0)
    bucket.take(20)
    bucket.look(100, 0)
    assert (bucket.ceiling, bucket.level) == (100, 80)


@pytest.mark.parametrize(("level", "tokens"), [(0, None), (1, 50), (2, 20), (9, 20)])
def test_brownout_steps(level: int, tokens: int | None) -> None:
    limits = Limits(brownout=(50, BrownoutStep(output_tokens=20, extras=False)))
    reached, step = limits.browned(level)
    assert (reached, step.output_tokens, step.extras) == (min(level, 2), tokens, level < 2)


def test_targets_and_tenants_fall_back_to_the_default() -> None:
    limits = Limits(
        tenants={"acme": TenantLimits(priority=2, weight=3.0)},
        targets={"2": Target(ttft_ms=1), "default": Target(ttft_ms=2)},
    )
    acme = msgspec.structs.replace(LOCAL_PRINCIPAL, tenant=TenantId("acme"))
    assert (limits.share(acme).priority, limits.share(LOCAL_PRINCIPAL).priority) == (2, 5)
    found = [limits.target(priority) for priority in (2, 5)]
    assert [each.ttft_ms for each in found if each is not None] == [1, 2]
    assert Limits().target(5) is None
