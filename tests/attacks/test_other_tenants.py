"""Attacks on the walls between tenants and users: with an operator's key, a key of a file, a name taken beforehand.

Each was let in once; see docs/security.md.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path

import httpx
import pytest

from persistence.memory.journal import MemoryJournal
from persistence.sql.api_keys import SqlApiKeys
from sessions.model.api_keys import ApiKeyRequest
from sessions.model.audit import Audited
from sessions.model.commands import SessionCreate
from sessions.model.errors import Unavailable
from sessions.model.journal_types import Due
from sessions.model.types import (
    ALL_SCOPES,
    SCOPES,
    CommandId,
    Principal,
    SessionId,
    TenantId,
    UnixMs,
    derived_session_id,
)
from testbed.engine_client import until
from tests.support.authorisation.attempts import talk
from tests.support.authorisation.world import World, a_world
from tests.support.doors.assembly import assembled, wall_ms
from tests.support.rounds.near_requests import foreign_hits
from tests.support.stores.journals import NOW, a_log, key, patch
from transport.auth.api_key_cache import ApiKeyCache
from transport.auth.authenticator import Authenticator, key_digest
from transport.cli.settings import BadSetting, read_keys
from transport.openai.turn_starter import PLACE

REASON = "case 4711: the tenant asked us to"


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with a_world() as made:
        yield made


def bearer(credential: str) -> dict[str, str]:
    return {"authorization": f"Bearer {credential}"}


async def broken_glass(world: World, tenant: str) -> list[Mapping[str, object]]:
    """The `detail` of the rows of a tenant's audit log about entering it."""
    rows = await world.http.get(
        "/v1/audit", headers=bearer(world.credentials["emergency operator"]), params={"tenant": tenant, "limit": 1000}
    )
    rows.raise_for_status()
    return [row["detail"] for row in rows.json()["data"] if row["action"] == "access.break_glass"]


@pytest.mark.parametrize(("method", "path"), [("GET", "export"), ("POST", "erase")])
async def test_an_operator_without_break_glass_does_not_enter_another_tenant(
    world: World, method: str, path: str
) -> None:
    for reason in ({}, {"reason": REASON}):
        answer = await world.http.request(
            method,
            f"/v1/users/ana/{path}",
            headers=bearer(world.credentials["operator of another tenant"]),
            params={"tenant": "acme", **reason},
        )
        assert answer.status_code == 403
        assert world.canary not in answer.text
    assert await broken_glass(world, "acme") == []


async def test_break_glass_needs_a_reason_and_both_tenants_can_read_it(world: World) -> None:
    operator = bearer(world.credentials["emergency operator"])
    for reason in ({}, {"reason": " "}, {"reason": "why not"}):
        answer = await world.http.get("/v1/users/ana/export", headers=operator, params={"tenant": "acme", **reason})
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "reason_required")
    assert await broken_glass(world, "acme") == []

    answer = await world.http.get("/v1/users/ana/export", headers=operator, params={"tenant": "acme", "reason": REASON})
    assert answer.status_code == 200
    assert world.canary in answer.text
    row = {"tenant": "acme", "for": "user.exported", "reason": REASON}
    assert await broken_glass(world, "acme") == [row]
    assert await broken_glass(world, "beta") == [row]


async def test_an_impossible_tenant_name_is_refused(world: World) -> None:
    """A row stood in the log of a tenant that nobody can be, and an export broke off in its middle."""
    for tenant in ("\0", "\x7fsign-in", "acme\n"):
        answer = await world.http.get(
            "/v1/users/ana/export",
            headers=bearer(world.credentials["emergency operator"]),
            params={"tenant": tenant, "reason": REASON},
        )
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "tenant")


@pytest.mark.parametrize("full", ["acme", "beta"])
async def test_what_cannot_be_written_down_in_both_tenants_is_not_shown_or_done(
    world: World, monkeypatch: pytest.MonkeyPatch, full: str
) -> None:
    audit, before = world.assembly.gateway.store.audit, world.keys_of_acme()
    record = audit.record

    async def refuse(tenant: TenantId, rows: Sequence[Audited]) -> None:
        if tenant == full:
            raise Unavailable("journal_away", "The audit log cannot be written.")
        await record(tenant, rows)

    monkeypatch.setattr(audit, "record", refuse)
    where = {"tenant": "acme", "reason": REASON}
    operator = bearer(world.credentials["emergency operator"])
    shown = await world.http.get("/v1/users/ana/export", headers=operator, params=where)
    erased = await world.http.post("/v1/users/ana/erase", headers=operator, params=where)
    made = await world.http.post("/v1/keys", headers=operator, json={**where, "role": "service"})
    assert [answer.status_code for answer in (shown, erased, made)] == [503] * 3
    assert world.canary not in shown.text
    assert world.keys_of_acme() == before
    status = await world.http.get("/v1/users/ana/erase", headers=operator, params={"tenant": "acme"})
    assert status.status_code == 404


async def test_an_operator_makes_itself_no_key_of_a_tenant_that_lives(world: World) -> None:
    operator = bearer(world.credentials["operator of another tenant"])
    before = world.keys_of_acme()
    for body in (
        {"role": "service"},
        {"role": "user", "user": "ana"},
        {"role": "service", "scopes": ["admin"], "reason": REASON},
        {"role": "operator"},
    ):
        answer = await world.http.post("/v1/keys", headers=operator, json={"tenant": "acme", **body})
        assert answer.status_code == 403
    assert world.keys_of_acme() == before
    emergency = bearer(world.credentials["emergency operator"])
    made = await world.http.post(
        "/v1/keys", headers=emergency, json={"tenant": "acme", "role": "service", "reason": REASON}
    )
    assert made.status_code == 201
    assert await broken_glass(world, "acme") == [{"tenant": "acme", "for": "key.created", "reason": REASON}]


async def test_an_operator_opens_a_new_tenant_with_its_first_key_and_no_second() -> None:
    clock, made = asyncio.get_running_loop().time, []

    def admit(journal: MemoryJournal) -> tuple[Authenticator, ApiKeyCache]:
        ring = ApiKeyCache(SqlApiKeys(journal.database), now_ms=wall_ms, clock=clock)
        made.append(ring)
        return Authenticator({}, clock=clock, now_ms=wall_ms, ring=ring), ring

    async with assembled(admit=admit) as assembly, httpx.AsyncClient(base_url=assembly.server.url, timeout=60) as http:
        await made[0].refresh()
        _, operator = await made[0].create(ApiKeyRequest(tenant="host", role="operator"))
        body = {"tenant": "new", "role": "service"}
        first = await http.post("/v1/keys", headers=bearer(operator), json=body)
        second = await http.post("/v1/keys", headers=bearer(operator), json=body)
    assert (first.status_code, second.status_code) == (201, 403)


@pytest.mark.parametrize("state", ["unlisted", "deleted", "purged"])
async def test_a_tenant_whose_conversations_are_not_listed_is_none_without_any(state: str) -> None:
    """A first key opened such a tenant to every operator."""
    made: list[ApiKeyCache] = []

    def admit(journal: MemoryJournal) -> tuple[Authenticator, ApiKeyCache]:
        clock = asyncio.get_running_loop().time
        made.append(ApiKeyCache(SqlApiKeys(journal.database), now_ms=wall_ms, clock=clock))
        return Authenticator({}, clock=clock, now_ms=wall_ms, ring=made[0]), made[0]

    async with assembled(admit=admit) as assembly, httpx.AsyncClient(base_url=assembly.server.url, timeout=60) as http:
        journal, tenant = assembly.gateway.store.journal, "lives"
        changed = patch(listed=False) if state == "unlisted" else patch(deleted_at=NOW)
        await a_log(journal, "s", 2, tenant=tenant, head=changed)
        assert await journal.list_heads(TenantId(tenant), user=None, limit=1, after=None) == []
        if state == "purged":
            due = Due(deleted_before=UnixMs(NOW + 1))
            purged = await journal.purge([key("s", tenant)], due, commands_before=UnixMs(0), at=NOW)
            assert purged == [key("s", tenant)]
        await made[0].refresh()
        _, operator = await made[0].create(ApiKeyRequest(tenant="host", role="operator"))
        answer = await http.post("/v1/keys", headers=bearer(operator), json={"tenant": tenant, "role": "service"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "forbidden")


async def test_break_glass_is_given_by_who_has_it(world: World) -> None:
    body = {"role": "operator", "scopes": list(ALL_SCOPES)}
    refused = await world.http.post(
        "/v1/keys", headers=bearer(world.credentials["operator of another tenant"]), json=body
    )
    assert refused.status_code == 403
    given = await world.http.post("/v1/keys", headers=bearer(world.credentials["emergency operator"]), json=body)
    assert given.status_code == 201
    for role in ("service", "user"):
        wrong = await world.http.post(
            "/v1/keys",
            headers=bearer(world.credentials["emergency operator"]),
            json={"role": role, "scopes": ["break_glass"]},
        )
        assert wrong.status_code == 400


async def test_operators_do_not_read_what_people_of_another_tenant_wrote_to_reviewers(world: World) -> None:
    path = f"/v1/reviews/{world.victim.review}"
    for who in ("operator of another tenant", "emergency operator"):
        answer = await world.http.get(path, headers=bearer(world.credentials[who]))
        assert answer.status_code == 200
        assert world.canary not in answer.text
        assert answer.json()["note"] is None


# -- names taken beforehand --------------------------------------------------------------------------------------------


def idempotent_session(principal: Principal, route: str, key: str) -> str:
    """Where a request with an Idempotency-Key goes, as anybody can compute it from the documents and the source."""
    digest = hashlib.sha256("\0".join((route, principal.tenant, principal.id, key)).encode()).hexdigest()
    return derived_session_id(principal, CommandId(f"idem_{digest[:40]}"))


async def test_a_request_never_waits_in_the_place_of_one_of_another_caller(world: World) -> None:
    backend = await world.key(tenant="acme", role="service", scopes=SCOPES[:2])
    principal = world.assembly.gateway.access.authenticate(backend)
    ben = bearer(world.credentials["other user"])
    mine = await world.http.post("/v1/conversations", headers=ben, json={})
    mine.raise_for_status()
    names: list[SessionId] = []
    for route in ("chat", "responses", "conversations"):
        name = SessionId(idempotent_session(principal, route, "order-1"))
        place = {PLACE: [mine.json()["id"], "item_x", 1]}
        taken = SessionCreate(id=CommandId(f"take_{route}"), session=name, metadata=place)
        came = await talk(world, [taken], world.credentials["other user"])
        assert "given by the server" in came.said
        names.append(name)
    for name in names:  # nothing is there: the request goes where it would have gone
        state = await world.http.get(f"/v1/sessions/{name}", headers=bearer(backend))
        assert state.status_code == 404
    answer = await world.http.post(
        "/v1/chat/completions",
        headers={**bearer(backend), "idempotency-key": "order-1"},
        json={"model": "simulated", "messages": [{"role": "user", "content": f"{world.canary} order"}]},
    )
    assert answer.status_code == 200
    for where in (mine.json()["id"], names[0]):
        seen = await world.http.get(f"/v1/sessions/{where}/export", headers=ben)
        assert world.canary not in seen.text


def test_a_derived_name_is_made_by_its_command_alone() -> None:
    who = Principal(tenant=TenantId("acme"), key_id="k", user="ben")
    assert derived_session_id(who, CommandId("a")) != derived_session_id(who, CommandId("b"))


# -- keys of a file ----------------------------------------------------------------------------------------------------

KEY = f'[[keys]]\nid = "app"\ntenant = "acme"\nsha256 = "{"0" * 64}"\n'


def test_a_filed_key_of_a_user_without_a_name_is_a_user_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    path.write_text(KEY)
    (principal,) = read_keys(str(path)).values()
    assert (principal.role, principal.user) == ("user", "app")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "no key in this file"),
        (KEY + 'scope = ["read"]\n', "scope"),
        (KEY + 'rôle = "user"\n', "keys"),
        (KEY + 'role = "service"\nuser = "ana"\n', "acts for no one user"),
        (KEY + "scopes = []\n", "at least one"),
        (KEY + 'scopes = ["admin"]\n', "admin"),
        (KEY + 'scopes = ["break_glass"]\n', "break_glass"),
        (KEY.replace("app", ""), "regex"),
        (KEY.replace("app", "app/ana"), "regex"),  # else it would be Ana by the key `app`, whose repeats it got
        (KEY + KEY.replace("000", "111"), "twice"),
        (KEY + '[defaults]\nrole = "operator"\n', "defaults"),
        (KEY.replace('"acme"', '""'), "tenant"),
    ],
)
def test_a_mistake_in_the_keys_file_ends_the_start_instead_of_widening_a_key(
    tmp_path: Path, text: str, why: str
) -> None:
    path = tmp_path / "keys.toml"
    path.write_text(text)
    with pytest.raises(BadSetting, match=why):
        read_keys(str(path))


# -- cached answers ----------------------------------------------------------------------------------------------------


async def test_nearly_the_same_request_finds_no_other_ones_answer() -> None:
    """The bench tries 10⁵ of them."""
    figures = await foreign_hits(3_000, seed=7)
    assert figures["found"] > 500, "or there was nothing to be had"
    assert figures["foreign hits (bar 0)"] == 0


async def test_no_tenant_is_given_what_another_one_was_answered(tmp_path: Path) -> None:
    """Names that look alike, run into each other, or hold what separates fields elsewhere."""
    names = ("acme", "acme ", "Acme", "acme|", "acme\t", "\u0430cme", "a", "cme")
    limits = tmp_path / "limits.toml"
    limits.write_text("[default]\nresult_cache_s = 600\n")
    secrets = {name: f"s3cret-of-tenant-{number}" for number, name in enumerate(names)}
    keys = {
        key_digest(secret): Principal(tenant=TenantId(name), key_id="k", role="service", scopes=SCOPES)
        for name, secret in secrets.items()
    }
    body = {"model": "simulated", "messages": [{"role": "user", "content": "Hello."}], "temperature": 0}
    async with (
        assembled(keys=keys, limits_file=limits) as server,
        httpx.AsyncClient(base_url=server.server.url, timeout=60) as http,
    ):
        stores = server.runtime.metrics.counter("result_cache_stores", "", "outcome").values
        for number, secret in enumerate(secrets.values(), 1):
            answer = await http.post("/v1/chat/completions", json=body, headers=bearer(secret))
            assert (answer.status_code, answer.headers["x-cache"]) == (200, "miss")
            await until(lambda: stores.get(("stored",), 0) >= number)  # noqa: B023 - awaited in the loop
        for secret in secrets.values():
            answer = await http.post("/v1/chat/completions", json=body, headers=bearer(secret))
            assert answer.headers["x-cache"] == "hit"
