"""A storm of connections comes back as a stream."""

from __future__ import annotations

import heapq

from transport.connection_rate import BURST_S, WAIT_MAX_S, ConnectionRate


def storm(count: int, rate: float) -> list[float]:
    """When each of `count`, who all come at once and again when they are told to, is let in."""
    pace, line = ConnectionRate(), [(0.0, number) for number in range(count)]
    heapq.heapify(line)
    entered = []
    for _ in range(count * 50):
        if not line:
            break
        now, number = heapq.heappop(line)
        after_ms = pace.enter(now, rate)
        if after_ms:
            heapq.heappush(line, (now + after_ms / 1000, number))
        else:
            entered.append(now)
    assert not line, "everybody is let in at last"
    return entered


def test_a_storm_is_let_in_at_the_rate_and_hardly_anybody_is_sent_away_twice() -> None:
    entered = storm(1_000, 100.0)
    assert sum(at == 0.0 for at in entered) == 100 * BURST_S
    assert max(entered) <= 10.0 + WAIT_MAX_S / 2
    for begin in range(12):
        assert sum(begin <= at < begin + 1 for at in entered) <= 100 * (BURST_S + 1)


def test_a_storm_larger_than_the_line_comes_in_all_the_same() -> None:
    entered = storm(5_000, 100.0)
    assert len(entered) == 5_000
    assert max(entered) <= 3 * 5_000 / 100


def test_those_who_come_slowly_never_wait() -> None:
    pace = ConnectionRate()
    assert all(pace.enter(number / 90, 100.0) == 0 for number in range(1_000))
    assert sum(pace.enter(20.0, 100.0) == 0 for _ in range(500)) == 200


def test_who_only_asks_hears_the_wait_and_takes_nobodys_turn() -> None:
    pace = ConnectionRate()
    assert [pace.wait(0.0, 10.0) for _ in range(100)] == [0] * 100
    while not pace.enter(0.0, 10.0):
        pass
    assert pace.wait(0.0, 10.0) == pace.wait(0.0, 10.0) > 0
    assert pace.enter(0.0, 10.0) == pace.wait(0.0, 10.0) - 100
    assert pace.wait(60.0, 10.0) == 0
