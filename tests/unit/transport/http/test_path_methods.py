"""404, 405 with a whole Allow, and HEAD: over the routes of a server that is not there."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from tests.support.doors.transport import gateway_over, http_client, memory_sessions


@pytest.fixture
async def client(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[httpx.AsyncClient]:
    (tmp_path / "index.html").write_text("<p>hello</p>")
    async with http_client(gateway_over(await memory_sessions()), web=tmp_path if request.param else None) as made:
        yield made


both = pytest.mark.parametrize("client", [True, False], indirect=True, ids=["with a page", "without"])


@both
async def test_a_path_that_is_not_there_is_404_by_every_method(client: httpx.AsyncClient) -> None:
    for path in ("/v1/nothing", "/nothing", "/v1/responses/", "/v1/chat", "/v1"):
        for method in ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"):
            answer = await client.request(method, path)
            assert answer.status_code == 404 and "allow" not in answer.headers, (method, path)
            assert method == "HEAD" or answer.json()["error"]["code"] == "not_found"


WRONG_METHODS = (
    ("GET", "/v1/responses", "POST"),
    ("HEAD", "/v1/responses", "POST"),
    ("PUT", "/v1/conversations/c", "DELETE, GET, HEAD, POST"),
    ("POST", "/v1/sessions/s", "DELETE, GET, HEAD, PATCH"),
    ("PUT", "/v1/sessions", "GET, HEAD"),
    ("DELETE", "/health", "GET, HEAD"),
    ("POST", "/openapi.json", "GET, HEAD"),
)


@both
async def test_a_wrong_method_is_405_and_names_all_that_are_right(client: httpx.AsyncClient) -> None:
    for method, path, allowed in WRONG_METHODS:
        answer = await client.request(method, path)
        assert (answer.status_code, answer.headers["allow"]) == (405, allowed), (method, path)
        assert method == "HEAD" or answer.json()["error"]["code"] == "method_not_allowed"


@pytest.mark.parametrize("client", [True], indirect=True)
async def test_the_page_has_get_and_head(client: httpx.AsyncClient) -> None:
    assert (await client.head("/")).status_code == 200
    answer = await client.post("/index.html")
    assert (answer.status_code, answer.headers["allow"]) == (405, "GET, HEAD")


@both
async def test_head_is_get_without_its_body(client: httpx.AsyncClient) -> None:
    for path in ("/health", "/healthz", "/readyz", "/v1/sessions", "/openapi.json"):
        got, head = await client.get(path), await client.head(path)
        assert got.status_code == head.status_code == 200 and head.content == b"" and got.content, path
        assert head.headers.get("content-type") == got.headers["content-type"]


@both
async def test_head_of_a_stream_without_end_ends(client: httpx.AsyncClient) -> None:
    answer = await client.head("/v1/sessions/s/events")
    assert answer.status_code in (200, 404) and answer.content == b""
