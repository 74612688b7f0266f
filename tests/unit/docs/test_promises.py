"""docs/promises.md names a test for each promise, and README's table stands in it."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
ROW = re.compile(r"^\| (.+) \| \[\w[\w-]*\]\(([\w./-]+)\) \| `(tests/[\w/]+\.py)::(test_\w+)` \|$", re.MULTILINE)


def rows(text: str) -> list[tuple[str, ...]]:
    return ROW.findall(text)


def without_test(found: list[tuple[str, ...]]) -> list[str]:
    """The promises whose test is not there."""
    missing = []
    for promise, _, file, name in found:
        path = ROOT / file
        if not path.is_file() or not re.search(rf"^(async )?def {name}\(", path.read_text(), re.MULTILINE):
            missing.append(promise)
    return missing


def test_every_promise_names_a_test_that_there_is() -> None:
    text = (ROOT / "docs" / "promises.md").read_text()
    lines = [line for line in text.splitlines() if line.startswith("| ") and not line.startswith("| promise")]
    assert len(rows(text)) == len(lines)
    assert without_test(rows(text)) == []
    planted = ("planted", "", "tests/unit/docs/test_promises.py", "test_that_is_not_there")
    assert without_test([planted]) == ["planted"]


def test_every_row_of_the_readme_is_among_them() -> None:
    said = (ROOT / "README.md").read_text().split("## What it promises")[1].split("Not promised")[0]
    events = re.findall(r"^\| (?!when|---)([^|]+) \|", said, re.MULTILINE)
    promises = [promise for promise, page, *_ in rows((ROOT / "docs" / "promises.md").read_text()) if "README" in page]
    assert events
    for event in events:
        words = set(re.findall(r"\w{4,}", event))
        assert any(len(words & set(re.findall(r"\w{4,}", promise))) * 2 >= len(words) for promise in promises), event
