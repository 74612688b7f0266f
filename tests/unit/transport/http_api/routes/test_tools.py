"""`/v1/tools` through the door: what is held is seen, agreed to by who may, and in force."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx2
import pytest

from inference.simulated import SimulatedOptions
from inference.tools.mcp.agreements import StoredPins
from sessions.model.audit import INSTALLATION, public
from sessions.model.types import UnixMs
from tests.support.doors.openai_server import Serving, serving
from tests.support.mcp.opened import ACME, opened_servers, stdio_table, until


async def there_is(owner: str, label: str) -> bool:
    return True


async def call(server: Serving, method: str, path: str, **more: Any) -> tuple[int, Any]:
    async with httpx2.AsyncClient(base_url=server.server.url, trust_env=False) as http:
        answer = await http.request(method, path, **more)
        return answer.status_code, answer.json()


async def test_what_changed_is_held_seen_and_agreed_to(tmp_path: Path) -> None:
    async with serving(SimulatedOptions()) as server:
        pins = StoredPins(server.gateway.store.tool_records, lambda: UnixMs(1), there_is)
        table = stdio_table(tmp_path, mode="pulls")
        async with opened_servers(tmp_path, table, pins=pins) as tools:
            assert tools.find(ACME, "town__look") is not None
        (tmp_path / "pull").touch()
        async with opened_servers(tmp_path, table, pins=pins) as tools:
            assert tools.find(ACME, "town__look") is None, "it was pinned over the restart"
            status, seen = await call(server, "GET", "/v1/tools")
            (town,) = seen["data"]
            held = {each["name"]: each for each in town["held"]}
            assert status == 200 and town["tools"] == [] and held["town__look"]["reason"] == "changed"
            assert "secrets" in held["town__look"]["description"]
            body = {"server": "town", "tools": {"town__look": "0" * 64}, "everybody": True}
            assert (await call(server, "POST", "/v1/tools/agreements", json=body))[0] == 409
            body["tools"] = {"town__look": held["town__look"]["digest"]}
            assert (await call(server, "POST", "/v1/tools/agreements", json=body))[0] == 201
            tools.look_again("", "town")
            await until(lambda: tools.find(ACME, "town__look") is not None)
            assert tools.find(ACME, "town__more") is None
        rows = await server.gateway.store.audit.rows(INSTALLATION, after=0, limit=10)
        assert [public(row)["action"] for row in rows] == ["tool.agreed"]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"server": "other", "tools": {"a": "0" * 64}}, 404),
        ({"server": "town", "tools": {}}, 400),
        ({"server": "town", "tools": {"a": "digest"}}, 400),
    ],
)
async def test_what_cannot_be_agreed_to(body: Any, status: int) -> None:
    async with serving(SimulatedOptions()) as server:
        assert (await call(server, "POST", "/v1/tools/agreements", json=body))[0] == status
