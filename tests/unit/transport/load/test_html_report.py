"""The page: whole by itself, with every figure, and nothing in it that a server could put there."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from transport.load.html_report import DOTS_MAX, ReportHeader, Series, distribution, html_report, plot, ticks, under_way
from transport.load.measurements import LatencyTargets, Measurements, RequestResult

HEADER = ReportHeader("Load on <b>", [("server", "http://127.0.0.1:8080")], "goodput 100%", True)


def page(count: int) -> str:
    counted = Measurements(LatencyTargets(ttft_ms=150, tpot_ms=20))
    for number in range(count):
        kind = "long" if number % 2 else "short"
        counted.add(RequestResult(kind, number / 10, number / 10 + 1, 0.1, 0.01, 9, "", False, False))
    errors = ["3 × <script>alert(1)</script>"]
    rows = counted.summaries(counted.results, 10.0)
    return html_report(HEADER, rows, list(counted.results), errors, counted.targets)


def test_a_report_loads_nothing_and_runs_nothing() -> None:
    shown = page(20)
    assert "<script" not in shown and "&lt;script&gt;" in shown and "Load on &lt;b&gt;" in shown
    assert not re.search(r"(?:src|href)=|url\(|@import", shown)
    assert "default-src 'none'" in shown
    for figure in ("100.0", "10.0", "long", "short", "goodput 100%"):
        assert figure in shown
    pictures = re.findall(r"<svg.*?</svg>", shown, re.DOTALL)
    assert len(pictures) == 4
    for each in pictures:
        ElementTree.fromstring(each)  # well-formed


def test_a_load_without_an_answer_has_a_report_too() -> None:
    assert page(0).count("Nothing was measured.") == 4


def test_a_long_load_has_a_bounded_page() -> None:
    assert len(page(40 * DOTS_MAX)) < 600_000


def test_the_limit_is_drawn_where_it_can_be_seen() -> None:
    near = Series("a", [(1.0, 100.0)])
    assert "stroke-dasharray" in plot([near], "s", "ms", limit=150)
    assert "stroke-dasharray" not in plot([near], "s", "ms", limit=5000)
    assert plot([near], "s", "ms").count("●") == 0 and plot([near, near], "s", "ms").count("●") == 2


def test_ticks_are_round_and_reach_the_highest() -> None:
    for highest in (0.004, 0.7, 1, 3, 17, 99, 2100, 123456.0):
        marks = ticks(highest)
        assert marks[0] == 0 and marks[-1] >= highest and 2 <= len(marks) <= 6
    assert ticks(99) == [0, 20, 40, 60, 80, 100]


def test_requests_under_way_and_shares() -> None:
    two = [RequestResult("a", *times, None, None, 0, "", False, False) for times in ((0.0, 3.0), (1.0, 2.0))]
    assert under_way(two) == [(0.0, 1), (1.0, 2), (2.0, 1), (3.0, 0)]
    assert distribution([3.0, 1.0]) == [(1.0, 50.0), (3.0, 100.0)]
