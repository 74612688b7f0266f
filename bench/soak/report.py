"""Writes the report of a soak: one HTML file with its counts, findings, growth and plots, that loads nothing. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from html import escape
from itertools import groupby

import msgspec

from bench.plots import DOTS_MAX, STYLE, Series, plot
from bench.soak.monitor import Growth, MeasuredLine


class SoakResult(msgspec.Struct, kw_only=True):
    """What is known of a soak so far."""

    conditions: dict[str, object]
    hours: float = 0.0
    chapters: int = 0
    turns: int = 0
    resumes: int = 0
    connections_cut: int = 0
    kills: int = 0
    looks: int = 0
    faults: Counter[str] = msgspec.field(default_factory=Counter)
    findings: list[str] = msgspec.field(default_factory=list)
    silences: list[tuple[float, float]] = msgspec.field(default_factory=list)  # (hours, the longest of a chapter in s)
    growth: list[Growth] = msgspec.field(default_factory=list)

    @property
    def rising(self) -> list[str]:
        return [f"{each.line.what} of {each.line.who}" for each in self.growth if each.flat is False]

    @property
    def verdict(self) -> str:
        if self.findings:
            return f"{len(self.findings)} findings"
        return f"0 findings; rising: {', '.join(self.rising)}" if self.rising else "0 findings"


def soak_page(result: SoakResult, lines: Sequence[MeasuredLine]) -> str:
    """The whole page."""
    passed = not result.findings and not result.rising
    counts = {
        "hours": f"{result.hours:.2f}",
        "conversations' turns": result.turns,
        "resumes": result.resumes,
        "connections cut at clients": result.connections_cut,
        "kills": result.kills,
        "old conversations read again": result.looks,
        "chapters": result.chapters,
    }
    parts = [
        f"<!doctype html><meta charset=utf-8><title>Soak</title><style>{STYLE}</style><h1>Soak</h1>",
        f'<p class="{"ok" if passed else "bad"}"><b>{escape(result.verdict)}</b></p>',
        _table(counts.items()),
        "<h2>Faults</h2>" + _table(result.faults.most_common()),
        "<h2>Findings</h2>" + _findings(result.findings),
        "<h2>Longest silence within an answer</h2>" + plot([Series("", result.silences)], "hours", "seconds"),
        "<h2>Growth over the last hour</h2><p>Of a run shorter than two hours: over its last half, and not judged. "
        "Members that are killed again and again are shown and not judged.</p>" + _growth(result.growth),
    ]
    for what, group in groupby(sorted(lines), key=lambda line: line.what):
        series = [Series(line.who, _thinned(line.points), line=True) for line in group]
        parts.append(f"<h2>{escape(what)}</h2>{plot(series, 'hours', what)}")
    parts.append("<h2>Conditions</h2>" + _table(result.conditions.items()))
    return "".join(parts)


def _thinned(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    step = max(1, len(points) * 5 // DOTS_MAX)
    return [(at / 3600, value) for at, value in points[::step]]


def _table(rows: object) -> str:
    cells = "".join(f"<tr><td>{escape(str(a))}</td><td>{escape(str(b))}</td></tr>" for a, b in rows)  # type: ignore[attr-defined]
    return f"<table>{cells}</table>"


def _findings(findings: Sequence[str]) -> str:
    if not findings:
        return "<p>None: nothing was lost, repeated or changed, and nothing stood still.</p>"
    return "<ul>" + "".join(f"<li>{escape(each)}</li>" for each in findings[:500]) + "</ul>"


def _growth(growth: Sequence[Growth]) -> str:
    rows = []
    for each in sorted(growth, key=lambda each: (each.line.what, each.line.who)):
        word, kind = {None: ("", ""), True: ("flat", "ok"), False: ("rises", "bad")}[each.flat]
        rows.append(
            f"<tr><td>{escape(each.line.what)}, {escape(each.line.who)}</td><td>{each.mean:.1f}</td>"
            f'<td>{each.per_hour:+.2f}</td><td class="{kind}">{word}</td></tr>'
        )
    head = "<tr><th>what</th><th>mean</th><th>an hour</th><th></th></tr>"
    return f"<table>{head}{''.join(rows)}</table>"
