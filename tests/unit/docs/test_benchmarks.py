"""The page of benchmarks has one result a line, and how it came there is elsewhere."""

from __future__ import annotations

from pathlib import Path

DOCS = Path(__file__).resolve().parents[3] / "docs"
HEAD = ["what", "target", "result", "conditions, commit", "command"]
LINE_MAX = 400  # a result, not its story


def rows(page: str) -> list[list[str]]:
    """The cells of every row of every table."""
    lines = (line for line in page.splitlines() if line.startswith("|") and not line.startswith("|--"))
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def faults(page: str) -> list[str]:
    """Rows that are no result of one line: other columns, no result, no command, or a story."""
    results = [row for row in rows(page) if row != HEAD]
    wrong = [row for row in results if len(row) != len(HEAD) or not row[2] or not row[4].startswith("`")]
    return [" | ".join(row) for row in results if row in wrong or len(" | ".join(row)) > LINE_MAX]


def test_each_result_is_one_line_with_its_command() -> None:
    page = (DOCS / "benchmarks.md").read_text(encoding="utf-8")
    assert len(rows(page)) > 30, "else this looks for something else"
    assert faults(page) == []


def test_a_row_that_is_planted_is_found() -> None:
    good = "| a | ≤ 1 | 0.5 | alone, 0123456 | `bench.streams` |"
    assert faults(good) == []
    for planted in (
        "| a | ≤ 1 | 0.5 | `bench.streams` |",
        good.replace("0.5", ""),
        good.replace("0.5", "before " * 60),
    ):
        assert len(faults(planted)) == 1, planted
