"""Reads PDF by pypdf, page by page."""

from __future__ import annotations

import io
import logging
from typing import Any, Final

from pypdf import PageObject, PdfReader
from pypdf.errors import PyPdfError

from inference.documents.text_builder import TextBuilder
from sessions.model.knowledge.documents import too_complex_file, unreadable_file

PAGES_MAX: Final = 3_000
OUTLINE_MAX: Final = 2_000
_BROKEN: Final = (PyPdfError, ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError, OSError)
"""Errors that the library raises for malformed documents."""

logging.getLogger("pypdf").setLevel(logging.CRITICAL)  # it warns of every oddity


def read_pdf(content: bytes, builder: TextBuilder) -> None:
    """Reads a PDF into `builder`, without pages that cannot be read; if none can, it is refused. Raises BadInput,
    TooLarge, TextFull."""
    try:
        reader = PdfReader(io.BytesIO(content), strict=False)
        if reader.is_encrypted and not reader.decrypt(""):
            raise unreadable_file("it is locked with a password")
        count = len(reader.pages)
    except _BROKEN as exc:
        raise unreadable_file("it is a damaged PDF") from exc
    if count > PAGES_MAX:
        raise too_complex_file(f"it has {count} pages, and {PAGES_MAX} at most are read")
    titles = _outline(reader)
    read = 0
    for number in range(1, count + 1):
        builder.begin("page", number)
        try:
            page = reader.pages[number - 1]
            text = page.extract_text()
        except _BROKEN:
            continue
        read += 1
        _put_page(builder, text, titles.get(_number_of(page), []))
    if count and not read:
        raise unreadable_file("it is a damaged PDF")


def _put_page(builder: TextBuilder, text: str, titles: list[tuple[int, str]]) -> None:
    """Passes a page's text to the builder. A heading begins where its words are found in the text, otherwise at the
    beginning of the page."""
    places = sorted((max(0, text.find(title)) if title else 0, level, title) for level, title in titles)
    at = 0
    for place, level, title in places:
        builder.put(text[at:place])
        builder.begin("heading", level, title)
        at = max(at, place)
    builder.put(text[at:] + ("" if text.endswith("\n") else "\n"))


def _number_of(page: PageObject) -> int:
    return -1 if page.page_number is None else page.page_number


def _outline(reader: PdfReader) -> dict[int, list[tuple[int, str]]]:
    """Returns the bookmarks by page (from 0), as (level, title)."""
    found: dict[int, list[tuple[int, str]]] = {}
    try:
        waiting: list[tuple[int, Any]] = [(1, entry) for entry in reversed(reader.outline)]
        taken = 0
        while waiting and taken < OUTLINE_MAX:
            level, entry = waiting.pop()
            taken += 1
            if isinstance(entry, list):
                waiting += [(level + 1, each) for each in reversed(entry)]
                continue
            number = reader.get_destination_page_number(entry)
            if number is not None and number >= 0 and entry.title:
                found.setdefault(number, []).append((min(level, 6), str(entry.title)))
    except _BROKEN:
        return found
    return found
