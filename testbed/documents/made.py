"""Small documents of each format, with texts of the caller's. The libraries are imported where they are used: few
tests need them."""

from __future__ import annotations

import io
from collections.abc import Sequence


def a_pdf(pages: Sequence[str], *, outline: Sequence[tuple[int, str]] = ()) -> bytes:
    """Written by hand: one line of Helvetica a line of text. `outline`: bookmarks as (page from 0, title)."""
    objects: list[bytes] = []

    def add(body: bytes) -> int:
        objects.append(body)
        return len(objects)

    catalog, tree = add(b""), add(b"")
    font = add(b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica /Encoding /WinAnsiEncoding >>")
    kids = []
    for text in pages:
        lines = "".join(f"({_escaped(line)}) Tj T*\n" for line in text.split("\n"))
        stream = f"BT /F1 12 Tf 14 TL 72 720 Td\n{lines}ET".encode("cp1252")
        content = add(b"<< /Length %d >>\nstream\n%s\nendstream" % (len(stream), stream))
        page = (
            b"<< /Type /Page /Parent %d 0 R /MediaBox [0 0 612 792] /Resources << /Font << /F1 %d 0 R >> >>"
            b" /Contents %d 0 R >>" % (tree, font, content)
        )
        kids.append(add(page))
    objects[tree - 1] = b"<< /Type /Pages /Count %d /Kids [%s] >>" % (
        len(kids),
        b" ".join(b"%d 0 R" % kid for kid in kids),
    )
    outlines = b""
    if outline:
        root = add(b"")
        first = len(objects) + 1
        for place, (page_index, title) in enumerate(outline):
            following = b" /Next %d 0 R" % (first + place + 1) if place + 1 < len(outline) else b""
            add(
                b"<< /Title (%s) /Parent %d 0 R /Dest [%d 0 R /Fit]%s >>"
                % (_escaped(title).encode("cp1252"), root, kids[page_index], following)
            )
        objects[root - 1] = b"<< /Type /Outlines /Count %d /First %d 0 R /Last %d 0 R >>" % (
            len(outline),
            first,
            first + len(outline) - 1,
        )
        outlines = b" /Outlines %d 0 R" % root
    objects[catalog - 1] = b"<< /Type /Catalog /Pages %d 0 R%s >>" % (tree, outlines)
    return _written(objects)


def _written(objects: Sequence[bytes]) -> bytes:
    out = bytearray(b"%PDF-1.7\n")
    places = []
    for number, body in enumerate(objects, 1):
        places.append(len(out))
        out += b"%d 0 obj\n%s\nendobj\n" % (number, body)
    start = len(out)
    out += b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1)
    out += b"".join(b"%010d 00000 n \n" % place for place in places)
    out += b"trailer\n<< /Size %d /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF\n" % (len(objects) + 1, start)
    return bytes(out)


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("(", "\\(").replace(")", "\\)")


def a_docx(paragraphs: Sequence[str | tuple[int, str]], table: Sequence[Sequence[str]] = ()) -> bytes:
    """A paragraph that is a pair is a heading of that level."""
    import docx

    document = docx.Document()
    for each in paragraphs:
        if isinstance(each, str):
            document.add_paragraph(each)
        else:
            document.add_heading(each[1], level=each[0])
    if table:
        made = document.add_table(rows=0, cols=len(table[0]))
        for row in table:
            cells = made.add_row().cells
            for cell, text in zip(cells, row, strict=True):
                cell.text = text
    out = io.BytesIO()
    document.save(out)
    return out.getvalue()


def an_xlsx(sheets: dict[str, Sequence[Sequence[str | float]]]) -> bytes:
    import openpyxl

    book = openpyxl.Workbook(write_only=True)
    for name, rows in sheets.items():
        sheet = book.create_sheet(name)
        for row in rows:
            sheet.append(list(row))
    out = io.BytesIO()
    book.save(out)
    return out.getvalue()


def a_pptx(slides: Sequence[tuple[str, str, str]]) -> bytes:
    """Slides as (title, text, notes)."""
    import pptx

    show = pptx.Presentation()
    for title, text, notes in slides:
        slide = show.slides.add_slide(show.slide_layouts[1])
        slide.shapes.title.text_frame.text = title
        slide.placeholders[1].text_frame.text = text
        if notes:
            slide.notes_slide.notes_text_frame.text = notes
    out = io.BytesIO()
    show.save(out)
    return out.getvalue()
