"""What an engine learns of its own pace, and from whom."""

from __future__ import annotations

from inference.fair_queue import FairQueue, SlotClaim
from inference.forecast import EXPECTED_S, LoadForecast
from sessions.limits import Share
from sessions.model.types import ResponseId, TenantId


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


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
