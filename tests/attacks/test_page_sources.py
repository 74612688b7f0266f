"""Nothing of another host and nothing unnamed runs on the origin where the pages keep their keys; see docs/security.md.

Walks every route of the running server, and requests that fail, and reads what a browser would be given.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import AsyncIterator, Mapping
from html.parser import HTMLParser
from urllib.parse import urljoin, urlsplit

import httpx
import pytest

from tests.support.authorisation.matrix import routes_of
from tests.support.doors.assembly import Assembly, assembled
from tests.support.doors.transport import app_of
from transport.http_api.page_files import PAGES
from transport.http_api.server import WEB

HTML = {"accept": "text/html"}


@pytest.fixture
async def server() -> AsyncIterator[Assembly]:
    async with assembled() as running:
        yield running


@pytest.fixture
async def http(server: Assembly) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=server.server.url, headers=HTML, timeout=60) as client:
        yield client


def policy(answer: httpx.Response) -> dict[str, list[str]]:
    parts = [part.split() for part in answer.headers["content-security-policy"].split(";")]
    return {name: sources for name, *sources in parts}


def check_headers(answer: httpx.Response) -> None:
    assert answer.headers["x-content-type-options"] == "nosniff", answer.url
    assert answer.headers["referrer-policy"] == "no-referrer", answer.url
    rules = policy(answer)
    assert rules["default-src"] == rules["frame-ancestors"] == ["'none'"], answer.url
    allowed = {source for name, sources in rules.items() if name != "img-src" for source in sources}
    assert allowed <= {"'self'", "'none'"}, answer.url  # no host, no 'unsafe-…', no data:


class Page(HTMLParser):
    """What a page loads, and what in it would run without being loaded."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.loads: list[tuple[str, Mapping[str, str | None]]] = []
        self.inline: list[str] = []
        self._script = False
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        self._script = tag == "script"
        if tag == "script" and "src" in named:
            self.loads.append((named["src"] or "", named))
        if tag == "link" and named.get("rel") in ("stylesheet", "modulepreload"):
            self.loads.append((named["href"] or "", named))
        if tag in ("style", "base", "iframe", "object", "embed"):
            self.inline.append(f"<{tag}>")
        self.inline += [name for name in named if name.startswith("on") or name in ("style", "srcdoc", "http-equiv")]
        self.inline += [
            value for value in named.values() if value and value.lower().startswith(("javascript:", "data:"))
        ]

    def handle_data(self, data: str) -> None:
        if self._script and data.strip():
            self.inline.append(data)
        self._script = False


async def test_every_answer_has_a_policy_and_every_page_the_strict_one(
    server: Assembly, http: httpx.AsyncClient
) -> None:
    app = await app_of(server.server, "whole")
    paths = {re.sub(r"\{[^}]+\}", "x", path) for _, path in routes_of(app.routes)}
    assert len(paths) > 25
    html_files = {path.name for path in WEB.glob("*.html")}
    for path in sorted(paths | {f"/{name}" for name in (*PAGES, *html_files)}):
        for method in ("GET", "POST", "PUT"):  # each route once as it is meant, and as it is not
            async with http.stream(method, path, content=b"{") as answer:
                check_headers(answer)
                page = answer.headers.get("content-type", "").startswith("text/html")
                assert page == (method == "GET" and path.strip("/") in {*PAGES, *html_files}), path
    assert set(PAGES.values()) == html_files


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (("GET", "/nothing-here<script>", {}), 404),
        (("GET", "/redoc", {}), 404),
        (("GET", "/docs/oauth2-redirect", {}), 404),
        (("GET", "/", {"host": "evil.example"}), 403),
        (("POST", "/v1/responses", {"content-length": "99999999"}), 400),
        (("GET", "/v1/sessions?limit=%3Cscript%3E", {}), 400),
    ],
)
async def test_errors_are_no_pages_and_have_the_headers(
    http: httpx.AsyncClient, request_: tuple[str, str, dict[str, str]], status: int
) -> None:
    method, path, headers = request_
    if "content-length" in headers:
        answer = await http.request(method, path, content=b"x" * 10)
    else:
        answer = await http.request(method, path, headers=headers)
    assert (answer.status_code, answer.headers["content-type"]) == (status, "application/json")
    check_headers(answer)


@pytest.mark.parametrize("path", sorted(f"/{name}" for name in PAGES))
async def test_a_page_runs_our_files_alone_each_with_its_hash(http: httpx.AsyncClient, path: str) -> None:
    answer = await http.get(path)
    page = Page(answer.text)
    assert page.inline == []
    assert answer.headers["integrity-policy"] == "blocked-destinations=(script)"
    hashed = set()
    for source, attributes in page.loads:
        url = urlsplit(urljoin(str(answer.url), source))
        assert url.netloc == urlsplit(str(answer.url)).netloc, source
        body = (await http.get(url.path)).content
        digest = base64.b64encode(hashlib.sha384(body).digest()).decode()
        assert attributes["integrity"] == f"sha384-{digest}", source
        hashed.add(source)
        modules = re.findall(r"""(?:from|import)\s*\(?\s*["']\./([^"']+)["']""", without_comments(body.decode()))
        preloaded = {name for name, each in page.loads if each.get("rel") == "modulepreload"}
        assert not source.endswith(".js") or set(modules) <= preloaded, source
        assert not source.endswith(".css") or "@import" not in body.decode()
    assert {"styles.css"} < hashed


def without_comments(script: str) -> str:
    return re.sub(r"/\*.*?\*/", "", script, flags=re.DOTALL)


def test_the_sources_name_no_other_host() -> None:
    """What a script could load by itself: the policy forbids it, and none has it."""
    for path in (*WEB.glob("*.html"), *WEB.glob("*.css"), *WEB.glob("*.js")):
        if path.name in ("markdown-it.js", "sessile.js", "chat.js"):
            continue  # a parser of addresses, the SDK, whose server is an argument; and our modules with the parser
        hosts = set(re.findall(r"(?:https?:)?//([\w-]+\.[\w.-]+)", without_comments(path.read_text())))
        assert hosts <= {"www.w3.org"}, path.name
