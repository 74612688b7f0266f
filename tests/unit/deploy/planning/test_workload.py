"""Workloads by distribution and by trace, and those that are refused."""

from __future__ import annotations

import pytest

from deploy.planning.workload import BadChatDemand, ChatDemand, from_distribution, from_trace

TURNS = '{"prompt_tokens": 10, "completion_tokens": 20}, {"think_s": 4, "prompt_tokens": 30, "completion_tokens": 40}'
TRACE = f'{{"turns": [{TURNS}]}}'.encode()


def spread(**changes: float) -> ChatDemand:
    given = {"sessions": 10, "opening": 100, "prompt": 50, "answer": 150, "turns": 5, "think_s": 30, "think_sigma": 1}
    return from_distribution(**(given | changes))  # type: ignore[arg-type]


def test_a_conversation_grows_by_its_turns() -> None:
    work = spread()
    assert (work.context, work.context_peak, work.private_context) == (500, 1100, 400)
    assert work.mean_think_s == pytest.approx(30 * 2.718281828**0.5, rel=0.05)
    assert set(spread(think_sigma=0).think_s) == {30.0}


def test_a_trace_says_the_same() -> None:
    work = from_trace([TRACE, b"\n"], sessions=3, opening=100)
    assert (work.prompt, work.answer, work.context, work.context_peak) == (20, 30, 115, 200)
    assert work.think_s == (0.0, 4.0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"sessions": 0}, "sessions: 0"), ({"think_s": float("nan")}, "think-s"), ({"think_sigma": 9}, "think-sigma")],
)
def test_numbers_out_of_bounds_are_refused(changes: dict[str, float], message: str) -> None:
    with pytest.raises(BadChatDemand, match=message):
        spread(**changes)


@pytest.mark.parametrize("line", [b"{", b'{"turns": [{"think_s": -1}]}', b'{"turns": 3}', b"\xff"])
def test_a_line_that_is_none_is_named(line: bytes) -> None:
    with pytest.raises(BadChatDemand, match="line 2"):
        from_trace([TRACE, line], sessions=1, opening=0)


def test_an_empty_trace_is_refused() -> None:
    with pytest.raises(BadChatDemand, match="no turns"):
        from_trace([], sessions=1, opening=0)
