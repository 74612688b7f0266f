"""What an engine learns of its own pace, and from whom."""

from __future__ import annotations

import pytest

from inference.fair_queue import FairQueue, SlotClaim
from inference.forecast import EXPECTED_S, LoadForecast
from sessions.limits import Share
from sessions.model.types import ResponseId, TenantId


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_run_that_made_room_teaches_nothing_of_the_pace() -> None:
    clock = Clock()
    load = LoadForecast(FairQueue[str](2, 8), clock)
    usual, paused = (
        SlotClaim(name, tenant=TenantId("t"), priority=5, weight=1.0, prompt_tokens=10) for name in ("usual", "paused")
    )
    for claim in (usual, paused):
        load.started(claim, 10)
    clock.now = 1.0
    for claim in (usual, paused):
        load.on_output(claim)
    load.paused(paused)
    clock.now = 3.0
    load.ended(usual, 21)
    clock.now = 100.0
    load.ended(paused, 2)
    assert load.slot_s.value == pytest.approx(3.0)
    assert load.token_s.value == pytest.approx(0.1)
    assert load.prompt_token_s.value == pytest.approx(0.1)
    assert load.forecast(TenantId("t"), Share(), 10, room=True).ttft_s == pytest.approx(1.0)


def test_the_queue_is_full_with_those_that_are_on_the_way() -> None:
    queue, clock, tenant = FairQueue[str](2, 10), Clock(), TenantId("t")
    load = LoadForecast(queue, clock)
    let_in = 0
    while not load.forecast(tenant, Share(), 10, room=True).full:
        load.expect(ResponseId(f"r{let_in}"), tenant)
        let_in += 1
    assert let_in == 2 + 8, "two slots, and of ten places the part that one tenant may have"
    assert not load.forecast(TenantId("other"), Share(), 10, room=True).full
    clock.now += EXPECTED_S
    assert not load.forecast(tenant, Share(), 10, room=True).full, "they never came"
    for number in range(let_in):
        queue.join(SlotClaim(f"x{number}", tenant=tenant, priority=5, weight=1.0, prompt_tokens=10))
    for _ in range(2):
        queue.start(queue.first())  # type: ignore[arg-type]
    assert load.forecast(tenant, Share(), 10, room=True).full
