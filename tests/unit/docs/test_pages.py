"""Pages that programs write or tables fill: settings, parameters, clients, benchmarks, promises; no markers."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

from deploy import openai_page, settings_page
from deploy.openai_page import INSIDE, QUERY, ROWS, Row
from tests.clients.drivers import CLIENTS
from tests.clients.run import PAGE, version
from transport.cli.settings import FIELDS


def test_the_page_is_the_programs() -> None:
    text = settings_page.PAGE.read_text()
    assert text == settings_page.page_text(), "run `python deploy/settings_page.py` and commit docs/settings.md"
    assert all(f"\n| `{name}` |" in text for name in FIELDS)


ROOT = Path(__file__).resolve().parents[3]
NEAR = ROOT / "tests" / "integration" / "openai"


def rows() -> Iterator[tuple[str, Row]]:
    for table in (ROWS, INSIDE, QUERY):
        for name, properties in table.items():
            yield from ((f"{name}.{each}", row) for each, row in properties.items())


def test_the_page_of_parameters_is_the_programs() -> None:
    text = openai_page.PAGE.read_text()
    assert text == openai_page.page_text(), "run `python deploy/openai_page.py` and commit docs/openai.md"


def test_every_property_of_the_document_has_its_row_and_no_other() -> None:
    document = openai_page.document()
    tables = [(name, set(properties), ROWS) for _, name, properties in openai_page.requests(document)]
    tables += [(name, set(properties), INSIDE) for name, properties in openai_page.inner(document).items()]
    tables += [(path, set(names), QUERY) for path, names in openai_page.queries(document).items()]
    for name, properties, table in tables:
        told = table[name]
        assert properties <= set(told), name
        assert all(told[each].effect == "refused" for each in set(told) - properties), name


def test_every_row_names_a_test_that_there_is() -> None:
    for name, row in rows():
        path, _, function = row.test.partition("::")
        file = ROOT / path if path.startswith("tests/") else NEAR / path
        assert re.search(rf"^(async )?def {re.escape(function)}\(", file.read_text(), re.MULTILINE), (name, row.test)


def test_nothing_is_taken_and_dropped() -> None:
    for name, row in rows():
        assert row.effect == "honoured" or row.about or row.sample != openai_page.NONE, name
        if row.test.endswith(
            ("::test_one_answer_shows_what_happens", "::test_what_is_drawn_otherwise_reaches_the_engine")
        ):
            assert row.sample != openai_page.NONE, name


def test_the_page_has_every_client_at_its_version() -> None:
    text = PAGE.read_text()
    rows = {match[1]: match[2] for match in re.finditer(r"^\| ([^|]+) \| (\d\S*) \|", text, re.MULTILINE)}
    assert rows == {name: version(client) for name, client in CLIENTS.items()}
    headings = re.findall(r"^### (.+)$", text, re.MULTILINE)
    assert {name for heading in headings for name in heading.split("; ")} == CLIENTS.keys()


DOCS = Path(__file__).resolve().parents[3] / "docs"
HEAD = ["what", "target", "result", "conditions, commit", "command"]
LINE_MAX = 400  # a result, not its story


def result_rows(page: str) -> list[list[str]]:
    """The cells of every row of every table."""
    lines = (line for line in page.splitlines() if line.startswith("|") and not line.startswith("|--"))
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def faults(page: str) -> list[str]:
    """Rows that are no result of one line: other columns, no result, no command, or a story."""
    results = [row for row in result_rows(page) if row != HEAD]
    wrong = [row for row in results if len(row) != len(HEAD) or not row[2] or not row[4].startswith("`")]
    return [" | ".join(row) for row in results if row in wrong or len(" | ".join(row)) > LINE_MAX]


def test_each_result_is_one_line_with_its_command() -> None:
    page = (DOCS / "benchmarks.md").read_text(encoding="utf-8")
    assert len(result_rows(page)) > 30, "else this looks for something else"
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


ROW = re.compile(r"^\| (.+) \| \[\w[\w-]*\]\(([\w./-]+)\) \| `(tests/[\w/]+\.py)::(test_\w+)` \|$", re.MULTILINE)


def promised(text: str) -> list[tuple[str, ...]]:
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
    assert len(promised(text)) == len(lines)
    assert without_test(promised(text)) == []
    planted = ("planted", "", "tests/unit/docs/test_pages.py", "test_that_is_not_there")
    assert without_test([planted]) == ["planted"]


def test_every_row_of_the_readme_is_among_them() -> None:
    said = (ROOT / "README.md").read_text().split("## What it promises")[1].split("Not promised")[0]
    events = re.findall(r"^\| (?!when|---)([^|]+) \|", said, re.MULTILINE)
    promises = [
        promise for promise, page, *_ in promised((ROOT / "docs" / "promises.md").read_text()) if "README" in page
    ]
    assert events
    for event in events:
        words = set(re.findall(r"\w{4,}", event))
        assert any(len(words & set(re.findall(r"\w{4,}", promise))) * 2 >= len(words) for promise in promises), event


MARKER = re.compile(rb"^(<{7} |\|{7} |>{7} |<{7}$|>{7}$)", re.MULTILINE)


def has_markers(content: bytes) -> bool:
    return b"\0" not in content and MARKER.search(content) is not None


def test_no_tracked_file_has_conflict_markers() -> None:
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True).stdout.split(b"\0")
    paths = [ROOT / name.decode() for name in names if name]
    marked = [str(path) for path in paths if path.is_file() and has_markers(path.read_bytes())]
    assert paths and marked == []


def test_planted_markers_are_seen_and_headings_are_not() -> None:
    sides = b"<" * 7 + b" HEAD\none\n" + b"=" * 7 + b"\ntwo\n" + b">" * 7 + b" main\n"
    assert has_markers(b"text\n" + sides) and has_markers(b">" * 7 + b" main\n")
    assert not has_markers(b"Heading\n" + b"=" * 7 + b"\n") and not has_markers(b"\0" + sides)
