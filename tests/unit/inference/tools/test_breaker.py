"""A tool that fails: its calls are held back, and then tried."""

from __future__ import annotations

from inference.tools.breaker import FAILURES_MAX, PAUSE_S, CircuitBreaker


def test_after_failures_in_a_row_none_is_sent_for_a_while_and_then_one() -> None:
    breaker = CircuitBreaker()
    for _ in range(FAILURES_MAX - 1):
        breaker.record(success=False, now=0.0)
    breaker.record(success=True, now=0.0)
    for _ in range(FAILURES_MAX):
        assert breaker.permits(1.0)
        breaker.record(success=False, now=1.0)
    assert not breaker.permits(1.0 + PAUSE_S - 0.1)
    assert breaker.permits(1.0 + PAUSE_S) and not breaker.permits(1.0 + PAUSE_S), "one alone is tried"
    breaker.record(success=True, now=40.0)
    assert breaker.permits(40.0) and breaker.permits(40.0)
