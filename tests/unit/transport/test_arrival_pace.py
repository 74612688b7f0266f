"""Who waits while several send, and who does not."""

from __future__ import annotations

from transport.arrival_pace import ABOUT_S, BURST, WAIT_MAX_S, ArrivalPace

FLOOD, OTHER = ("acme", "k"), ("beta", "k")


def test_who_is_alone_never_waits() -> None:
    pace = ArrivalPace()
    assert {pace.enter(FLOOD, 1, 10, 0.0) for _ in range(1_000)} == {0.0}


def test_a_burst_waits_behind_itself_and_not_in_front_of_another() -> None:
    pace = ArrivalPace()
    pace.enter(OTHER, 1, 10, 0.0)
    waits = [pace.enter(FLOOD, 1, 10, 0.0) for _ in range(int(BURST) + 4)]
    assert waits[: int(BURST) + 1] == [0.0] * (int(BURST) + 1)
    assert [round(wait or 0.0, 3) for wait in waits[int(BURST) + 1 :]] == [0.1, 0.2, 0.3]
    assert pace.enter(OTHER, 1, 10, 0.0) == 0.0


def test_what_costs_more_holds_up_what_comes_behind_it() -> None:
    pace = ArrivalPace()
    pace.enter(OTHER, 1, 10, 0.0)
    assert pace.enter(FLOOD, BURST + 20, 10, 0.0) == 0.0
    assert round(pace.enter(FLOOD, 1, 10, 0.0) or 0.0, 6) == 2.0
    assert pace.enter(FLOOD, 1, 10, 3.0) == 0.0


def test_what_would_wait_too_long_is_not_admitted_and_costs_nothing() -> None:
    pace = ArrivalPace()
    pace.enter(OTHER, 1, 1, 0.0)
    pace.enter(FLOOD, BURST + WAIT_MAX_S + 1, 1, 0.0)
    assert [pace.enter(FLOOD, 1, 1, 0.0) for _ in range(3)] == [None] * 3
    assert pace.enter(FLOOD, 1, 1, 1.0) == WAIT_MAX_S


def test_nobody_waits_when_other_callers_have_left() -> None:
    pace = ArrivalPace()
    pace.enter(OTHER, 1, 10, 0.0)
    for _ in range(100):
        pace.enter(FLOOD, 1, 10, 0.0)
    assert pace.enter(FLOOD, 1, 10, 0.1) != 0.0
    assert pace.enter(FLOOD, 1, 10, ABOUT_S + 0.1) == 0.0
