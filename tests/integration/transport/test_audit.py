"""Operators' pages, API keys, usage, traces, and the audit log that has all of it."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import httpx
import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from inference.simulated import SimulatedOptions
from persistence.memory.database import MemoryDatabase
from persistence.memory.journal import MemoryJournal
from persistence.sql.api_keys import SqlApiKeys
from sessions.billing.prices import PriceBook, read_prices
from sessions.model.api_keys import ApiKeyRequest
from sessions.model.errors import BadInput
from sessions.model.reviews import Subject, case_of
from sessions.model.types import SCOPES, CommandId, Principal, ResponseId, SessionId, SessionKey, TenantId, UnixMs
from sessions.model.verdicts import Finding
from sessions.tracing import trace_ids
from tests.support.authorisation.attempts import talk
from tests.support.authorisation.world import World, a_world, without
from tests.support.doors.assembly import Assembly, assembled, wall_ms
from tests.support.stores.tables import change_audit_row, put_case
from transport.auth.api_key_cache import ApiKeyCache
from transport.auth.authenticator import Authenticator, key_digest
from transport.cli.commands import parse
from transport.cli.keys import KeyCommand, format_keys, run_on_server
from transport.grpc_api import sessile_pb2 as pb
from transport.grpc_api.sessile_pb2_grpc import SessionsStub
from transport.ops.otlp import OtelTracer, otlp
from transport.protocol.frames import SessionGet


@asynccontextmanager
async def running() -> AsyncIterator[tuple[Assembly, ApiKeyCache]]:
    made: list[ApiKeyCache] = []
    clock = asyncio.get_running_loop().time

    def admit(journal: MemoryJournal) -> tuple[Authenticator, ApiKeyCache]:
        made.append(ApiKeyCache(SqlApiKeys(journal.database), now_ms=wall_ms, clock=clock))
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
            change_audit_row(server.journal.database, first["tenant"], 1, "body", b"{}")
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
        put_case(server.journal.database, case)
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


ACME = TenantId("acme")
KEYS = {
    key_digest(name): principal
    for name, principal in {
        "user": Principal(tenant=ACME, key_id="k1", user="ann"),
        "service": Principal(tenant=ACME, key_id="k2", role="service", scopes=("chat", "read", "usage", "admin")),
        "operator": Principal(tenant=ACME, key_id="k3", role="operator", scopes=("admin",)),
        "reader": Principal(tenant=ACME, key_id="k4", role="operator", scopes=("read",)),
    }.items()
}
READS = ("/metrics", "/v1/operator/overview", "/v1/operator/series", "/v1/operator/sessions")


def client(server: Assembly, key: str | None) -> httpx.AsyncClient:
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    return httpx.AsyncClient(base_url=server.server.url, headers=headers, timeout=60)


async def chat(server: Assembly, key: str | None) -> None:
    async with client(server, key) as http:
        body = {"model": "simulated", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 6}
        answer = await http.post("/v1/chat/completions", json=body)
        assert answer.status_code == 200, answer.text


async def test_an_operator_sees_replicas_sessions_and_health() -> None:
    async with assembled(keys=KEYS) as server:
        await chat(server, "user")
        async with client(server, "operator") as http:
            seen = (await http.get("/v1/operator/overview")).json()
            (replica,) = seen["replicas"]
            assert (replica["replica"], replica["state"], replica["model"]) == ("local", "serving", "simulated")
            assert replica["slots"] > 0 and replica["load"] == 0
            assert seen["health"]["answers"] == 1
            assert seen["health"]["ttft_s"]["p95"] > 0
            assert seen["health"]["ended"] == {"max_output_tokens": 1}
            assert seen["doors"]["commands"] >= 1
            listed = (await http.get("/v1/operator/sessions")).json()
            (session,) = listed["data"]
            assert (session["tenant"], session["replica"], session["state"]) == ("acme", "local", "idle")
            assert session["reason"] == "new; the only replica"
            assert (session["kv_tier"], listed["total"], listed["silent"]) == ("device", 1, {})
            assert "user" not in session, "no more than where it is and how it does"
            nothing = (await http.get("/v1/operator/sessions", params={"state": "turn"})).json()
            assert nothing["data"] == []
            assert (await http.get("/v1/operator/sessions", params={"state": "asleep"})).status_code == 400


async def test_sessions_are_paged() -> None:
    async with assembled() as server:
        for _ in range(3):
            await chat(server, None)
        async with client(server, None) as http:
            first = (await http.get("/v1/operator/sessions", params={"limit": 2})).json()
            rest = (await http.get("/v1/operator/sessions", params={"limit": 2, "after": first["last_id"]})).json()
            assert (first["has_more"], rest["has_more"], first["total"]) == (True, False, 3)
            names = [each["session"] for each in first["data"] + rest["data"]]
            assert names == sorted(set(names)) and len(names) == 3
            wrong = await http.get("/v1/operator/sessions", params={"after": "no-slash"})
            assert wrong.status_code == 400


async def test_nobody_else_does() -> None:
    async with assembled(keys=KEYS) as server:
        for key, status in ((None, 401), ("user", 403), ("service", 403), ("reader", 403)):
            async with client(server, key) as http:
                for path in READS:
                    assert (await http.get(path)).status_code == status, path
                for path in ("replicas/local/drain", "sessions/acme/s/handoff"):
                    answer = await http.post(f"/v1/operator/{path}", json={"replica": "local"})
                    assert answer.status_code == status, path


async def test_where_there_is_one_replica_nothing_is_drained_or_moved() -> None:
    async with assembled() as server, client(server, None) as http:
        for path, body in (
            ("/v1/operator/replicas/local/drain", {}),
            ("/v1/operator/sessions/local/s/handoff", {"replica": "local"}),
        ):
            answer = await http.post(path, json=body)
            assert (answer.status_code, answer.json()["error"]["code"]) == (409, "session_stays")
        assert (await http.post("/v1/operator/sessions/local/s/handoff", json={})).status_code == 400


async def test_the_page_is_served_and_knows_nothing_by_itself() -> None:
    async with assembled(keys=KEYS) as server, client(server, None) as http:
        page = await http.get("/operator")
        assert page.status_code == 200 and "Operator" in page.text
        assert "script-src 'self'" in page.headers["content-security-policy"]
        for name in ("operator.js", "operator.css"):
            assert (await http.get(f"/{name}")).status_code == 200


PRICES = 'currency = "USD"\n[[prices]]\nmodel = "*"\ninput = 1\ncached = 0.5\noutput = 2'
USAGE_ACME, OTHER = TenantId("acme"), TenantId("other")
USAGE_KEYS = {
    key_digest(name): principal
    for name, principal in {
        "ann": Principal(tenant=USAGE_ACME, key_id="k1", user="ann", scopes=("chat", "read", "usage")),
        "bob": Principal(tenant=USAGE_ACME, key_id="k2", user="bob", scopes=("chat", "read", "usage")),
        "mute": Principal(tenant=USAGE_ACME, key_id="k3", user="bob"),
        "service": Principal(tenant=USAGE_ACME, key_id="k4", role="service", scopes=("chat", "read", "usage")),
        "stranger": Principal(tenant=OTHER, key_id="k5", role="service", scopes=("chat", "read", "usage")),
        "operator": Principal(tenant=OTHER, key_id="k6", role="operator", scopes=("read", "usage", "admin")),
    }.items()
}


async def ask(server: Assembly, key: str, tokens: int = 5) -> dict[str, Any]:
    async with bearing(server, key) as http:
        body = {"model": "simulated", "messages": [{"role": "user", "content": "hi"}], "max_tokens": tokens}
        answer = await http.post("/v1/chat/completions", json=body)
        assert answer.status_code == 200, answer.text
        told: dict[str, Any] = answer.json()
        return told


async def usage(server: Assembly, key: str, path: str = "/v1/usage", **query: Any) -> dict[str, Any]:
    async with bearing(server, key) as http:
        answer = await http.get(path, params=query)
        return {"status": answer.status_code, **answer.json()}


async def test_what_was_used_is_summed_for_those_who_may_see_it() -> None:
    async with assembled(keys=USAGE_KEYS, prices=PriceBook(read_prices(PRICES))) as server:
        spent, again = [(await ask(server, "ann"))["usage"] for _ in range(2)]
        for key in ("bob", "stranger"):
            await ask(server, key)
        assert spent["cost"]["currency"] == "USD"
        price = spent["prompt_tokens"] + 2 * spent["completion_tokens"]
        assert float(spent["cost"]["amount"]) == pytest.approx(price / 1e6)

        mine = await usage(server, "ann")
        (only,) = mine["data"]
        assert (only["user"], only["model"], only["responses"]) == ("ann", "simulated", 2)
        assert only["output_tokens"] == 10
        assert again["prompt_tokens_details"]["cached_tokens"] > 0, "her other conversation's KV is hers"
        both = float(spent["cost"]["amount"]) + float(again["cost"]["amount"])
        assert float(only["cost"]["amount"]) == pytest.approx(both) and both < 2 * price / 1e6
        assert (await usage(server, "ann", user="bob"))["data"] == mine["data"], "a user's key sees that user's"
        whole = await usage(server, "service")
        assert [row["user"] for row in whole["data"]] == ["ann", "bob"]
        assert (await usage(server, "service", user="bob"))["data"] == whole["data"][1:]
        by_day = await usage(server, "service", group_by="day")
        assert [(row["responses"], "user" in row) for row in by_day["data"]] == [(3, False)]
        assert [row["responses"] for row in (await usage(server, "stranger"))["data"]] == [1]

        first = await usage(server, "service", limit=1)
        assert first["has_more"]
        rest = await usage(server, "service", limit=1, after=first["last_id"])
        assert not rest["has_more"]
        assert first["data"] + rest["data"] == whole["data"]

        rows = await usage(server, "service", "/v1/usage/responses")
        assert [row["user"] for row in rows["data"]] == ["ann", "ann", "bob"]
        assert rows["data"][0]["cost"] == spent["cost"]
        behind = await usage(server, "service", "/v1/usage/responses", after=rows["data"][0]["seq"], limit=1)
        assert behind["data"] == rows["data"][1:2] and behind["has_more"]
        assert (await usage(server, "service", to="2020-01-01"))["data"] == []


async def test_others_usage_is_for_operators_and_bad_questions_are_refused() -> None:
    async with assembled(keys=USAGE_KEYS) as server:
        told = await ask(server, "ann")
        assert "cost" not in told["usage"], "without prices nothing has a cost"
        (only,) = (await usage(server, "service"))["data"]
        assert only["cost"] is None
        assert (await usage(server, "mute"))["status"] == 403
        for path in ("/v1/usage", "/v1/usage/responses"):
            assert (await usage(server, "stranger", path, tenant="acme"))["status"] == 403
            assert len((await usage(server, "operator", path, tenant="acme"))["data"]) == 1
            assert (await usage(server, "operator", path))["data"] == []
            assert (await usage(server, "nobody", path))["status"] == 401
        for query in (
            {"from": "soon"},
            {"from": "2026-02-01", "to": "2026-01-01"},
            {"group_by": "hour"},
            {"after": "?"},
            {"limit": 0},
        ):
            assert (await usage(server, "service", **query))["status"] == 400, query


ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with a_world() as made:
        yield made


def command(*words: str) -> KeyCommand:
    parsed = parse(["keys", *words], {}, "0")
    assert parsed is not None and isinstance(parsed.options, KeyCommand)
    return parsed.options


async def told(world: World, credential: str, *words: str) -> Any:
    return await run_on_server(
        command(*words, "--url", world.assembly.server.url), credential, world.assembly.gateway.now_ms()
    )


async def test_an_operator_makes_shows_and_revokes_keys_through_a_server(world: World) -> None:
    boss, why = world.credentials["emergency operator"], ("--reason", "gamma has no administrator yet")
    made = await told(world, boss, "create", "--tenant", "gamma", "--user", "zoe", "--expires-in", "30d", *why)
    assert (made["tenant"], made["role"], made["user"], made["scopes"]) == ("gamma", "user", "zoe", ["chat", "read"])
    hers = {"authorization": f"Bearer {made['key']}"}
    assert (await world.http.get("/v1/sessions", headers=hers)).status_code == 200
    listed = await told(world, boss, "list", "--tenant", "gamma")
    assert [key["id"] for key in listed] == [made["id"]] and "key" not in listed[0] and "digest" not in listed[0]
    assert len(await told(world, boss, "list")) > len(listed)
    assert (await told(world, boss, "show", made["id"]))["state"] == "active"
    assert (await told(world, boss, "revoke", made["id"]))["state"] == "revoked"
    refused = await world.http.get("/v1/sessions", headers=hers)
    assert refused.status_code == 401 and "revoked" in refused.text
    text = format_keys(made, as_json=False)
    assert made["key"] in text and "shown once" in text
    assert made["id"] in format_keys(listed, as_json=False) and made["key"] not in format_keys(listed, as_json=True)


async def test_a_service_administers_its_own_tenant_and_nobody_above_it(world: World) -> None:
    service = {"authorization": f"Bearer {without(world, 'service', 'usage')}"}
    made = await world.http.post("/v1/keys", headers=service, json={"role": "service", "scopes": list(SCOPES)})
    assert made.status_code == 201 and made.json()["tenant"] == "acme" and made.headers["cache-control"] == "no-store"
    for wrong, status in (
        ({"role": "operator"}, 403),
        ({"tenant": "beta"}, 403),
        ({"role": "king"}, 400),
        ({"scopes": ["everything"]}, 400),
        ({"scopes": []}, 400),
        ({"role": "service", "user": "ana"}, 400),
        ({"expires_at": 1}, 400),
        ({"name": "x" * 129}, 400),
        ({"digest": "00"}, 400),
    ):
        answer = await world.http.post("/v1/keys", headers=service, json=wrong)
        assert (wrong, answer.status_code) == (wrong, status)
        assert answer.json()["error"]["message"]
    keys = (await world.http.get("/v1/keys", headers=service)).json()["data"]
    assert {key["tenant"] for key in keys} == {"acme"}
    operators = next(key["id"] for key in keys if key["role"] == "operator")
    assert (await world.http.delete(f"/v1/keys/{operators}", headers=service)).status_code == 403


async def test_keys_are_listed_in_pages(world: World) -> None:
    boss = {"authorization": f"Bearer {without(world, 'operator', 'usage')}"}
    seen: list[str] = []
    query: dict[str, Any] = {"limit": 5}
    while True:
        page = (await world.http.get("/v1/keys", headers=boss, params=query)).json()
        seen += [key["id"] for key in page["data"]]
        if not page["has_more"]:
            break
        query["after"] = page["last_id"]
    assert len(seen) == len(set(seen)) == len(world.ring.all()) > 10
    assert (await world.http.get("/v1/keys?after=nobodyshere2", headers=boss)).status_code == 404


async def test_a_service_keeps_its_users_apart(world: World) -> None:
    key = await world.key(tenant="acme", role="service")
    ana, ben = ({"authorization": f"Bearer {key}", "x-sessile-user": user} for user in ("ana2", "ben2"))
    made = await world.http.post("/v1/conversations", headers=ana, json={})
    mine = f"/v1/sessions/{made.json()['id']}"
    assert (await world.http.get(mine, headers=ana)).status_code == 200
    assert (await world.http.get(mine, headers=ben)).status_code == 404
    assert (await world.http.get(mine, headers={"authorization": f"Bearer {key}"})).status_code == 200
    ticket = (await world.http.post("/v1/ws/tickets", headers=ben)).json()["ticket"]
    frame = SessionGet(id=CommandId("1"), session=SessionId(made.json()["id"]))
    assert (await talk(world, [frame], None, query=f"?ticket={ticket}")).outcome == "not found"
    assert (await talk(world, [frame], None, header=f"Bearer {key}", user="ben2")).outcome == "not found"
    assert (await talk(world, [frame], None, header=f"Bearer {key}", user="ana2")).outcome == "allowed"
    assert (await talk(world, [frame], key, user="ben2")).outcome == "other"  # refused: it would be the service's own
    hers = {"authorization": f"Bearer {world.credentials['other user']}", "x-sessile-user": "ana2"}
    assert (await world.http.get(mine, headers=hers)).status_code == 403


async def test_a_revoked_key_ends_its_calls_on_grpc(world: World) -> None:
    credential = await world.key(tenant="acme", user="ana")
    metadata = (("authorization", f"Bearer {credential}"),)
    stub = SessionsStub(world.channel)
    calls = stub.Converse(metadata=metadata)
    await calls.write(pb.ConverseRequest(open=pb.Open(session=world.victim.session)))
    reading = stub.History(pb.HistoryRequest(session=world.victim.session, follow=True), metadata=metadata)
    assert (await calls.read()).WhichOneof("reply") == "resumed" and (await reading.read()) is not grpc.aio.EOF
    await world.ring.revoke(credential.split("-")[2], revoked_by="test")
    async with asyncio.timeout(60):
        for call in (calls, reading):
            with pytest.raises(grpc.aio.AioRpcError) as ended:
                while await call.read() is not grpc.aio.EOF:
                    pass
                raise grpc.aio.AioRpcError(
                    await call.code(), await call.initial_metadata(), await call.trailing_metadata()
                )
            assert ended.value.code() is grpc.StatusCode.UNAUTHENTICATED


def run(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "app.py", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **environment},
    )


def test_the_first_key_is_made_before_the_server_runs_and_the_next_ones_through_it(tmp_path: Path) -> None:
    """The figures are those of docs/keys.md."""
    data = ("--data", str(tmp_path / "data"))
    made = run("keys", "create", "--tenant", "acme", "--role", "operator", "--json", *data)
    assert made.returncode == 0, made.stderr
    boss = json.loads(made.stdout)["key"]
    assert boss not in made.stderr
    starting = [sys.executable, "app.py", "serve", "--engine", "sim", "--port", "0", "--auth", "keys", *data]
    with subprocess.Popen(starting, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            found = re.search(r"ready: (\S+)/", server.stdout.readline())
            assert found
            url = found[1]
            assert httpx.get(f"{url}/v1/models", timeout=60).status_code == 401
            words = ("keys", "create", "--tenant", "acme", "--user", "ana", "--json", "--url", url)
            stranger = json.loads(run(*words, SESSILE_API_KEY=boss).stdout)["key"]
            headers = {"authorization": f"Bearer {stranger}"}
            assert httpx.get(f"{url}/v1/models", headers=headers, timeout=60).status_code == 200
            assert httpx.get(f"{url}/metrics", headers=headers, timeout=60).status_code == 403
            asked = {"authorization": f"Bearer {boss}"}
            assert httpx.delete(f"{url}/v1/keys/{stranger.split('-')[2]}", headers=asked, timeout=60).status_code == 200
            assert httpx.get(f"{url}/v1/models", headers=headers, timeout=60).status_code == 401
        finally:
            server.terminate()
            _, errors = server.communicate(timeout=60)
    assert server.returncode == 0 and boss not in errors and stranger not in errors


SLOW = SimulatedOptions(step_base_s=0.02, answer_tokens_mean=100_000)


def tracer(name: str) -> tuple[OtelTracer, InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    return OtelTracer(SimpleSpanProcessor(exporter), role="test", name=name, version="1"), exporter


def of(exporter: InMemorySpanExporter) -> dict[str, ReadableSpan]:
    return {span.name: span for span in exporter.get_finished_spans()}


async def ask_of_tracing(server: Assembly, tokens: int, *, background: bool = False) -> str:
    body = {"model": "simulated", "input": "tell me a secret", "max_output_tokens": tokens, "background": background}
    async with httpx.AsyncClient(base_url=server.server.url, timeout=60) as http:
        answer = await http.post("/v1/responses", json=body)
        assert answer.status_code == 200, answer.text
        return str(answer.json()["id"])


async def test_a_turn_is_one_trace_from_the_socket_to_the_log() -> None:
    async with assembled() as server:
        server.gateway.measures.tracer, exporter = tracer("only")
        response = ResponseId(await ask_of_tracing(server, 5))
        spans = of(exporter)
        assert set(spans) == {"command", "generation", "journal.append", "response"}
        trace_id, root_id = trace_ids(TenantId("local"), response)
        for span in spans.values():
            assert span.context is not None and span.context.trace_id == trace_id
            assert span.start_time is not None and span.end_time is not None and span.start_time <= span.end_time
            assert span.attributes is not None and span.attributes["sessile.response_id"] == response
            assert "secret" not in str(dict(span.attributes))
        root = spans.pop("response")
        assert root.context is not None and (root.context.span_id, root.parent) == (root_id, None)
        assert all(span.parent is not None and span.parent.span_id == root_id for span in spans.values())
        attributes = spans["generation"].attributes
        assert attributes is not None
        assert attributes["gen_ai.usage.output_tokens"] == 5
        assert attributes["sessile.goes_on"] is False


async def test_whoever_takes_a_response_over_goes_on_in_its_trace() -> None:
    store = MemoryDatabase()
    async with assembled(store=store, engine=SLOW) as first:
        first.gateway.measures.tracer, before = tracer("first")
        response = ResponseId(await ask_of_tracing(first, 40, background=True))
    assert "response" not in of(before), "its owner left in the middle of it"
    async with assembled(store=store, engine=SLOW) as second:
        second.gateway.measures.tracer, after = tracer("second")
        (head,) = await second.journal.open_heads(limit=9, after=None)
        await second.runtime.recover(head.key)
        async with httpx.AsyncClient(base_url=second.server.url, timeout=60) as http:
            told = await http.get(f"/v1/responses/{response}", params={"stream": "true"})
            assert "response.incomplete" in told.text
    trace_id, root_id = trace_ids(TenantId("local"), response)
    spans = [*before.get_finished_spans(), *after.get_finished_spans()]
    assert {span.context.trace_id for span in spans if span.context is not None} == {trace_id}
    assert [span.resource.attributes["service.instance.id"] for span in spans if span.name == "generation"] == [
        "first",
        "second",
    ]
    (root,) = [span for span in spans if span.name == "response"]
    assert root.context is not None and root.context.span_id == root_id
    assert root.start_time is not None
    assert root.start_time <= min(span.start_time for span in spans if span.start_time is not None) + 1_000_000_000


def test_an_address_that_is_none_is_refused() -> None:
    with pytest.raises(BadInput, match="http://host:4318"):
        otlp("collector:4318", role="test", name="x", version="1")
