"""Reads Office's formats: Word by python-docx, Excel by openpyxl, PowerPoint by python-pptx.

Texts come in the order of the document; cells of a row are parted by tabs. What formulas give is what the document says
that they gave: nothing is computed.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator
from typing import Any, Final

import docx
import openpyxl
import pptx
from docx.table import Table
from docx.text.paragraph import Paragraph

from inference.documents.text_builder import TextBuilder, TextFull

ROWS_MAX: Final = 200_000
COLUMNS_MAX: Final = 1_000
NESTED_MAX: Final = 20  # tables in tables, groups in groups
warnings.simplefilter("ignore")  # openpyxl speaks of every part that it leaves out


def read_docx(content: bytes, builder: TextBuilder) -> None:
    """Reads a Word document into `builder`. Raises TextFull, and whatever the library raises for a damaged one."""
    for block in docx.Document(io.BytesIO(content)).iter_inner_content():
        _put_block(builder, block, 0)


def _put_block(builder: TextBuilder, block: Paragraph | Table, depth: int) -> None:
    if isinstance(block, Paragraph):
        builder.line(block.text)
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


def read_xlsx(content: bytes, builder: TextBuilder) -> None:
    """Reads a spreadsheet into `builder`. Raises TextFull, and whatever the library raises for a damaged one."""
    book = openpyxl.load_workbook(io.BytesIO(content), read_only=True, data_only=True, keep_links=False)
    rows = 0
    for sheet in book.worksheets:
        builder.line(f"# {sheet.title}")
        for row in sheet.iter_rows(values_only=True, max_col=COLUMNS_MAX):
            rows += 1
            if rows > ROWS_MAX:
                builder.cut = True
                raise TextFull
            values = ["" if value is None else " ".join(str(value).split()) for value in row]
            if any(values):
                builder.line("\t".join(values).rstrip("\t"))


def read_pptx(content: bytes, builder: TextBuilder) -> None:
    """Reads slides with their notes into `builder`. Raises TextFull, and whatever the library raises for damaged
    ones."""
    for slide in pptx.Presentation(io.BytesIO(content)).slides:
        for text in _shape_texts(slide.shapes, 0):
            builder.line(text)
        if slide.has_notes_slide and slide.notes_slide.notes_text_frame is not None:
            notes = slide.notes_slide.notes_text_frame.text
            if notes.strip():
                builder.line(notes)
        builder.line("")


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
