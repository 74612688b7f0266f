"""`/v1/audit` and what doors and actors write down: over HTTP, against a real server in this process."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx

from persistence.memory.api_keys import MemoryApiKeys
from persistence.memory.journal import MemoryJournal
from sessions.model.api_keys import ApiKeyRequest
from sessions.model.reviews import Subject, case_of
from sessions.model.types import SCOPES, SessionId, SessionKey, TenantId, UnixMs
from sessions.model.verdicts import Finding
from tests.support.doors.assembly import Assembly, assembled, wall_ms
from transport.auth.api_key_cache import ApiKeyCache
from transport.auth.authenticator import Authenticator


@asynccontextmanager
async def running() -> AsyncIterator[tuple[Assembly, ApiKeyCache]]:
    made: list[ApiKeyCache] = []
    clock = asyncio.get_running_loop().time

    def admit(journal: MemoryJournal) -> tuple[Authenticator, ApiKeyCache]:
        made.append(ApiKeyCache(MemoryApiKeys(journal.database), now_ms=wall_ms, clock=clock))
        return Authenticator({}, clock=clock, now_ms=wall_ms, ring=made[0]), made[0]

    async with assembled(admit=admit) as server:
        await made[0].refresh()
        yield server, made[0]


async def a_key(ring: ApiKeyCache, **wanted: Any) -> str:
    return (await ring.create(ApiKeyRequest(**{"tenant": "acme"} | wanted)))[1]


def bearing(server: Assembly, key: str) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=server.server.url, headers={"authorization": f"Bearer {key}"}, timeout=60)


async def actions(http: httpx.AsyncClient, **query: Any) -> list[str]:
    return [row["action"] for row in (await rows(http, **query))]


async def rows(http: httpx.AsyncClient, **query: Any) -> list[dict[str, Any]]:
    answer = await http.get("/v1/audit", params=query)
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()["data"]
    return found


async def test_what_is_done_is_written_down_before_it_is_answered() -> None:
    async with running() as (server, ring):
        admin = await a_key(ring, role="service", scopes=SCOPES)
        async with bearing(server, admin) as boss:
            made = (await boss.post("/v1/keys", json={"user": "mary", "scopes": ["chat", "read"]})).json()
            assert await actions(boss) == ["key.created", "key.created"]
            async with bearing(server, made["key"]) as mary:
                body = {"model": "simulated", "messages": [{"role": "user", "content": "my secret"}], "max_tokens": 3}
                session = (await mary.post("/v1/chat/completions", json=body)).headers["x-session-id"]
                assert (await mary.get(f"/v1/sessions/{session}/export")).status_code == 200
                assert (await mary.delete(f"/v1/sessions/{session}")).status_code == 200
                assert (await mary.get("/v1/keys")).status_code == 403
                await boss.delete(f"/v1/keys/{made['id']}")
                assert (await mary.get("/v1/sessions")).status_code == 401
            await server.gateway.tasks.settled()
            assert (await actions(boss))[2:] == [
                "session.exported",
                "session.deleted",
                "access.refused",
                "key.revoked",
                "access.refused",
            ]
            told = await rows(boss)
            (about,) = {row["user"] for row in told[1:]}
            assert about.startswith("u_") and "mary" not in str(told) and "my secret" not in str(told)
            assert told[1]["by"]["role"] == "service" and told[3]["by"] == {
                "tenant": "acme",
                "key": made["id"],
                "role": "user",
                "user": about,
            }
            assert told[4]["detail"] == {"code": "forbidden", "what": "GET /v1/keys"}
            assert [row["seq"] for row in await rows(boss, user="mary")] == [2, 3, 4, 5, 6, 7]
            assert await rows(boss, user="nobody") == []


async def test_pages_and_who_may_turn_them() -> None:
    async with running() as (server, ring):
        admin = await a_key(ring, role="service", scopes=SCOPES)
        stranger = await a_key(ring, tenant="beta", role="service", scopes=SCOPES)
        operator = await a_key(ring, tenant="ops", role="operator")
        plain = await a_key(ring, role="service")
        async with bearing(server, admin) as boss, bearing(server, stranger) as other:
            first = (await boss.get("/v1/audit", params={"limit": 1})).json()
            assert first["has_more"] and first["last_id"] == 1
            second = (await boss.get("/v1/audit", params={"limit": 5, "after": 1})).json()
            assert not second["has_more"] and [row["seq"] for row in second["data"]] == [2]
            assert await actions(other) == ["key.created"]
            for query in ({"tenant": "acme"}, {"tenant": ""}):
                assert (await other.get("/v1/audit", params=query)).status_code == 403
                assert (await other.get("/v1/audit/verify", params=query)).status_code == 403
            verified = (await boss.get("/v1/audit/verify")).json()
            assert verified["intact"] and verified["rows"] == 2
            kept = {"anchor": [verified["anchor"]]}
            assert (await boss.get("/v1/audit/verify", params=kept)).json()["intact"]
            assert (await boss.get("/v1/audit/verify", params={"anchor": "3:nonsense"})).status_code == 400
            store = server.journal.database
            store.audit_rows[first["tenant"]][0] = store.audit_rows[first["tenant"]][0]._replace(body=b"{}")
            broken = (await boss.get("/v1/audit/verify")).json()
            assert not broken["intact"] and broken["first_broken"] == 1
        async with bearing(server, operator) as http:
            assert "access.refused" in await actions(http, tenant="beta")
            assert await actions(http, tenant="") == []
        async with bearing(server, plain) as http:
            assert (await http.get("/v1/audit")).status_code == 403


async def test_refusals_cannot_fill_the_log() -> None:
    async with running() as (server, ring):
        admin = await a_key(ring, role="service", scopes=SCOPES)
        user = await a_key(ring, user="mary")
        async with bearing(server, admin) as boss, bearing(server, user) as mary:
            for _ in range(20):
                assert (await mary.get("/v1/keys")).status_code == 403
                assert (await mary.get("/v1/operator/overview")).status_code == 403
            assert (await actions(boss)).count("access.refused") == 2


async def test_everything_of_a_user_is_told_and_then_erased() -> None:
    async with running() as (server, ring):
        admin = await a_key(ring, role="service", scopes=SCOPES)
        other = await a_key(ring, tenant="beta", role="service", scopes=SCOPES)
        name = "mary/jane ü"
        path = "/v1/users/mary%2Fjane%20%C3%BC"
        body = {"model": "simulated", "input": "my secret", "max_output_tokens": 3}
        async with bearing(server, admin) as boss, bearing(server, other) as stranger:
            said = await boss.post("/v1/responses", json=body, headers={"x-sessile-user": "mary"})
            assert said.status_code == 200, said.text
            key = await a_key(ring, user=name)
            async with bearing(server, key) as mary:
                session = (await mary.post("/v1/responses", json=body)).headers["x-session-id"]
                assert (await mary.get(f"{path}/export")).status_code == 403
            assert (await stranger.get(f"{path}/export", params={"tenant": "acme"})).status_code == 403
            assert "secret" not in (await stranger.get(f"{path}/export")).text
            export = await boss.get(f"{path}/export")
            lines = [json.loads(line) for line in export.text.splitlines()]
            assert export.headers["content-type"].startswith("application/x-ndjson")
            assert [line["id"] for line in lines if line["object"] == "session"] == [session]
            assert lines[-1] == {
                "object": "user.exported",
                "tenant": "acme",
                "user": name,
                "sessions": 1,
                "items": 2,
                "responses": 1,
                "memories": 0,
                "push_subscriptions": 0,
                "files": 0,
                "audit_rows": 3,
            }
            assert (await boss.get(f"{path}/erase")).status_code == 404
            erased = await boss.post(f"{path}/erase")
            assert erased.status_code == 200 and erased.json()["status"] == "done", erased.text
            assert (await boss.get(f"{path}/erase")).json()["done_at"] == erased.json()["done_at"]
            assert (await boss.get(f"/v1/sessions/{session}")).status_code == 404
            assert len((await boss.get("/v1/sessions")).json()["data"]) == 1, "another user's session stays"
            after = [json.loads(line) for line in (await boss.get(f"{path}/export")).text.splitlines()]
            assert after[-1]["sessions"] == after[-1]["responses"] == 0
            await ring.refresh()
            async with bearing(server, key) as mary:
                assert (await mary.get("/v1/sessions")).status_code == 401, "their keys end with them"
            assert (await boss.get("/v1/audit/verify")).json()["intact"]


async def test_who_decided_a_review_case_and_how_is_written_down_once() -> None:
    async with running() as (server, ring):
        admin = await a_key(ring, role="service", scopes=SCOPES)
        finding = Finding(category="pii/email", action="block", start=0, end=4)
        key = SessionKey(TenantId("acme"), SessionId("s"))
        case = case_of(
            finding, Subject(key=key, name="x", direction="output", user="mary", offset=1, now=UnixMs(wall_ms()))
        )
        server.journal.database.reviews[case.id] = case
        async with bearing(server, admin) as boss:
            body, once = {"outcome": "upheld", "note": "a word of its own"}, {"idempotency-key": "d1"}
            refused = await boss.post(f"/v1/reviews/{case.id}/decide", json=body)
            assert refused.status_code == 409 and "review.decided" not in await actions(boss)
            assert (await boss.post(f"/v1/reviews/{case.id}/claim")).status_code == 200
            for _ in range(2):
                assert (await boss.post(f"/v1/reviews/{case.id}/decide", json=body, headers=once)).status_code == 200
            (row,) = [each for each in await rows(boss) if each["action"] == "review.decided"]
            assert row["detail"] == {"review": case.id, "category": "pii/email", "outcome": "upheld"}
            assert "a word of its own" not in json.dumps(row) and "mary" not in json.dumps(row)
