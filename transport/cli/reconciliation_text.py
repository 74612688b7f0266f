"""What reconciling usage found, for people."""

from __future__ import annotations

from sessions.billing.prices import amount
from sessions.billing.reconcile import ReconciliationReport, Sums

ROWS = (("responses", "responses"), ("input tokens", "input_tokens"), ("cached tokens", "cached_tokens"))
MORE_ROWS = (("output tokens", "output_tokens"), ("token ids in deltas", "ledger_tokens"))


def reconciled_text(found: ReconciliationReport) -> str:
    lines = [f"{'':<22}{'billed':>16}{'in the logs':>16}"]
    lines += [_line(title, found.billed, found.logged, name) for title, name in ROWS + MORE_ROWS]
    lines.append(f"{'cost':<22}{amount(found.billed.cost):>16}{amount(found.logged.cost):>16}")
    lines.append(f"{found.sessions} sessions; {found.purged_rows} rows of purged sessions have no log any more")
    lines += [str(difference) for difference in found.differences]
    if found.num_differences > len(found.differences):
        lines.append(f"and {found.num_differences - len(found.differences)} more")
    lines.append("They agree." if not found.num_differences else f"{found.num_differences} differences.")
    return "\n".join(lines)


def _line(title: str, billed: Sums, logged: Sums, name: str) -> str:
    return f"{title:<22}{getattr(billed, name):>16}{getattr(logged, name):>16}"
