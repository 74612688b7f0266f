"""docs/openai.md says what happens to every parameter of the server's OpenAPI document, and a test shows each."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from deploy import openai_page
from deploy.openai_page import INSIDE, QUERY, ROWS, Row

ROOT = Path(__file__).resolve().parents[3]
NEAR = ROOT / "tests" / "integration" / "openai"


def rows() -> Iterator[tuple[str, Row]]:
    for table in (ROWS, INSIDE, QUERY):
        for name, properties in table.items():
            yield from ((f"{name}.{each}", row) for each, row in properties.items())


def test_the_page_is_the_programs() -> None:
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
