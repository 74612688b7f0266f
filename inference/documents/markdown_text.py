"""Reads Markdown: as it is written, which models read well, with its headings by markdown-it-py."""

from __future__ import annotations

from markdown_it import MarkdownIt

from inference.documents.charsets import decode_text
from inference.documents.text_builder import TextBuilder, clean_text


def read_markdown(content: bytes, builder: TextBuilder) -> None:
    """Reads a Markdown text into `builder`. Raises TextFull."""
    text = clean_text(decode_text(content))
    lines = text.split("\n")
    headings: list[tuple[int, int, str]] = []  # (line, level, title)
    tokens = MarkdownIt("commonmark", {"maxNesting": 20}).disable("inline").parse(text)
    for place, token in enumerate(tokens):
        if token.type == "heading_open" and token.map is not None:
            title = tokens[place + 1].content if place + 1 < len(tokens) else ""
            headings.append((token.map[0], int(token.tag[1:]), title))
    at = 0
    for line, level, title in headings:
        builder.put("".join(f"{text_line}\n" for text_line in lines[at:line]))
        builder.begin("heading", level, title)
        at = line
    builder.put("\n".join(lines[at:]))
