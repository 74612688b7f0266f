"""The table of a load while it runs, as text. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from transport.cli.shared_flags import table
from transport.load.measurements import LoadSummary, Measurements

HEAD = ("kind", "done", "failed", "429", "TTFT p50", "p95", "p99 ms", "TPOT p50", "p95", "p99 ms", "goodput")


def headline(measurements: Measurements, whole: LoadSummary, *, elapsed_s: float, cpu_share: float) -> str:
    return (
        f"{elapsed_s:.0f} s · {measurements.in_flight} in flight · {whole.requests} done"
        f" · {whole.tokens_per_s:,.0f} tokens/s · goodput {whole.goodput:.1%} ({whole.good_per_s:.2f}/s)"
        f" · own CPU {cpu_share:.0%} of a core"
    )


def table_of(summaries: Sequence[LoadSummary]) -> str:
    """A row for each kind, `all` as the last."""
    return table([HEAD, *map(_row, summaries)])


def error_lines(measurements: Measurements) -> list[str]:
    """The sentences of what failed, the most frequent first."""
    return [f"{count} × {sentence}" for sentence, count in measurements.errors.most_common(8)]


def _row(row: LoadSummary) -> list[str]:
    return [
        row.kind,
        str(row.requests),
        str(row.failed),
        str(row.turned_away),
        *(f"{value:.0f}" for value in (row.ttft_ms or {}).values()),
        *([] if row.ttft_ms else ["–"] * 3),
        *(f"{value:.1f}" for value in (row.tpot_ms or {}).values()),
        *([] if row.tpot_ms else ["–"] * 3),
        f"{row.goodput:.1%}",
    ]
