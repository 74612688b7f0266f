"""Word, Excel and PowerPoint."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from inference.documents import office
from inference.documents.office import read_docx, read_pptx, read_xlsx
from inference.documents.text_builder import TextBuilder, TextFull
from sessions.model.errors import BadInput
from sessions.model.knowledge.documents import DocumentText
from tests.support.documents.made import a_docx, a_pptx, an_xlsx


def read(reader: Callable[[bytes, TextBuilder], None], content: bytes) -> DocumentText:
    builder = TextBuilder()
    reader(content, builder)
    return builder.finish("")


def test_word() -> None:
    made = read(read_docx, a_docx([(1, "Title"), "Words.", (2, "Sub"), "More."], [["a", "b"], ["c", "d"]]))
    assert made.text == "Title\nWords.\nSub\nMore.\na\tb\nc\td\n"
    assert [(each.kind, each.number, each.title, made.text[each.start :][:3]) for each in made.sections] == [
        ("heading", 1, "Title", "Tit"),
        ("heading", 2, "Sub", "Sub"),
    ]


def test_excel() -> None:
    made = read(read_xlsx, an_xlsx({"First": [["name", "n"], ["x", 2.5], []], "Second": [["z"]]}))
    assert made.text == "# First\nname\tn\nx\t2.5\n# Second\nz\n"
    assert [(each.kind, each.number, each.title) for each in made.sections] == [
        ("sheet", 1, "First"),
        ("sheet", 2, "Second"),
    ]


def test_excel_has_bounded_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(office, "ROWS_MAX", 2)
    with pytest.raises(TextFull):
        read(read_xlsx, an_xlsx({"s": [["a"], ["b"], ["c"]]}))


def test_powerpoint() -> None:
    made = read(read_pptx, a_pptx([("One", "Body", "Notes"), ("Two", "", "")]))
    assert made.text == "One\nBody\nNotes\n\nTwo\n\n"
    assert [(each.number, each.title) for each in made.sections if each.kind == "slide"] == [(1, "One"), (2, "Two")]


@pytest.mark.parametrize("reader", [read_docx, read_xlsx, read_pptx])
@pytest.mark.parametrize("content", [b"PK\3\4", a_docx(["x"])[:900], b""])
def test_damaged_ones_are_refused(reader: Callable[[bytes, TextBuilder], None], content: bytes) -> None:
    with pytest.raises(BadInput, match="damaged"):
        read(reader, content)
