"""The histories behind responses: the newest are known, as they were put."""

from __future__ import annotations

import pytest

from transport.openai import history_ends
from transport.openai.history_ends import HistoryEnd, HistoryEnds

PLAIN = HistoryEnd(b"r" * 8, b"c" * 32)
CALLING = HistoryEnd(b"", b"c" * 40, ("call_1", "call_\u00e9"))


def test_an_end_comes_back_as_it_was_put() -> None:
    ends = HistoryEnds()
    ends.put("a", PLAIN)
    ends.put("b", CALLING)
    assert (ends.get("a"), ends.get("b"), ends.get("c")) == (PLAIN, CALLING, None)
    assert "a" in ends and "c" not in ends


def test_the_oldest_is_forgotten_and_one_that_is_put_again_takes_no_second_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(history_ends, "ENDS_MAX", 2)
    ends = HistoryEnds()
    for name, end in (("a", PLAIN), ("a", CALLING), ("b", PLAIN)):
        ends.put(name, end)
    assert ends.get("a") == CALLING
    ends.put("c", PLAIN)
    assert [name for name in "abc" if name in ends] == ["b", "c"]
