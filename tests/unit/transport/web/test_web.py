"""The page's table of texts, and its service worker."""

from __future__ import annotations

import asyncio
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.support.node import WITH_NODE
from transport.http_api.server import WEB

BUILT = {"chat.js", "sessile.js", "markdown-it.js", "languages.js", "temml.js"}
SAME = {"Sessile", "+", "Shared conversation · Sessile"}
ROW = re.compile(r'^  "((?:[^"\\]|\\.)*)": "((?:[^"\\]|\\.)*)",$', re.MULTILINE)
CALL = re.compile(r'\bt\(\s*"((?:[^"\\]|\\.)*)"')


class Texts(HTMLParser):
    """Returns the texts of a page before its script runs, without those for readers without scripts."""

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


RUNNER = Path(__file__).with_name("service_worker_push.mjs")


async def ran(*messages: str) -> dict[str, Any]:
    command = (WITH_NODE, "node", str(RUNNER), str(WEB / "service-worker.js"), *messages)
    node = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    said, _ = await node.communicate()
    assert node.returncode == 0
    return json.loads(said)  # type: ignore[no-any-return]


def message(number: int, session: str = "ses_a&b", **more: Any) -> str:
    return json.dumps({"v": 1, "id": f"resp_{number}:7", "cause": "answer", "session": session, **more})


async def test_a_push_that_comes_twice_is_one_notification_and_opens_its_conversation_once() -> None:
    done = await ran(message(1), message(1))
    (shown,) = done["shown"]
    assert (shown["title"], shown["body"], shown["tag"]) == ("Sessile", "An answer is there.", "ses_a&b")
    assert done["opened"] == ["https://chat.example/app/?session=ses_a%26b"]
    assert (done["closed"], done["focused"]) == (2, 1)


async def test_a_later_push_takes_the_place_of_the_one_before_and_what_is_not_ours_is_nothing() -> None:
    done = await ran(message(1), message(2, cause="tool_call"), message(1, "other"), "no json", "{}", "null")
    assert [(each["data"]["id"], each["body"]) for each in done["shown"]] == [
        ("resp_2:7", "A conversation waits for you."),
        ("resp_1:7", "An answer is there."),
    ]


async def test_a_hostile_push_opens_nothing_but_the_page_itself() -> None:
    names = (
        "https://evil.example/",
        "//evil.example",
        "javascript:alert(1)",
        "../../x?y#z",
        "\r\nx",
        "a&session=b",
        "é 🙂",
    )
    for name in names:
        done = await ran(message(1, name, cause="approval", url="https://evil.example/", title="<b>x</b>"))
        (shown,), (opened,) = done["shown"], done["opened"]
        assert (shown["title"], shown["body"]) == ("Sessile", "A tool waits for you to agree.")
        parts = urlsplit(opened)
        assert (parts.scheme, parts.netloc, parts.path, parts.fragment) == ("https", "chat.example", "/app/", "")
        assert parse_qs(parts.query) == {"session": [name]}
    for cause in ("__proto__", "constructor", "<img src=x>", 7):
        (shown,) = (await ran(message(1, cause=cause)))["shown"]
        assert shown["body"] == "An answer is there."
