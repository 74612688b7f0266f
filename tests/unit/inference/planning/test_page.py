"""Charts: what is drawn, and figures that cannot be."""

from __future__ import annotations

from inference.planning.page import bar_chart, line_chart


def test_points_that_are_infinite_are_left_out() -> None:
    drawn = line_chart([1, 2, 3], [("ms", [5.0, 10.0, float("inf")])])
    assert drawn.count(",") >= 2 and "inf" not in drawn and "nan" not in drawn
    assert line_chart([1.0], [("ms", [float("inf")])]) == "<p>no figures</p>"


def test_bars_are_as_long_as_their_share() -> None:
    drawn = bar_chart({"a<b": 2.0, "half": 1.0})
    assert 'width="360.0"' in drawn and 'width="180.0"' in drawn and "a&lt;b" in drawn
    assert bar_chart({}) == "<p>no figures</p>"
