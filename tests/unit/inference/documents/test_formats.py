"""What a document is, its content says; a name decides only among kinds of text."""

from __future__ import annotations

import io
import zipfile

import pytest

from inference.documents.formats import DOCX, HTML, MARKDOWN, PDF, PLAIN, PPTX, XLSX, media_type_of, read_document
from sessions.model.errors import BadInput, TooLarge
from tests.support.documents.made import a_docx, a_pdf, a_pptx, an_xlsx


@pytest.mark.parametrize(
    ("content", "name", "found"),
    [
        (a_pdf(["x"]), "x.txt", PDF),
        (a_docx(["x"]), "x.pdf", DOCX),
        (an_xlsx({"s": [["x"]]}), "", XLSX),
        (a_pptx([("t", "x", "")]), "x.html", PPTX),
        (b"<!DOCTYPE html><p>x", "x.txt", HTML),
        (b" <!-- c --> <HTML>", "x", HTML),
        (b"<p>x", "x.htm", HTML),
        (b"# x", "READ.MD", MARKDOWN),
        (b"# x", "x.txt", PLAIN),
        (b"", "x.pdf", PLAIN),
    ],
)
def test_what_a_document_is(content: bytes, name: str, found: str) -> None:
    assert media_type_of(content, name, "") == found


def test_a_type_decides_among_texts_alone() -> None:
    assert media_type_of(b"# x", "x", "text/markdown") == MARKDOWN
    assert media_type_of(b"x", "x", "text/html") == HTML
    assert media_type_of(b"x", "x.pdf", "application/pdf") == PLAIN


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"\x89PNG\r\n\x1a\n\0\0", "image"),
        (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(99), "old format"),
        (b"\x7fELF" + bytes(99), "program"),
        (b"RIFF\0\0\0\0WEBPVP8 ", "image"),
        (bytes(range(1, 32)) * 9, "no text"),
        (b"\1\2\3\0" * 99, "no text"),
    ],
)
def test_what_is_no_document_is_refused(content: bytes, why: str) -> None:
    with pytest.raises(BadInput, match=why) as refused:
        read_document(content, "x.txt", "text/plain")
    assert refused.value.code == "file_type_unsupported"


def test_an_archive_of_other_things_is_refused() -> None:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("a.txt", "x")
    with pytest.raises(BadInput, match="archive"):
        read_document(out.getvalue(), "x.docx", DOCX)


def test_a_pdf_of_images_says_so() -> None:
    with pytest.raises(BadInput, match="scanned"):
        read_document(a_pdf([""]), "x.pdf", PDF)


def test_a_part_that_becomes_too_large_is_refused_before_it_is_unpacked() -> None:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("word/document.xml", bytes(8 << 20))
    with pytest.raises(TooLarge) as refused:
        read_document(out.getvalue(), "x.docx", "")
    assert refused.value.code == "file_too_complex"
