"""The chat page's table of texts: each English text has its German one, with equal places for values; none is left."""

from __future__ import annotations

import re
from html.parser import HTMLParser

from transport.http_api.server import WEB

BUILT = {"chat.js", "sessile.js", "markdown-it.js", "languages.js", "temml.js"}
SAME = {"Sessile", "+", "Shared conversation · Sessile"}
ROW = re.compile(r'^  "((?:[^"\\]|\\.)*)": "((?:[^"\\]|\\.)*)",$', re.MULTILINE)
CALL = re.compile(r'\bt\(\s*"((?:[^"\\]|\\.)*)"')


class Texts(HTMLParser):
    """What a page of ours says before its script runs, but for readers without scripts."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.found: set[str] = set()
        self._skips = False
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._skips = self._skips or tag in ("script", "style", "noscript")
        self.found |= {value for name, value in attrs if value and name in ("aria-label", "placeholder", "title")}

    def handle_endtag(self, tag: str) -> None:
        self._skips = self._skips and tag not in ("script", "style", "noscript")

    def handle_data(self, data: str) -> None:
        if not self._skips and data.strip():
            self.found.add(data.strip())


def table() -> dict[str, str]:
    return dict(ROW.findall((WEB / "texts.js").read_text()))


def used() -> set[str]:
    scripts = [path.read_text() for path in WEB.glob("*.js") if path.name not in BUILT]
    pages = [Texts((WEB / name).read_text()) for name in ("index.html", "share.html")]
    return {text for script in scripts for text in CALL.findall(script)}.union(*(page.found for page in pages)) - SAME


def test_each_text_has_a_german_one() -> None:
    assert sorted(used() - table().keys()) == []


def test_no_german_text_is_left_over() -> None:
    sources = "".join(path.read_text() for path in WEB.glob("*.js") if path.name not in {"texts.js", *BUILT})
    assert sorted(text for text in table().keys() - used() if f'"{text}"' not in sources) == []


def test_values_have_the_same_places_in_both() -> None:
    places = re.compile(r"\{\w+\}")
    differ = [each for each in table().items() if set(places.findall(each[0])) != set(places.findall(each[1]))]
    assert differ == []
    assert len(table()) > 150
