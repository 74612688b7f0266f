"""The ring of load samples: what one covers, how steps and replicas are put together, and what bounds it."""

from __future__ import annotations

from typing import Any

import msgspec

from sessions.load_history import SAMPLES_MAX, STEP_S, LoadHistory, LoadSample, sum_by_time, thinned
from sessions.metrics import Metrics
from sessions.model.generation import EngineStats
from sessions.model.types import UnixMs

BEGUN_S = 1_000_000_000  # a whole step


class Engine:
    def __init__(self) -> None:
        self.decoded = 0.0
        self.waiting = 0
        self.gauges: dict[str, float] = {}

    def stats(self) -> EngineStats:
        counters = {"decoded_tokens": self.decoded}
        return EngineStats(slots=4, running=1, waiting=self.waiting, counters=counters, gauges=self.gauges)


class Rig:
    """A history, what it reads, and the wall clock it goes by."""

    def __init__(self) -> None:
        self.now_s = float(BEGUN_S)
        self.metrics = Metrics()
        self.engine = Engine()
        engine: Any = self.engine
        self.history = LoadHistory(self.metrics, engine, lambda: 3, lambda: UnixMs(int(self.now_s * 1000)))

    def passes(self, seconds: float) -> None:
        self.now_s += seconds
        self.history.sample()


def sample(at: int, **values: Any) -> LoadSample:
    given = LoadSample(at, 10.0, (), 0, 0, 0, 0, 0, 0, 0, 4, 0, {})
    return msgspec.structs.replace(given, **values)


async def test_a_sample_is_what_was_counted_since_the_last_and_what_stands_now() -> None:
    rig = Rig()
    rig.metrics.ttft_s.observe(0.2)
    rig.metrics.activations.add("takeover")
    rig.metrics.activations.add("woken")
    rig.engine.decoded, rig.engine.waiting = 50, 2
    rig.engine.gauges = {"host_bytes": 7.0, "host_bytes_max": 9.0, "read_s": 1.0}
    rig.passes(STEP_S)
    rig.engine.waiting = 0
    rig.passes(STEP_S)
    first, second = rig.history.samples()
    assert (first.at, second.at) == (BEGUN_S + STEP_S, BEGUN_S + 2 * STEP_S)
    assert (sum(first.ttft), first.decoded_tokens, first.failovers, first.waiting) == (1, 50, 1, 2)
    assert (first.slots, first.sessions, first.kv_bytes) == (4, 3, {"host": 7.0})
    assert (sum(second.ttft), second.decoded_tokens, second.failovers, second.waiting) == (0, 0, 0, 0)


async def test_what_lies_ahead_of_a_clock_that_was_set_back_is_dropped() -> None:
    rig = Rig()
    for _ in range(3):
        rig.passes(STEP_S)
    rig.passes(-2 * STEP_S)
    rig.passes(STEP_S)
    ends = [each.at for each in rig.history.samples()]
    assert ends == [BEGUN_S + STEP_S, BEGUN_S + 2 * STEP_S]


async def test_the_ring_is_bounded() -> None:
    rig = Rig()
    for _ in range(SAMPLES_MAX + 5):
        rig.passes(STEP_S)
    samples = rig.history.samples()
    assert len(samples) == SAMPLES_MAX
    assert samples[0].at == BEGUN_S + 6 * STEP_S
    assert [each.at for each in rig.history.samples(after=samples[-2].at)] == [samples[-1].at]


def test_longer_steps_add_what_happened_and_keep_the_most_that_waited() -> None:
    three = [
        sample(BEGUN_S + 10, decoded_tokens=5, waiting=7, ttft=(1, 0), kv_bytes={"host": 1.0}),
        sample(BEGUN_S + 20, decoded_tokens=6, waiting=1, ttft=(0, 2), kv_bytes={"host": 2.0}),
        sample(BEGUN_S + 70, decoded_tokens=1),
    ]
    first, second = thinned(three, 60)
    assert (first.at % 60, second.at - first.at) == (0, 60)
    assert (first.decoded_tokens, first.waiting, first.ttft, first.span_s) == (11, 7, (1, 2), 20)
    assert first.kv_bytes == {"host": 2.0}
    assert second.decoded_tokens == 1
    assert thinned(three, STEP_S) == three


def test_replicas_are_added_up_where_their_times_are_the_same() -> None:
    one, other = sample(20, waiting=2, running=1, kv_bytes={"host": 1.0}), sample(20, waiting=3, kv_bytes={"disk": 2.0})
    summed = sum_by_time([sample(10, failovers=1), one, other])
    assert list(summed) == [10, 20]
    assert (summed[20].waiting, summed[20].running, summed[20].slots, summed[20].span_s) == (5, 1, 8, 10)
    assert summed[20].kv_bytes == {"host": 1.0, "disk": 2.0}
