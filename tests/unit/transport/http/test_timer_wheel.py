"""The wheel calls everybody when they are due, not before, and with one timer."""

from __future__ import annotations

import random
import weakref
from collections.abc import Callable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from transport.http.timer_wheel import SLOT_S, TimerWheel


class Loop:
    """A loop's timers under a hand."""

    def __init__(self) -> None:
        self.now = 50.0
        self.timers: list[tuple[float, Callable[[], None], list[bool]]] = []

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, callback: Callable[[], None]) -> Any:
        entry = (when, callback, [False])
        self.timers.append(entry)

        class Handle:
            def cancel(self) -> None:
                entry[2][0] = True

        return Handle()

    def pending(self) -> list[tuple[float, Callable[[], None], list[bool]]]:
        return [timer for timer in self.timers if not timer[2][0]]

    def advance(self, seconds: float) -> None:
        until = self.now + seconds
        while True:
            due = sorted((timer for timer in self.pending() if timer[0] <= until), key=lambda timer: timer[0])
            if not due:
                break
            when, callback, cancelled = due[0]
            cancelled[0] = True
            self.now = max(self.now, when)
            callback()
        self.now = until


class Member:
    def __init__(self, loop: Loop, at: float) -> None:
        self.slot = 0
        self.at = at
        self.loop = loop
        self.elapsed_at: list[float] = []

    def due(self) -> float:
        return self.at

    def elapsed(self, now: float) -> None:
        self.elapsed_at.append(now)


def test_a_member_that_was_taken_out_is_left_alone() -> None:
    loop = Loop()
    wheel = TimerWheel(loop)  # type: ignore[arg-type]
    gone, closed = Member(loop, 51.0), Member(loop, 52.0)
    wheel.put(gone)
    wheel.put(closed)
    wheel.take(gone)
    held = weakref.ref(gone)
    del gone
    assert held() is None, "it is not held until its time would have come"
    loop.advance(1.5)
    wheel.close()
    loop.advance(5)
    assert closed.elapsed_at == []
    assert loop.pending() == []


def test_one_that_another_of_its_slot_takes_out_is_left_alone() -> None:
    loop = Loop()
    wheel = TimerWheel(loop)  # type: ignore[arg-type]
    first, second = Member(loop, 51.0), Member(loop, 51.0)
    first.elapsed = lambda now: wheel.take(second)  # type: ignore[method-assign]
    wheel.put(first)
    wheel.put(second)
    loop.advance(2)
    assert second.elapsed_at == [] and loop.pending() == []


@given(st.integers(0, 2**32))
def test_everybody_is_called_when_due_at_most_one_slot_late(seed: int) -> None:
    rng = random.Random(seed)
    loop = Loop()
    wheel = TimerWheel(loop)  # type: ignore[arg-type]
    members = [Member(loop, loop.now + rng.uniform(0, 3)) for _ in range(20)]
    for member in members:
        wheel.put(member)
    for _ in range(30):
        loop.advance(rng.uniform(0, 0.3))
        assert len(loop.pending()) <= 1
        mover = rng.choice(members)
        if not mover.elapsed_at:
            mover.at = max(loop.now, mover.at + rng.uniform(-0.5, 1))
            wheel.put(mover)
    loop.advance(100)
    for member in members:
        (elapsed_at,) = member.elapsed_at
        assert member.at <= elapsed_at <= member.at + 2 * SLOT_S
