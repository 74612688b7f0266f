"""PDF, page by page."""

from __future__ import annotations

import pytest

from inference.documents import pdf
from inference.documents.pdf import read_pdf
from inference.documents.text_builder import TextBuilder
from sessions.model.errors import BadInput, TooLarge
from sessions.model.knowledge.documents import DocumentText
from tests.support.documents.made import a_pdf


def read(content: bytes) -> DocumentText:
    builder = TextBuilder()
    read_pdf(content, builder)
    return builder.finish("application/pdf")


def test_pages_and_headings() -> None:
    made = read(a_pdf(["Intro\nChapter One\nwords", "More"], outline=[(0, "Chapter One"), (1, "Elsewhere")]))
    assert made.text == "Intro\nChapter One\nwords\nMore\n"
    assert [(each.kind, made.text[each.start :][:5], each.title) for each in made.sections] == [
        ("page", "Intro", ""),
        ("heading", "Chapt", "Chapter One"),
        ("page", "More\n", ""),
        ("heading", "More\n", "Elsewhere"),
    ]


@pytest.mark.parametrize("content", [b"%PDF-1.4", b"%PDF-1.7\n" + bytes(500), a_pdf(["x"])[:120]])
def test_a_damaged_one_is_refused(content: bytes) -> None:
    with pytest.raises(BadInput, match="damaged"):
        read(content)


def test_pages_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pdf, "PAGES_MAX", 1)
    with pytest.raises(TooLarge, match="2 pages"):
        read(a_pdf(["a", "b"]))


def test_a_locked_one_is_refused() -> None:
    import io

    from pypdf import PdfWriter

    writer = PdfWriter(clone_from=io.BytesIO(a_pdf(["secret"])))
    writer.encrypt("password", algorithm="AES-256")
    out = io.BytesIO()
    writer.write(out)
    with pytest.raises(BadInput, match="password"):
        read(out.getvalue())
