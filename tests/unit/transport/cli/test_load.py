"""Options of the load generator that are out of bounds, and traces that cannot be read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from transport.cli.load import WATCH_RATE, GenerateLoad
from transport.cli.load_command import plan_of, read_trace
from transport.cli.settings import BadSetting


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"users": 0}, "users: at least 1"),
        ({"rate": -1.0}, "rate: at least 0"),
        ({"rate": float("nan")}, "rate: at least 0"),
        ({"seconds": 0.0}, "seconds: at least 0.1"),
        ({"long_tokens": 0}, "long-tokens: at least 1"),
        ({"ttft_ms": 0.0}, "ttft-ms, tpot-ms, timeout-s: above 0"),
        ({"goodput": 99.0}, "goodput: a share from 0 to 1"),
        ({"mix": "medium"}, "mix: 'medium': a kind of short, long, tools, turns"),
    ],
)
def test_what_is_out_of_bounds_is_refused_with_its_name(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadSetting, match=sentence):
        GenerateLoad(**given)


def test_a_watch_runs_until_it_is_stopped_at_a_low_rate() -> None:
    watch = plan_of(GenerateLoad(watch=True), "m")
    assert (watch.rate, watch.seconds) == (
        WATCH_RATE,
        0.0,
    )
    assert plan_of(GenerateLoad(watch=True, rate=3.0), "m").rate == 3.0
    closed = plan_of(GenerateLoad(), "m")
    assert (closed.rate, closed.users, closed.seconds) == (0.0, 8, 30.0)


def test_a_trace_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    assert read_trace("") is None
    with pytest.raises(BadSetting, match=r"trace: .*none\.jsonl: No such file"):
        read_trace(str(tmp_path / "none.jsonl"))
    (tmp_path / "wrong.jsonl").write_text('{"turns": 1}\n')
    with pytest.raises(BadSetting, match=r"trace: .*wrong\.jsonl: line 1: "):
        read_trace(str(tmp_path / "wrong.jsonl"))
