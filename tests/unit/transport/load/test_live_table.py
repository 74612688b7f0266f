"""The table of a running load."""

from __future__ import annotations

from transport.load.live_table import error_lines, headline, table_of
from transport.load.measurements import LatencyTargets, Measurements, RequestResult


def test_a_row_for_each_kind_and_one_for_all() -> None:
    counted = Measurements(LatencyTargets())
    counted.add(RequestResult("short", 0, 1, 0.123, 0.0456, 30, "", False, False))
    counted.add(RequestResult("long", 0, 1, None, None, 0, "HTTP 429", True, False))
    rows = counted.summaries(counted.results, 2.0)
    head, long, short, whole = (line.split() for line in table_of(rows).splitlines())
    assert head[:4] == ["kind", "done", "failed", "429"]
    assert long == ["long", "1", "0", "1", *["–"] * 6, "0.0%"]
    assert short == ["short", "1", "0", "0", "123", "123", "123", "45.6", "45.6", "45.6", "100.0%"]
    assert whole[0] == "all" and whole[-1] == "50.0%"
    line = headline(counted, rows[-1], elapsed_s=2.0, cpu_share=0.034)
    assert line == "2 s · 0 in flight · 2 done · 15 tokens/s · goodput 50.0% (0.50/s) · own CPU 3% of a core"
    assert error_lines(counted) == ["1 × HTTP 429"]
