"""HTML: what people read of a page."""

from __future__ import annotations

from inference.documents.html_pages import read_html
from inference.documents.text_builder import TextBuilder
from sessions.model.knowledge.documents import DocumentText


def read(content: str | bytes) -> DocumentText:
    builder = TextBuilder()
    read_html(content.encode() if isinstance(content, str) else content, builder)
    return builder.finish("text/html")


def test_texts_and_headings() -> None:
    made = read(
        "<html><head><title>The title</title><style>p{}</style><script>alert(1)</script></head><body>"
        "<h1>Head</h1><p>Some  &amp;\n more<br>line<ul><li>one<li>two</ul>"
        "<table><tr><th>a<td>b<tr><td>c<td>d</table><pre>x  y\n z</pre></body></html>"
    )
    assert made.text == "The title\nHead\nSome & more\nline\n- one\n- two\na\tb\nc\td\nx  y\n z\n"
    assert [(each.number, each.title) for each in made.sections] == [(1, "The title"), (1, "Head")]


def test_a_head_that_is_not_closed_hides_nothing() -> None:
    assert read("<head><title>T</title><body><p>shown").text == "T\nshown\n"
    assert read("<svg><p>no</svg><p>yes").text == "yes\n"


def test_the_charset_that_a_page_names() -> None:
    assert read("<meta charset=iso-8859-2><p>Łódź".encode("iso-8859-2")).text == "Łódź\n"
    assert read("<meta charset=nonsense><p>über".encode()).text == "über\n"


def test_deep_and_broken_pages_end() -> None:
    assert read("<div>" * 100_000 + "x").text == "x\n"
    assert read("<" * 1000).text.strip("<\n") == ""
    assert len(read("<!--" + "x" * 1000).text) <= 1005, "a remark without an end is a text, as it was written"
