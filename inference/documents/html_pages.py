"""Reads HTML by Python's own parser, which takes whatever comes: text in the order of the page.

Scripts, styles and what is not shown are left out. Nothing is loaded, whatever the page names.
"""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Final

from inference.documents.charsets import SAMPLE_BYTES, decode_text
from inference.documents.text_builder import TextBuilder

_SKIPPED: Final = frozenset({"script", "style", "template", "noscript", "iframe", "object", "svg", "math", "head"})
_BLOCKS: Final = frozenset(
    (  # noqa: SIM905 - a list of words reads better as words
        "p div section article header footer main nav aside ul ol li dl dt dd table tr thead tbody blockquote pre"
        " figure figcaption form fieldset address details summary hr br h1 h2 h3 h4 h5 h6 title"
    ).split()
)
_CELLS: Final = frozenset({"td", "th"})
_VOID: Final = frozenset({"br", "hr", "img", "input", "meta", "link", "col", "area", "base", "embed", "source", "wbr"})
_SPACES: Final = re.compile(r"[ \t\r\n\f]+")
_CHARSET: Final = re.compile(rb"<meta[^>]{0,200}charset\s*=\s*[\"']?\s*([A-Za-z0-9_:.-]{1,40})", re.I)


def read_html(content: bytes, builder: TextBuilder) -> None:
    """Reads a web page into `builder`. Raises TextFull."""
    page = _Page(builder)
    page.feed(_decoded(content))
    page.close()
    page.end_line()


def _decoded(content: bytes) -> str:
    """Decodes a page, by the charset that it names where it is not UTF-8 and has no byte order mark."""
    named = _CHARSET.search(content[:SAMPLE_BYTES])
    if named is not None and not content.startswith((b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")):
        try:
            return content.decode(named[1].decode("ascii"))
        except (LookupError, ValueError):
            pass
    return decode_text(content)


class _Page(HTMLParser):
    def __init__(self, builder: TextBuilder) -> None:
        super().__init__(convert_charrefs=True)
        self._builder = builder
        self._line: list[str] = []
        self._skipping: list[str] = []  # what is open of `_SKIPPED`
        self._title = False
        self._pre = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "title" and self._skipping == ["head"]:
            self._title = True
        elif tag == "body":
            self._skipping.clear()  # a head that was not closed
        elif tag in _SKIPPED:
            if len(self._skipping) < 100:
                self._skipping.append(tag)
        elif self._skipping:
            return
        if tag in _BLOCKS:
            self.end_line()
        if tag in _CELLS and self._line:
            self._line.append("\t")
        if tag == "li":
            self._line.append("- ")
        if tag == "pre":
            self._pre += 1

    def handle_endtag(self, tag: str) -> None:
        if tag == "title" and self._title:
            self.end_line()
            self._title = False
        elif tag in self._skipping:
            while self._skipping.pop() != tag:
                pass
        elif not self._skipping and tag in _BLOCKS and tag not in _VOID:
            self.end_line()
            self._pre = max(0, self._pre - (tag == "pre"))

    def handle_data(self, data: str) -> None:
        if self._title or not self._skipping:
            self._line.append(data if self._pre else _SPACES.sub(" ", data))

    def end_line(self) -> None:
        """Passes the collected line to the builder, and begins a new line."""
        text = "".join(self._line)
        text = text if self._pre else text.strip(" ")
        self._line.clear()
        if text.strip():
            self._builder.line(text)
