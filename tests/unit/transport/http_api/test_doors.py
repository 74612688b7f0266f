"""Which doors are loaded late, and that a request finds the same routes as if all had been there."""

from __future__ import annotations

import asyncio
import importlib
import re
from typing import Any

import httpx
import pytest

from persistence.memory.journal import MemoryJournal
from tests.support.doors.transport import FakeSessions, gateway_over
from transport.http.body_budget import BodyBudget
from transport.http_api.doors import DOORS, RARE_DOORS, Part, doors_of, is_rare
from transport.http_api.late_app import LateApp
from transport.ops.prometheus import MetricsExposition


def routes_of(door: str) -> list[Any]:
    return list(importlib.import_module(f"transport.http_api.routes.{door}").routes.routes)


@pytest.mark.parametrize("door", DOORS)
def test_a_path_leads_to_the_part_that_has_its_door(door: str) -> None:
    common = [route.path_regex for each in doors_of("common") for route in routes_of(each)]
    for route in routes_of(door):
        path = re.sub(r"\{\w+(:path)?\}", "x", route.path)
        assert is_rare(path) == (door in RARE_DOORS), path
        if door in RARE_DOORS:
            assert not any(regex.match(path) for regex in common), path


def test_the_parts_have_all_doors_in_their_order() -> None:
    assert set(RARE_DOORS) == set(doors_of("rare"))
    assert sorted((*doors_of("common"), *doors_of("rare")), key=DOORS.index) == doors_of("whole") == list(DOORS)
    assert is_rare("/openapi.json")
    assert not any(map(is_rare, ("/", "/healthz", "/metrics", "/auth/sign-in", "/styles.css", "/v1", "/v1/nothing")))


def late_app() -> LateApp:
    gateway = gateway_over(FakeSessions(MemoryJournal()))
    exposition = MetricsExposition(gateway.measures, version="1", role="test")
    return LateApp(gateway, readiness=lambda: None, web=None, exposition=exposition)


def client_of(app: Any) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1", timeout=60)


@pytest.mark.parametrize("failing", ["common", "rare"])
async def test_a_part_that_could_not_be_made_is_made_at_the_next_request(
    failing: Part, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, make, asked = late_app(), LateApp._make, []

    def made(late: LateApp, part: Part) -> Any:
        asked.append(part)
        if asked.count(part) == 1 and part == failing:
            raise MemoryError
        return make(late, part)

    monkeypatch.setattr(LateApp, "_make", made)
    with pytest.raises(MemoryError):
        await app.part("rare")
    assert await app.part("rare") is await app.part("rare")
    assert asked.count("rare") == (2 if failing == "rare" else 1)


async def test_a_part_that_cannot_be_made_is_an_error_of_the_api_and_ends_no_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(_: LateApp, __: Part) -> Any:
        raise ImportError("/a/path/of/this/machine")

    monkeypatch.setattr(LateApp, "_make", broken)
    app = late_app()
    await app.load()
    async with client_of(app) as client:
        answers = [await client.get(path, headers={"x-request-id": "r1"}) for path in ("/v1/models", "/v1/files")]
    for answer in answers:
        assert answer.status_code == 500 and answer.headers["x-request-id"] == "r1"
        error = answer.json()["error"]
        assert (error["code"], error["message"]) == ("internal_error", "The server failed to carry this out.")
    async with client_of(app) as client:
        anthropic = await client.post("/v1/messages", headers={"x-request-id": "r2"})
    assert anthropic.json()["request_id"] == "r2"


async def test_what_is_refused_needs_no_part(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Part] = []
    monkeypatch.setattr(LateApp, "_make", lambda _, part: made.append(part))
    async with client_of(late_app()) as client:
        for path in ("/v1/models", "/v1/files"):
            assert (await client.get(path, headers={"host": "evil.example"})).status_code == 403
    assert made == []


async def test_the_bodies_of_all_parts_count_together() -> None:
    app = late_app()
    app._in_context.bodies = BodyBudget(4_000)
    read = asyncio.Event()
    statuses: list[int] = []

    async def sent(path: str, *pieces: bytes) -> None:
        bodies = iter(pieces)

        async def receive() -> Any:
            body = next(bodies, None)
            if body is None:
                read.set()
                await asyncio.Event().wait()
            return {"type": "http.request", "body": body, "more_body": True}

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                statuses.append(message["status"])

        headers = [(b"host", b"127.0.0.1"), (b"content-type", b"application/json")]
        scope = {"type": "http", "method": "POST", "path": path, "headers": headers, "query_string": b""}
        await app(
            {**scope, "client": ("127.0.0.1", 1), "raw_path": path.encode(), "http_version": "1.1"}, receive, send
        )

    kept = asyncio.create_task(sent("/v1/chat/completions", b"a" * 900))
    await read.wait()
    await sent("/v1/embeddings", b"a" * 200)
    assert statuses == [429]
    kept.cancel()
    await asyncio.gather(kept, return_exceptions=True)
