"""Draws plots as SVG for the HTML reports of benches, without scripts. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Final, NamedTuple

WIDTH: Final = 720
HEIGHT: Final = 220
LEFT: Final = 56
BOTTOM: Final = 28
DOTS_MAX: Final = 4_000  # of a plot: more would not be seen, and make the file large
COLORS: Final = ("#2f6fde", "#d9822b", "#2a9d6f", "#a84fc0", "#777")
STYLE: Final = """
:root{color-scheme:light dark}
body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}
table{border-collapse:collapse}th,td{padding:.2rem .7rem;text-align:right}th:first-child,td:first-child{text-align:left}
tr{border-bottom:1px solid #8884}svg{max-width:100%;height:auto}text{fill:currentColor;font-size:11px}
.bad{color:#c33}.ok{color:#2a8a4a}
"""


class Series(NamedTuple):
    """Points of one colour; `line` joins them."""

    name: str
    points: Sequence[tuple[float, float]]
    line: bool = False


def ticks(highest: float) -> list[float]:
    """Returns three to six round numbers from 0 up to the first that is not below `highest`."""
    step = 10.0**-3
    while step * 5 < highest:
        for factor in (2.0, 2.5, 2.0):
            if step * 5 < highest:
                step *= factor
    count = 1
    while step * count < highest:
        count += 1
    return [step * each for each in range(count + 1)]


def plot(series: Sequence[Series], x_name: str, y_name: str, *, limit: float | None = None) -> str:
    """Returns an SVG of these points, with a dashed line at `limit` where that is not far above them."""
    points = [point for each in series for point in each.points]
    if not points:
        return "<p>Nothing was measured.</p>"
    highest = max(y for _, y in points)
    shows_limit = limit is not None and limit <= 3 * highest
    columns = ticks(max(x for x, _ in points))
    rows = ticks(max(highest, limit) if limit is not None and shows_limit else highest)

    def place(x: float, y: float) -> tuple[float, float]:
        return LEFT + x / columns[-1] * (WIDTH - LEFT - 8), HEIGHT - BOTTOM - y / rows[-1] * (HEIGHT - BOTTOM - 18)

    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" role="img" aria-label="{escape(y_name)}">']
    for value in rows:
        _, y = place(0, value)
        parts.append(f'<path d="M{LEFT} {y:.1f}H{WIDTH - 8}" stroke="#8884"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{value:g}</text>')
    for value in columns:
        x, y = place(value, 0)
        parts.append(f'<text x="{x:.1f}" y="{y + 14:.1f}" text-anchor="middle">{value:g}</text>')
    for number, each in enumerate(series):
        color = COLORS[number % len(COLORS)]
        if each.line:
            path = "L".join("{:.1f} {:.1f}".format(*place(x, y)) for x, y in each.points)
            parts.append(f'<path d="M{path}" fill="none" stroke="{color}" stroke-width="1.5"/>' if path else "")
        else:
            dots = "".join("M{:.1f} {:.1f}h0".format(*place(x, y)) for x, y in each.points)
            parts.append(f'<path d="{dots}" stroke="{color}" stroke-width="4" stroke-linecap="round" opacity=".55"/>')
        if len(series) > 1:
            parts.append(f'<text x="{LEFT + 90 * number}" y="11" style="fill:{color}">● {escape(each.name)}</text>')
    if limit is not None and shows_limit:
        _, y = place(0, limit)
        parts.append(f'<path d="M{LEFT} {y:.1f}H{WIDTH - 8}" stroke="#c33" stroke-dasharray="6 4"/>')
    parts.append(f'<text x="{WIDTH - 8}" y="{HEIGHT - 2}" text-anchor="end">{escape(x_name)}</text>')
    parts.append(f'<text x="{WIDTH - 8}" y="11" text-anchor="end">{escape(y_name)}</text></svg>')
    return "".join(parts)
