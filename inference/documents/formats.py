"""Says what a document is, by its content, and has it read. Pure but for the libraries that read.

What its uploader calls it decides only among kinds of text: a PDF that is called a text is read as a PDF, and a program
that is called a PDF is refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from typing import Final

from inference.documents.charsets import decode_text, looks_binary
from inference.documents.text_builder import TextBuilder, TextFull
from inference.documents.zip_bounds import check_zip
from sessions.model.knowledge.documents import DocumentText, unreadable_file, unsupported_file

PDF: Final = "application/pdf"
DOCX: Final = "application/vnd.openxmlformats-officedocument.wordprocessingml.document"
XLSX: Final = "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet"
PPTX: Final = "application/vnd.openxmlformats-officedocument.presentationml.presentation"
HTML: Final = "text/html"
MARKDOWN: Final = "text/markdown"
PLAIN: Final = "text/plain"

_HTML_START: Final = re.compile(
    rb"\s*(?:<\?xml[^>]{0,200}>\s*)?(?:<!--.{0,500}?-->\s*){0,3}<(?:!doctype\s+html|html)\b", re.I | re.S
)
_HTML_NAMES: Final = (".html", ".htm", ".xhtml")
_MARKDOWN_NAMES: Final = (".md", ".markdown", ".mdx", ".mkd")
_OTHERS: Final = (
    (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "it is in an old format of Office: save it as .docx, .xlsx or .pptx"),
    (b"\x89PNG", "it is an image"),
    (b"\xff\xd8\xff", "it is an image"),
    (b"GIF8", "it is an image"),
    (b"\x7fELF", "it is a program"),
    (b"MZ", "it is a program"),
    (b"{\\rtf", "it is in RTF: save it as .docx or as plain text"),
    (b"\x1f\x8b", "it is compressed"),
    (b"BZh", "it is compressed"),
    (b"\xfd7zXZ", "it is compressed"),
    (b"7z\xbc\xaf", "it is compressed"),
)
Reader = Callable[[bytes, TextBuilder], None]
READERS: Final = {
    PDF: ("pdf", "read_pdf"),
    DOCX: ("office", "read_docx"),
    XLSX: ("office", "read_xlsx"),
    PPTX: ("office", "read_pptx"),
    HTML: ("html_pages", "read_html"),
    MARKDOWN: ("formats", "read_plain"),
    PLAIN: ("formats", "read_plain"),
}
_PARTS: Final = (("word/document.xml", DOCX), ("xl/workbook.xml", XLSX), ("ppt/presentation.xml", PPTX))


def media_type_of(content: bytes, filename: str, media_type: str) -> str:
    """Returns a document's media type. Raises BadInput for a file that is not read here, TooLarge for a container
    beyond bounds."""
    if b"%PDF-" in content[:1024]:
        return PDF
    if content[:4] in (b"PK\x03\x04", b"PK\x05\x06"):
        names = check_zip(content)
        for part, found in _PARTS:
            if part in names:
                return found
        raise unsupported_file("it is an archive, or in a format that is not known here")
    for magic, what in _OTHERS:
        if content.startswith(magic):
            raise unsupported_file(what)
    if content[:4] == b"RIFF" and content[8:12] == b"WEBP":
        raise unsupported_file("it is an image")
    if looks_binary(content):
        raise unsupported_file("it is no text, and in no format that is known here")
    name = filename.lower()
    if _HTML_START.match(content[:2048]) or media_type == HTML or name.endswith(_HTML_NAMES):
        return HTML
    if media_type == MARKDOWN or name.endswith(_MARKDOWN_NAMES):
        return MARKDOWN
    return PLAIN


def read_document(content: bytes, filename: str, media_type: str) -> DocumentText:
    """Reads a document's text. Raises BadInput and TooLarge; any other error of a library means a broken document."""
    found = media_type_of(content, filename, media_type)
    builder = TextBuilder()
    with suppress(TextFull):
        _reader_of(found)(content, builder)
    if builder.empty and found == PDF:
        raise unreadable_file("it holds no text, as a scanned page does; texts in images are not read here")
    return builder.finish(found)


def _reader_of(media_type: str) -> Reader:
    """Returns the reader of a media type. It is imported here, so that a missing library affects only its own
    formats."""
    module, name = READERS[media_type]
    try:
        reader: Reader = getattr(import_module(f"inference.documents.{module}"), name)
    except ImportError as exc:
        library = exc.name or "library"
        raise unsupported_file(f"this server has no {library} for it (its operator: make setup-files)") from exc
    return reader


def read_plain(content: bytes, builder: TextBuilder) -> None:
    builder.put(decode_text(content))
