"""Memories through the doors: written down, put into later sessions, filtered, exported and erased."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from inference.simulated import SimulatedOptions, decode
from sessions.model.events import SessionCreated
from sessions.model.memories import HEADING
from sessions.model.types import ALL_SCOPES, Principal, SessionId, SessionKey, TenantId
from sessions.turn.keyword_filter import KeywordFilterSet
from tests.support.doors.assembly import Assembly, assembled
from tests.support.doors.openai_server import ScriptedEngine
from transport.auth.authenticator import key_digest

ACME = Principal(tenant=TenantId("acme"), key_id="k", role="service", scopes=ALL_SCOPES)
BETA = Principal(tenant=TenantId("beta"), key_id="k2", role="service", scopes=ALL_SCOPES)
KEYS = {key_digest("s3cret-of-acme"): ACME, key_digest("s3cret-of-beta"): BETA}
ANA = {"authorization": "Bearer s3cret-of-acme", "x-sessile-user": "ana"}
BEN = {"authorization": "Bearer s3cret-of-acme", "x-sessile-user": "ben"}
ON = "[tenants.acme]\nmemories = true\n"


class World:
    def __init__(self, server: Assembly, engine: ScriptedEngine, http: httpx.AsyncClient) -> None:
        self.server, self.engine, self.http = server, engine, http

    async def remember(self, text: str, headers: dict[str, str] = ANA) -> dict[str, Any]:
        made = await self.http.post("/v1/memories", json={"text": text}, headers=headers)
        assert made.status_code == 201, made.text
        return made.json()  # type: ignore[no-any-return]

    async def texts(self, headers: dict[str, str] = ANA) -> list[str]:
        answer = await self.http.get("/v1/memories", headers=headers)
        return [each["text"] for each in answer.json()["data"]]

    async def conversation(self, headers: dict[str, str] = ANA) -> str:
        made = await self.http.post("/v1/conversations", json={}, headers=headers)
        assert made.status_code == 200, made.text
        return str(made.json()["id"])

    async def prompt(self, conversation: str, headers: dict[str, str] = ANA) -> str:
        """What its model is shown for one more question."""
        body = {"model": "simulated", "input": "Hello.", "conversation": conversation, "max_output_tokens": 16}
        answer = await self.http.post("/v1/responses", json=body, headers=headers)
        assert answer.status_code == 200, answer.text
        return decode(self.engine.prompts[-1])

    async def written(self, conversation: str) -> Any:
        key = SessionKey(TenantId("acme"), SessionId(conversation))
        page = await self.server.journal.read(key, after=0, limit=1, bytes_max=1 << 20)
        assert page is not None and isinstance(page.records[0].event, SessionCreated)
        return page.records[0].event.info.memories


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    limits = tmp_path / "limits.toml"
    limits.write_text(ON)
    engine = ScriptedEngine(SimulatedOptions(step_base_s=0.001, answer_tokens_mean=8))
    filters = KeywordFilterSet(input_phrases=["nightjar"])
    async with (
        assembled(limits_file=limits, engine=engine, keys=KEYS, filters=filters) as server,
        httpx.AsyncClient(base_url=server.server.url, timeout=60) as http,
    ):
        yield World(server, engine, http)


async def test_a_later_conversation_begins_with_them_and_keeps_them_as_they_were(world: World) -> None:
    cat = await world.remember("My cat is called Io.")
    await world.remember("I live in Ghent.")
    first = await world.conversation()
    assert await world.written(first) == ("My cat is called Io.", "I live in Ghent.")
    begin = f"{HEADING}\n- My cat is called Io.\n- I live in Ghent."
    assert begin in await world.prompt(first)
    changed = await world.http.patch(f"/v1/memories/{cat['id']}", json={"text": "My dog is called Io."}, headers=ANA)
    assert changed.json()["text"] == "My dog is called Io." and changed.json()["created_at"] == cat["created_at"]
    assert begin in await world.prompt(first), "its prompt begins as it did"
    second = await world.conversation()
    assert "My dog is called Io." in await world.prompt(second)
    assert (await world.http.delete(f"/v1/memories/{cat['id']}", headers=ANA)).status_code == 204
    assert await world.texts() == ["I live in Ghent."]


async def test_they_are_their_users_alone(world: World) -> None:
    mine = await world.remember("My cat is called Io.")
    assert await world.texts(BEN) == []
    assert HEADING not in await world.prompt(await world.conversation(BEN), BEN)
    for call in (
        world.http.patch(f"/v1/memories/{mine['id']}", json={"text": "taken"}, headers=BEN),
        world.http.delete(f"/v1/memories/{mine['id']}", headers=BEN),
    ):
        answer = await call
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "memory_not_found")
    beta = {"authorization": "Bearer s3cret-of-beta", "x-sessile-user": "ana"}
    assert await world.texts(beta) == []
    off = await world.http.post("/v1/memories", json={"text": "x"}, headers=beta)
    assert (off.status_code, off.json()["error"]["code"]) == (403, "memories_disabled")
    nobody = await world.http.get("/v1/memories", headers={"authorization": "Bearer s3cret-of-acme"})
    assert (nobody.status_code, nobody.json()["error"]["code"]) == (400, "user_required")


async def test_filters_read_them_like_a_users_words(world: World) -> None:
    refused = await world.http.post("/v1/memories", json={"text": "Call me Nightjar."}, headers=ANA)
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "content_filter")
    assert await world.texts() == []
    for text in ("", "x" * 281):
        assert (await world.http.post("/v1/memories", json={"text": text}, headers=ANA)).status_code == 400


async def test_what_filters_refuse_by_now_is_left_out(tmp_path: Path) -> None:
    limits = tmp_path / "limits.toml"
    limits.write_text(ON)
    engine = ScriptedEngine(SimulatedOptions(step_base_s=0.001, answer_tokens_mean=8))
    filters = KeywordFilterSet()
    async with (
        assembled(limits_file=limits, engine=engine, keys=KEYS, filters=filters) as server,
        httpx.AsyncClient(base_url=server.server.url, timeout=60) as http,
    ):
        world = World(server, engine, http)
        await world.remember("Call me Nightjar.")
        await world.remember("I live in Ghent.")
        filters._input = KeywordFilterSet(input_phrases=["nightjar"])._input
        assert await world.written(await world.conversation()) == ("I live in Ghent.",)


async def test_they_are_exported_and_erased_with_their_user(world: World) -> None:
    await world.remember("My cat is called Io.")
    admin = {"authorization": "Bearer s3cret-of-acme"}
    export = await world.http.get("/v1/users/ana/export", headers=admin)
    assert "My cat is called Io." in export.text
    assert (await world.http.post("/v1/users/ana/erase", headers=admin)).status_code == 200
    assert await world.texts() == []
