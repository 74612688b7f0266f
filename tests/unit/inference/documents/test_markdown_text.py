"""Markdown stays as it is; its headings are found."""

from __future__ import annotations

from inference.documents.markdown_text import read_markdown
from inference.documents.text_builder import TextBuilder


def test_headings() -> None:
    text = "intro\n\n# One *x*\ntext\n\nTwo\n===\nmore\n```\n# no\n```\n> ## Quoted\n"
    builder = TextBuilder()
    read_markdown(text.encode(), builder)
    made = builder.finish("text/markdown")
    assert made.text == text
    assert [(each.number, each.title, made.text[each.start :][:4]) for each in made.sections] == [
        (1, "One *x*", "# On"),
        (1, "Two", "Two\n"),
        (2, "Quoted", "> ##"),
    ]
