"""The load of one process over the last six hours: a ring of samples, one every ten seconds, for operators' charts.

A timer takes the samples: how much counters that exist anyway have grown, and the engine's state at the sample's end.
So tokens and turns cost nothing more. Samples end at whole steps of the wall clock, so that longer steps can be made of
shorter ones (`thinned`) and those of several replicas can be added up (`sum_by_time`).

Invariants: at most SAMPLES_MAX samples, in the order of their times; if the clock is set back, those with later times
are dropped. No tenant, user, session or text is in a sample. They end with their process.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import msgspec

from sessions.metrics import Metrics
from sessions.model.generation import EngineStats
from sessions.model.types import UnixMs
from sessions.ports import Engine
from sessions.service_totals import Counts, add_by_name, add_counts

STEP_S: Final = 10
SAMPLES_MAX: Final = 6 * 3600 // STEP_S
KV_TIERS: Final = ("device", "host", "disk", "redis")
FAILOVERS: Final = ("takeover", "orphaned")  # causes of an activation whose session lost its owner


class LoadSample(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The counts of the `span_s` seconds up to `at` (Unix seconds), and the state of the process at their end."""

    at: int
    span_s: float
    ttft: Counts  # answers that got their first token, per bucket of `Metrics.ttft_s`
    prefilled_tokens: float
    decoded_tokens: float
    failovers: float
    handoffs: float
    failed: float  # failed answers
    running: int  # running answers; the most at any sample's end
    waiting: int
    slots: int
    sessions: int  # in memory
    kv_bytes: dict[str, float]  # by tier, if the engine counts them


class _Counted(msgspec.Struct, frozen=True):
    """The values of the counters at `at_s`, a time of the event loop's clock."""

    at_s: float
    ttft: Counts
    prefilled_tokens: float
    decoded_tokens: float
    failovers: float
    handoffs: float
    failed: float


class LoadHistory:
    """The load samples of one process, taken from `start` to `stop` in one event loop."""

    def __init__(
        self, metrics: Metrics, engine: Engine, num_sessions: Callable[[], int], now_ms: Callable[[], UnixMs]
    ) -> None:
        self.metrics = metrics
        self._engine = engine
        self._num_sessions = num_sessions
        self._now_ms = now_ms
        self._loop_time = asyncio.get_running_loop().time
        self._samples: deque[LoadSample] = deque(maxlen=SAMPLES_MAX)
        self._last = self._count(engine.stats())
        self._timer: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> LoadHistory:
        self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        self._last = self._count(self._engine.stats())
        self._schedule()

    def stop(self) -> None:
        """Stops taking samples. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def samples(self, *, after: int = 0, step_s: int = STEP_S) -> list[LoadSample]:
        """Returns samples that end later than `after` (Unix seconds), in steps of `step_s` seconds."""
        return thinned([sample for sample in self._samples if sample.at > after], step_s)

    def sample(self) -> None:
        """Takes a sample for the time since the last one."""
        stats, last = self._engine.stats(), self._last
        now = self._count(stats)
        at = round(self._now_ms() / 1000 / STEP_S) * STEP_S
        taken = LoadSample(
            at=at,
            span_s=now.at_s - last.at_s,
            ttft=tuple(a - b for a, b in zip(now.ttft, last.ttft, strict=True)),
            prefilled_tokens=max(0.0, now.prefilled_tokens - last.prefilled_tokens),  # an engine's own may begin anew
            decoded_tokens=max(0.0, now.decoded_tokens - last.decoded_tokens),
            failovers=now.failovers - last.failovers,
            handoffs=now.handoffs - last.handoffs,
            failed=now.failed - last.failed,
            running=stats.running,
            waiting=stats.waiting,
            slots=stats.slots,
            sessions=self._num_sessions(),
            kv_bytes={tier: stats.gauges[f"{tier}_bytes"] for tier in KV_TIERS if f"{tier}_bytes" in stats.gauges},
        )
        self._last = now
        while self._samples and self._samples[-1].at > at:
            self._samples.pop()
        if self._samples and self._samples[-1].at == at:
            taken = _joined(self._samples.pop(), taken)
        self._samples.append(taken)

    def _schedule(self) -> None:
        left_s = STEP_S - self._now_ms() / 1000 % STEP_S
        self._timer = asyncio.get_running_loop().call_later(left_s, self._step)

    def _step(self) -> None:
        self.sample()
        self._schedule()

    def _count(self, stats: EngineStats) -> _Counted:
        metrics, counters = self.metrics, stats.counters
        return _Counted(
            at_s=self._loop_time(),
            ttft=tuple(metrics.ttft_s.counts),
            prefilled_tokens=counters.get("prefilled_tokens", 0),
            decoded_tokens=counters.get("decoded_tokens", 0),
            failovers=sum(metrics.activations.values.get((cause,), 0) for cause in FAILOVERS),
            handoffs=metrics.handoffs.values.get(("moved",), 0),
            failed=metrics.responses.values.get(("failed",), 0),
        )


def thinned(samples: Sequence[LoadSample], step_s: int) -> list[LoadSample]:
    """Returns one sample for each step of `step_s` seconds, made of the samples in it, in the same order. Each ends at
    a multiple of `step_s`."""
    steps: dict[int, LoadSample] = {}
    for sample in samples:
        end = -(-sample.at // step_s) * step_s
        earlier = steps.get(end)
        later = msgspec.structs.replace(sample, at=end)
        steps[end] = later if earlier is None else _joined(earlier, later)
    return list(steps.values())


def sum_by_time(samples: Iterable[LoadSample]) -> dict[int, LoadSample]:
    """Returns the samples of several replicas by their end time. Samples that end at the same time are added up."""
    summed: dict[int, LoadSample] = {}
    for sample in samples:
        other = summed.get(sample.at)
        summed[sample.at] = sample if other is None else _added(other, sample)
    return summed


def _joined(earlier: LoadSample, later: LoadSample) -> LoadSample:
    """Joins two samples in a row into one: counts add up, `running` and `waiting` are the larger ones, the other states
    the later ones."""
    return msgspec.structs.replace(
        _added(earlier, later),
        span_s=earlier.span_s + later.span_s,
        running=max(earlier.running, later.running),
        waiting=max(earlier.waiting, later.waiting),
        slots=later.slots,
        sessions=later.sessions,
        kv_bytes=later.kv_bytes,
    )


def _added(one: LoadSample, other: LoadSample) -> LoadSample:
    """Adds up two samples of two replicas over the same time."""
    return LoadSample(
        at=other.at,
        span_s=max(one.span_s, other.span_s),
        ttft=add_counts((one.ttft, other.ttft)),
        prefilled_tokens=one.prefilled_tokens + other.prefilled_tokens,
        decoded_tokens=one.decoded_tokens + other.decoded_tokens,
        failovers=one.failovers + other.failovers,
        handoffs=one.handoffs + other.handoffs,
        failed=one.failed + other.failed,
        running=one.running + other.running,
        waiting=one.waiting + other.waiting,
        slots=one.slots + other.slots,
        sessions=one.sessions + other.sessions,
        kv_bytes=add_by_name((one.kv_bytes, other.kv_bytes)),
    )
