"""A page's `after`, of every list: what no page gave is refused, never a server error."""

from __future__ import annotations

import httpx
import pytest

from tests.support.doors.assembly import assembled

STRANGE = ("", "/", "a/", "/a", ".", "1.", ".x", ":", "~", " ", "é", "%", "0" * 70, "null", "a b", "\x00", "..", "-1")


async def test_no_list_fails_at_an_after_that_it_never_gave() -> None:
    async with assembled() as assembly, httpx.AsyncClient(base_url=assembly.server.url, timeout=60) as client:
        paths = (await client.get("/openapi.json")).json()["paths"]
        lists = [
            path.replace("{conversation}", "none").replace("{response_id}", "resp_none")
            for path, operations in paths.items()
            for parameter in operations.get("get", {}).get("parameters", ())
            if parameter["name"] == "after" and not path.endswith("/events")
        ]
        assert len(lists) >= 7
        failed = {
            (path, after): answer.status_code
            for path in lists
            for after in STRANGE
            if (answer := await client.get(path, params={"after": after})).status_code == 500
        }
        assert failed == {}


@pytest.mark.parametrize("after", ["", "a/", "/a", " "])
async def test_sessions_after_an_empty_part_are_a_bad_request(after: str) -> None:
    async with assembled() as assembly, httpx.AsyncClient(base_url=assembly.server.url, timeout=60) as client:
        answer = await client.get("/v1/sessions", params={"after": after})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "after")
