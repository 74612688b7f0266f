"""Writes the report of a load: one HTML file with its figures and plots, without scripts, that loads nothing. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Final, NamedTuple

import msgspec

from transport.load.measurements import LatencyTargets, LoadSummary, RequestResult

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


class ReportHeader(msgspec.Struct, frozen=True):
    """What stands above the figures."""

    title: str
    facts: list[tuple[str, str]]
    verdict: str
    passed: bool


def html_report(
    header: ReportHeader,
    summaries: Sequence[LoadSummary],
    results: Sequence[RequestResult],
    errors: Sequence[str],
    targets: LatencyTargets,
) -> str:
    """The whole page."""
    kinds = sorted({each.kind for each in results})
    ttft = [
        _series(kind, [(r.sent, r.ttft_s * 1000) for r in results if r.kind == kind and r.ttft_s]) for kind in kinds
    ]
    tpot = [
        _series(kind, [(r.sent, r.tpot_s * 1000) for r in results if r.kind == kind and r.tpot_s]) for kind in kinds
    ]
    facts = "".join(f"<tr><td>{escape(name)}</td><td>{escape(value)}</td></tr>" for name, value in header.facts)
    faults = "".join(f"<li>{escape(each)}</li>" for each in errors)
    shares = [Series(each.name, distribution([y for _, y in each.points]), line=True) for each in ttft]
    return "\n".join(
        (
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width">',
            "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">",
            f"<title>{escape(header.title)}</title><style>{STYLE}</style></head><body>",
            f"<h1>{escape(header.title)}</h1>",
            f'<p class="{"ok" if header.passed else "bad"}"><strong>{escape(header.verdict)}</strong></p>',
            f"<table>{facts}</table><h2>Figures</h2>{_figures(summaries)}",
            f"<h2>Errors</h2><ul>{faults}</ul>" if faults else "",
            "<h2>Time to first token</h2>",
            plot(ttft, "seconds since the start", "ms", limit=targets.ttft_ms),
            "<h2>Share of requests whose first token came within</h2>",
            plot(shares, "ms", "%"),
            "<h2>Time per output token</h2>",
            plot(tpot, "seconds since the start", "ms", limit=targets.tpot_ms),
            "<h2>Requests under way</h2>",
            plot([Series("under way", under_way(results), line=True)], "seconds since the start", "requests"),
            "</body></html>\n",
        )
    )


def under_way(results: Sequence[RequestResult]) -> list[tuple[float, float]]:
    """(time, how many requests were under way), where it changed."""
    changes = sorted([(each.sent, 1) for each in results] + [(each.ended, -1) for each in results])
    points, count = [], 0
    for at, change in changes:
        count += change
        points.append((at, float(count)))
    return _thinned(points)


def distribution(values: Sequence[float]) -> list[tuple[float, float]]:
    """(value, percentage of values that do not exceed it)."""
    ordered = sorted(values)
    return _thinned([(value, 100 * (rank + 1) / len(ordered)) for rank, value in enumerate(ordered)])


def ticks(highest: float) -> list[float]:
    """Three to six round numbers from 0 up to the first that is not below `highest`."""
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
    """An SVG of these points, with a dashed line at `limit` where that is not far above them."""
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


def _series(name: str, points: list[tuple[float, float]]) -> Series:
    return Series(name, _thinned(points))


def _thinned(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """At most as many as a plot shows, evenly left out, the last among those that stay."""
    step = -(-len(points) // DOTS_MAX)
    return points if step <= 1 else points[::-step][::-1]


def _figures(summaries: Sequence[LoadSummary]) -> str:
    head = ("kind", "requests", "good", "failed", "turned away", "goodput", "good/s", "tokens/s")
    latencies = [f"{name} {point} ms" for name in ("TTFT", "TPOT") for point in ("p50", "p95", "p99")]
    rows = ["".join(f"<th>{each}</th>" for each in (*head, *latencies))]
    for each in summaries:
        cells = [each.kind, str(each.requests), str(each.good), str(each.failed), str(each.turned_away)]
        cells += [f"{each.goodput:.1%}", f"{each.good_per_s:.2f}", f"{each.tokens_per_s:,.0f}"]
        for figures in (each.ttft_ms, each.tpot_ms):
            cells += [f"{value:.1f}" for value in figures.values()] if figures else ["–"] * 3
        rows.append("".join(f"<td>{escape(cell)}</td>" for cell in cells))
    return f"<table>{''.join(f'<tr>{row}</tr>' for row in rows)}</table>"
