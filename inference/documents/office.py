"""Reads Office's formats: Word by python-docx, Excel by openpyxl, PowerPoint by python-pptx.

Texts come in the order of the document; cells of a row are parted by tabs. What formulas give is what the document says
that they gave: nothing is computed.
"""

from __future__ import annotations

import io
import re
import warnings
import zipfile
from collections.abc import Iterator
from typing import Any, Final

import docx
import openpyxl
import pptx
from docx.table import Table
from docx.text.paragraph import Paragraph
from lxml import etree

from inference.documents.text_builder import TextBuilder, TextFull
from sessions.model.knowledge.documents import unreadable_file

ROWS_MAX: Final = 200_000
COLUMNS_MAX: Final = 1_000
NESTED_MAX: Final = 20  # tables in tables, groups in groups
_HEADING: Final = re.compile(r"(?:heading|überschrift|titre|título) (\d)", re.I)
_BROKEN: Final = (
    etree.LxmlError,
    zipfile.BadZipFile,
    KeyError,
    ValueError,
    TypeError,
    AttributeError,
    IndexError,
    AssertionError,
    RecursionError,
    NotImplementedError,
    OSError,
    EOFError,
    SyntaxError,  # ElementTree's ParseError
)

warnings.simplefilter("ignore")  # openpyxl speaks of every part that it leaves out


def read_docx(content: bytes, builder: TextBuilder) -> None:
    """Reads a Word document into `builder`. Raises BadInput, TextFull."""
    try:
        document = docx.Document(io.BytesIO(content))
        for block in document.iter_inner_content():
            _put_block(builder, block, 0)
    except TextFull:
        raise
    except _BROKEN as exc:
        raise unreadable_file("it is a damaged Word document") from exc


def _put_block(builder: TextBuilder, block: Paragraph | Table, depth: int) -> None:
    if isinstance(block, Paragraph):
        text = block.text
        level = _level_of(block)
        if level and text.strip():
            builder.begin("heading", level, text)
        builder.line(text)
        return
    if depth >= NESTED_MAX:
        return
    for row in block.rows:
        cells: list[str] = []
        seen: set[int] = set()
        for cell in row.cells:  # a merged cell comes once for each place that it covers
            if id(cell._tc) not in seen:
                seen.add(id(cell._tc))
                cells.append(" ".join(cell.text.split()))
        builder.line("\t".join(cells))


def _level_of(paragraph: Paragraph) -> int:
    style = paragraph.style
    name = "" if style is None or style.name is None else style.name
    if name == "Title":
        return 1
    found = _HEADING.match(name)
    return min(6, int(found[1])) if found else 0


def read_xlsx(content: bytes, builder: TextBuilder) -> None:
    """Reads a spreadsheet into `builder`. Raises BadInput, TextFull."""
    try:
        book = openpyxl.load_workbook(io.BytesIO(content), read_only=True, data_only=True, keep_links=False)
        rows = 0
        for number, sheet in enumerate(book.worksheets, 1):
            builder.begin("sheet", number, sheet.title)
            builder.line(f"# {sheet.title}")
            for row in sheet.iter_rows(values_only=True, max_col=COLUMNS_MAX):
                rows += 1
                if rows > ROWS_MAX:
                    builder.cut = True
                    raise TextFull
                values = ["" if value is None else " ".join(str(value).split()) for value in row]
                if any(values):
                    builder.line("\t".join(values).rstrip("\t"))
    except TextFull:
        raise
    except _BROKEN as exc:
        raise unreadable_file("it is a damaged Excel workbook") from exc


def read_pptx(content: bytes, builder: TextBuilder) -> None:
    """Reads slides with their notes into `builder`. Raises BadInput, TextFull."""
    try:
        show = pptx.Presentation(io.BytesIO(content))
        for number, slide in enumerate(show.slides, 1):
            title = slide.shapes.title
            builder.begin("slide", number, title.text_frame.text if title is not None else "")
            for text in _shape_texts(slide.shapes, 0):
                builder.line(text)
            if slide.has_notes_slide and slide.notes_slide.notes_text_frame is not None:
                notes = slide.notes_slide.notes_text_frame.text
                if notes.strip():
                    builder.line(notes)
            builder.line("")
    except TextFull:
        raise
    except _BROKEN as exc:
        raise unreadable_file("it is a damaged PowerPoint presentation") from exc


def _shape_texts(shapes: Any, depth: int) -> Iterator[str]:
    for shape in shapes:
        if shape.has_text_frame:
            if shape.text_frame.text.strip():
                yield shape.text_frame.text
        elif getattr(shape, "has_table", False):
            for row in shape.table.rows:
                yield "\t".join(" ".join(cell.text.split()) for cell in row.cells)
        elif hasattr(shape, "shapes") and depth < NESTED_MAX:
            yield from _shape_texts(shape.shapes, depth + 1)
