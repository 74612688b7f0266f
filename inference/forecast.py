"""Forecasts when a turn that came now would get its first token, from the engine's own pace.

Learned, each as a mean that forgets: how long an answer holds its slot, how long a prompt token takes until the first
token is there, how long a later token takes. With the queue (`inference.fair_queue`) they say when a turn would get its
first token: when those that go before it have freed a slot, and its prompt is computed. A turn that finds a slot free,
or whose tenant has less than its share of them, waits for nobody.

An answer that was let in and has not reached the queue yet counts as waiting (`expect`), so that many that come at once
do not each find the same slot free; one that never comes is forgotten after `EXPECTED_S`.

Invariants: nothing learned is a reason to refuse: an engine that has done nothing yet forecasts no waiting.
Knows no clock but the one it is given. Does not know targets (`sessions.actor.admission`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from inference.fair_queue import FairQueue, SlotClaim
from sessions.limits import Forecast, Share
from sessions.model.types import ResponseId, TenantId

EXPECTED_S: Final = 2.0
FORGETS: Final = 0.05  # weight of a new answer in a mean


class DecayingMean:
    """An exponentially decaying mean; `value` is None before the first `add`."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: float | None = None

    def add(self, value: float) -> None:
        self.value = value if self.value is None else self.value + FORGETS * (value - self.value)

    @property
    def or_zero(self) -> float:
        return self.value or 0.0


class LoadForecast:
    """Forecasts an engine's latency. The engine reports every run: `arrived`, `started`, `on_output`, `paused`,
    `ended`."""

    def __init__(self, queue: FairQueue[Any], clock: Callable[[], float]) -> None:
        self._queue = queue
        self._clock = clock
        self._expected: dict[ResponseId, tuple[TenantId, float]] = {}
        self._started: dict[SlotClaim[Any], tuple[float, int]] = {}
        self._first_output: dict[SlotClaim[Any], float] = {}
        self.slot_s = DecayingMean()
        self.prompt_token_s = DecayingMean()
        self.token_s = DecayingMean()

    def expect(self, response_id: ResponseId, tenant: TenantId) -> None:
        """Notes an admitted turn that will arrive shortly."""
        self._expected[response_id] = (tenant, self._clock() + EXPECTED_S)

    def arrived(self, response_id: ResponseId) -> None:
        self._expected.pop(response_id, None)

    def started(self, claim: SlotClaim[Any], new_tokens: int) -> None:
        """Notes that a run has its first slot, and how many tokens of its prompt are to be computed."""
        self._started[claim] = (self._clock(), new_tokens)

    def on_output(self, claim: SlotClaim[Any]) -> None:
        """Notes that a run has emitted its first token, which gives the pace of prompts."""
        begun = self._started.get(claim)
        if begun is not None:
            now = self._clock()
            self._first_output[claim] = now
            self.prompt_token_s.add((now - begun[0]) / max(1, begun[1]))

    def paused(self, claim: SlotClaim[Any]) -> None:
        """Notes that a run made room: its times from now on say nothing about the engine's pace."""
        self._started.pop(claim, None)
        self._first_output.pop(claim, None)

    def ended(self, claim: SlotClaim[Any], tokens: int) -> None:
        """Notes that a run is over, after so many tokens; a run that never had a slot may be reported too."""
        begun, first_output = self._started.pop(claim, None), self._first_output.pop(claim, None)
        if begun is None or first_output is None:
            return
        now = self._clock()
        self.slot_s.add(now - begun[0])
        if tokens > 1:
            self.token_s.add((now - first_output) / (tokens - 1))

    def forecast(self, tenant: TenantId, share: Share, new_tokens: int, *, room: bool) -> Forecast:
        """Forecasts when a turn of the tenant that came now would get its tokens. `new_tokens`: how many tokens of its
        prompt have to be computed. `room`: whether KV memory is free for it."""
        now, queue = self._clock(), self._queue
        for name in [name for name, (_, until) in self._expected.items() if until <= now]:
            del self._expected[name]
        coming = len(self._expected)
        own = sum(whose == tenant for whose, _ in self._expected.values())
        position = 0
        idle = queue.num_idle_for(tenant, share.priority, share.weight)
        free = room and queue.num_waiting + coming < idle
        if not free and not queue.is_under_share(tenant, share.weight, own):
            position = 1 + queue.ahead_of(tenant, share.priority, share.weight) + coming
        slot_s = self.slot_s.value
        if slot_s is None and position:  # nobody has ended yet: it takes longer than it has taken so far
            slot_s = max((now - begun for begun, _ in self._started.values()), default=0.0)
        ahead = max(0, coming - max(0, idle - queue.num_waiting))  # of those that will come, how many will wait
        wait_s = position * (slot_s or 0.0) / queue.slots
        return Forecast(
            position=position,
            wait_s=wait_s,
            ttft_s=wait_s + new_tokens * self.prompt_token_s.or_zero,
            tpot_s=self.token_s.or_zero if queue.num_running else 0.0,
            idle=not (queue.num_running or queue.num_waiting or coming),
            full=not free and queue.is_full(tenant, coming=ahead, own=min(own, ahead)),
        )
