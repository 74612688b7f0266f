"""The page of `./sessile plan`: the answer and three charts as SVG, in one file without scripts or other addresses."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Final

from inference.planning.planner import CapacityPlan, PlanOption, cheapest_by_gpu

WIDTH: Final = 640
HEIGHT: Final = 240
LEFT: Final = 64
COLOURS: Final = ("#2563eb", "#dc2626", "#059669")
STYLE: Final = """
body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#111;background:#fff}
table{border-collapse:collapse;width:100%}td,th{padding:.25rem .5rem;border-bottom:1px solid #ddd;text-align:left}
td.n,th.n{text-align:right}svg{max-width:100%;height:auto}text{font:12px system-ui,sans-serif;fill:#333}
"""


def plan_page(plan: CapacityPlan) -> str:
    best = plan.best
    parts = [f"<h1>{escape(plan.model)}, {plan.precision}, {plan.sessions:,} sessions</h1>"]
    if best is None:
        parts.append("<p><strong>Nothing serves this within the targets.</strong></p>")
    else:
        parts += _best_parts(plan, best)
    parts.append(_options_table(plan.options))
    parts += [f"<p>{escape(note)}</p>" for note in plan.notes]
    body = "\n".join(parts)
    head = f'<meta charset="utf-8"><title>Plan: {escape(plan.model)}</title><style>{STYLE}</style>'
    return f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body>{body}</body></html>\n'


def _best_parts(plan: CapacityPlan, best: PlanOption) -> list[str]:
    answer = f"<strong>{best.gpus} × {escape(best.gpu)}</strong>: {best.replicas} replicas of {best.layout}"
    cost = f"{best.cost_month:,.0f} a month, {best.cost_per_million_answer:.2f} per million tokens written"
    limit = f"Limit: {escape(best.limit or 'none')}: {escape(best.why)}. Times: {escape(best.basis)}."
    parts = [f"<p>{answer}; {cost}. {limit}</p>"]
    curve = best.curve
    sessions = [load.sessions for load in curve]
    tpot = ("TPOT, ms", [load.tpot_ms for load in curve])
    ttft = ("TTFT p95, ms", [load.ttft_p95_ms for load in curve])
    parts += ["<h2>A replica under load</h2>", line_chart(sessions, [tpot]), line_chart(sessions, [ttft])]
    if best.load is not None:
        shown = {name: value for name, value in best.load.parts_ms.items() if value >= 0.005}
        parts += ["<h2>Where a token's time goes, ms</h2>", bar_chart(shown)]
    kinds = {f"{each.gpu} {each.layout}": each.cost_month for each in cheapest_by_gpu(plan.options)}
    parts += ["<h2>Cost a month by kind</h2>", bar_chart(kinds)]
    tiers = {tier.tier: tier.hit_rate * 100 for tier in best.tiers if tier.size_gb}
    computed = best.load.hits.computed * 100 if best.load is not None else 0.0
    parts += ["<h2>Where a returning session's KV is, % of turns</h2>", bar_chart(tiers | {"computed anew": computed})]
    return parts


def line_chart(across: Sequence[float], series: Sequence[tuple[str, Sequence[float]]]) -> str:
    """Points that are infinite are left out."""
    finite = [value for _, values in series for value in values if value < float("inf")]
    if not finite or not across:
        return "<p>no figures</p>"
    top, right = max(finite) * 1.05 or 1.0, max(across) or 1.0
    parts = [
        f'<line x1="{LEFT}" y1="{HEIGHT - 24}" x2="{WIDTH}" y2="{HEIGHT - 24}" stroke="#999"/>',
        f'<text x="4" y="14">{top:,.0f}</text><text x="4" y="{HEIGHT - 24}">0</text>',
        f'<text x="{WIDTH}" y="{HEIGHT - 6}" text-anchor="end">{right:,.0f} sessions</text>',
    ]
    for (label, values), colour in zip(series, COLOURS, strict=False):
        points = " ".join(
            f"{LEFT + (WIDTH - LEFT) * x / right:.1f},{(HEIGHT - 24) * (1 - y / top):.1f}"
            for x, y in zip(across, values, strict=True)
            if y < float("inf")
        )
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts.append(f'<text x="{LEFT + 8}" y="14" style="fill:{colour}">{escape(label)}</text>')
    label = escape(", ".join(name for name, _ in series))
    return f'<svg role="img" aria-label="{label}" viewBox="0 0 {WIDTH} {HEIGHT}">{"".join(parts)}</svg>'


def bar_chart(values: dict[str, float]) -> str:
    if not values:
        return "<p>no figures</p>"
    top = max(values.values()) or 1.0
    rows = []
    for index, (name, value) in enumerate(values.items()):
        y, length = index * 24, 360 * value / top
        rows.append(f'<text x="150" y="{y + 16}" text-anchor="end">{escape(name)}</text>')
        rows.append(f'<rect x="160" y="{y + 4}" width="{length:.1f}" height="16" fill="{COLOURS[0]}"/>')
        rows.append(f'<text x="{168 + length:.1f}" y="{y + 16}">{value:,.2f}</text>')
    return f'<svg role="img" aria-label="bars" viewBox="0 0 {WIDTH} {24 * len(values) + 4}">{"".join(rows)}</svg>'


def _options_table(options: Sequence[PlanOption]) -> str:
    heads = ("GPU", "spread", "GPUs", "replicas", "cost a month", "per million written", "limit", "why")
    rows = ["<tr>" + "".join(f"<th>{head}</th>" for head in heads) + "</tr>"]
    for each in options:
        fits = each.fits
        numbers = (
            (f"{each.gpus}", f"{each.replicas}", f"{each.cost_month:,.0f}", f"{each.cost_per_million_answer:.2f}")
            if fits
            else ("–",) * 4
        )
        cells = [f"<td>{escape(each.gpu)}</td><td>{each.layout}</td>"]
        cells += [f'<td class="n">{number}</td>' for number in numbers]
        cells.append(f"<td>{escape(each.limit or 'none')}</td><td>{escape(each.why)}</td>")
        rows.append(f"<tr>{''.join(cells)}</tr>")
    return f"<h2>Every option</h2><table>{''.join(rows)}</table>"
