"""Prints a reconciliation of usage for people: totals as billed and as logged, then the differences."""

from __future__ import annotations

from sessions.billing.prices import amount
from sessions.billing.reconcile import ReconciliationReport, Sums

ROWS = (("responses", "responses"), ("input tokens", "input_tokens"), ("cached tokens", "cached_tokens"))
MORE_ROWS = (("output tokens", "output_tokens"), ("token ids in deltas", "ledger_tokens"))


def reconciled_text(report: ReconciliationReport) -> str:
    lines = [f"{'':<22}{'billed':>16}{'in the logs':>16}"]
    lines += [_line(title, report.billed, report.logged, name) for title, name in ROWS + MORE_ROWS]
    lines.append(f"{'cost':<22}{amount(report.billed.cost):>16}{amount(report.logged.cost):>16}")
    lines.append(f"{report.sessions} sessions; {report.purged_rows} rows of purged sessions have no log any more")
    lines += [str(difference) for difference in report.differences]
    if report.num_differences > len(report.differences):
        lines.append(f"and {report.num_differences - len(report.differences)} more")
    lines.append("They agree." if not report.num_differences else f"{report.num_differences} differences.")
    return "\n".join(lines)


def _line(title: str, billed: Sums, logged: Sums, name: str) -> str:
    return f"{title:<22}{getattr(billed, name):>16}{getattr(logged, name):>16}"
