"""Documents of each format: what they are, the text that is read of them, and what is refused."""

from __future__ import annotations

import codecs
import io
import warnings
import zipfile
from collections.abc import Callable

import pytest

from inference.documents import office, pdf
from inference.documents.charsets import decode_text, looks_binary
from inference.documents.formats import DOCX, HTML, MARKDOWN, PDF, PLAIN, PPTX, XLSX, media_type_of, read_document
from inference.documents.html_pages import read_html
from inference.documents.office import read_docx, read_pptx, read_xlsx
from inference.documents.pdf import read_pdf
from inference.documents.text_builder import TextBuilder, TextFull, clean_text
from inference.documents.zip_bounds import PARTS_MAX, check_zip
from inference.file_workers.frames import DocumentRequest
from inference.file_workers.worker import answer
from sessions.model.errors import BadInput, TooLarge
from sessions.model.knowledge.documents import DocumentText
from testbed.documents.made import a_docx, a_pdf, a_pptx, an_xlsx

# -- charsets
WORDS = "Füße über Straßen; naïve Œuvre. " * 20


@pytest.mark.parametrize("charset", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "cp1252"])
def test_charsets(charset: str) -> None:
    content = WORDS.encode(charset)
    assert decode_text(content) == WORDS and not looks_binary(content)


@pytest.mark.parametrize(
    ("charset", "text"),
    [
        ("cp1251", "Быстрая коричневая лиса перепрыгивает через ленивую собаку. " * 10),
        ("shift_jis", "吾輩は猫である。名前はまだ無い。どこで生れたかとんと見当がつかぬ。" * 10),
        ("gb18030", "道可道，非常道。名可名，非常名。无名天地之始；有名万物之母。" * 10),
    ],
)
def test_charsets_that_are_told_by_their_words(charset: str, text: str) -> None:
    assert decode_text(text.encode(charset)) == text


def test_what_is_broken_is_marked() -> None:
    assert decode_text(codecs.BOM_UTF8 + b"a\xffb") == "a\ufffdb"
    assert "\ufffd" in decode_text(codecs.BOM_UTF16_LE + b"a\0\0\xd8b\0")


def test_binary() -> None:
    assert looks_binary(b"a\0b\1c" * 20) and looks_binary(bytes(range(1, 32)))
    assert not looks_binary(b"") and not looks_binary(b"a\tb\r\n\x1b[0m")


# -- formats
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
    with pytest.raises(TooLarge, match=r"^file_too_complex: "):
        read_document(out.getvalue(), "x.docx", "")


# -- html pages
def html_text(content: str | bytes) -> DocumentText:
    builder = TextBuilder()
    read_html(content.encode() if isinstance(content, str) else content, builder)
    return builder.finish("text/html")


def test_texts_of_a_page() -> None:
    made = html_text(
        "<html><head><title>The title</title><style>p{}</style><script>alert(1)</script></head><body>"
        "<h1>Head</h1><p>Some  &amp;\n more<br>line<ul><li>one<li>two</ul>"
        "<table><tr><th>a<td>b<tr><td>c<td>d</table><pre>x  y\n z</pre></body></html>"
    )
    assert made.text == "The title\nHead\nSome & more\nline\n- one\n- two\na\tb\nc\td\nx  y\n z\n"


def test_a_head_that_is_not_closed_hides_nothing() -> None:
    assert html_text("<head><title>T</title><body><p>shown").text == "T\nshown\n"
    assert html_text("<svg><p>no</svg><p>yes").text == "yes\n"


def test_the_charset_that_a_page_names() -> None:
    assert html_text("<meta charset=iso-8859-2><p>Łódź".encode("iso-8859-2")).text == "Łódź\n"
    assert html_text("<meta charset=nonsense><p>über".encode()).text == "über\n"


def test_deep_and_broken_pages_end() -> None:
    assert html_text("<div>" * 100_000 + "x").text == "x\n"
    assert html_text("<" * 1000).text.strip("<\n") == ""
    assert len(html_text("<!--" + "x" * 1000).text) <= 1005, "a remark without an end is a text, as it was written"


# -- office
def office_text(reader: Callable[[bytes, TextBuilder], None], content: bytes) -> DocumentText:
    builder = TextBuilder()
    reader(content, builder)
    return builder.finish("")


def test_word() -> None:
    made = office_text(read_docx, a_docx([(1, "Title"), "Words.", (2, "Sub"), "More."], [["a", "b"], ["c", "d"]]))
    assert made.text == "Title\nWords.\nSub\nMore.\na\tb\nc\td\n"


def test_excel() -> None:
    made = office_text(read_xlsx, an_xlsx({"First": [["name", "n"], ["x", 2.5], []], "Second": [["z"]]}))
    assert made.text == "# First\nname\tn\nx\t2.5\n# Second\nz\n"


def test_excel_has_bounded_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(office, "ROWS_MAX", 2)
    with pytest.raises(TextFull):
        office_text(read_xlsx, an_xlsx({"s": [["a"], ["b"], ["c"]]}))


def test_powerpoint() -> None:
    made = office_text(read_pptx, a_pptx([("One", "Body", "Notes"), ("Two", "", "")]))
    assert made.text == "One\nBody\nNotes\n\nTwo\n\n"


@pytest.mark.parametrize("part", ["word/document.xml", "xl/workbook.xml", "ppt/presentation.xml"])
def test_damaged_ones_are_refused(part: str) -> None:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr(part, "<w")
    reply = answer(DocumentRequest(content.getvalue(), "a", ""))
    assert reply.fault is not None and reply.fault.code == "file_unreadable" and "damaged" in reply.fault.message


# -- pdf
def pdf_text(content: bytes) -> DocumentText:
    builder = TextBuilder()
    read_pdf(content, builder)
    return builder.finish("application/pdf")


def test_pages() -> None:
    made = pdf_text(a_pdf(["Intro\nChapter One\nwords", "More"], outline=[(0, "Chapter One")]))
    assert made.text == "Intro\nChapter One\nwords\nMore\n"


@pytest.mark.parametrize("content", [b"%PDF-1.4", b"%PDF-1.7\n" + bytes(500), a_pdf(["x"])[:120]])
def test_a_damaged_one_is_refused(content: bytes) -> None:
    with pytest.raises(BadInput, match="damaged"):
        pdf_text(content)


def test_pages_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pdf, "PAGES_MAX", 1)
    with pytest.raises(TooLarge, match="2 pages"):
        pdf_text(a_pdf(["a", "b"]))


def test_a_locked_one_is_refused() -> None:
    import io

    from pypdf import PdfWriter

    writer = PdfWriter(clone_from=io.BytesIO(a_pdf(["secret"])))
    writer.encrypt("password", algorithm="AES-256")
    out = io.BytesIO()
    writer.write(out)
    with pytest.raises(BadInput, match="password"):
        pdf_text(out.getvalue())


# -- text builder
def test_a_text_beyond_its_limit_is_cut() -> None:
    builder = TextBuilder(5)
    builder.put("abc")
    with pytest.raises(TextFull):
        builder.put("defg")
    made = builder.finish("text/plain")
    assert made.text == "abcde" and made.cut


def test_what_no_log_can_hold_is_left_out() -> None:
    assert clean_text("a\0b\r\nc\rd\u2028e\ud800f\u202eg\x1bh\ti") == "ab\nc\nd\nefgh\ti"
    clean_text("a\ud800").encode()


# -- zip bounds
def a_zip(parts: dict[str, bytes], *, twice: str = "") -> bytes:
    out = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        warnings.simplefilter("ignore")
        for name, content in parts.items():
            archive.writestr(name, content)
        if twice:
            archive.writestr(twice, b"other")
    return out.getvalue()


@pytest.mark.parametrize("parts", [{"a": bytes(5 << 20)}, {f"{n}": b"" for n in range(PARTS_MAX + 1)}])
def test_what_becomes_too_large(parts: dict[str, bytes]) -> None:
    with pytest.raises(TooLarge):
        check_zip(a_zip(parts))


@pytest.mark.parametrize("content", [b"PK\3\4", b"", a_zip({"a": b"x"})[:-9], a_zip({"a": b"x"}, twice="a")])
def test_damaged_ones(content: bytes) -> None:
    with pytest.raises(BadInput, match=r"^file_unreadable: "):
        check_zip(content)


def test_a_locked_one() -> None:
    content = bytearray(a_zip({"a": b"x"}))
    place = content.index(b"PK\1\2")
    content[place + 8] |= 1
    with pytest.raises(BadInput, match="password"):
        check_zip(bytes(content))
