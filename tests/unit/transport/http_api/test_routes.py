"""Routes of the HTTP API over a gateway in memory."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx2
import pytest
from fastapi import routing
from fastapi.dependencies.utils import get_dependant

from actors.peer.frames import Measured
from actors.peer.links import LinkDown
from inference.simulated import SimulatedOptions
from inference.tools.mcp.agreements import StoredPins
from sessions.load_history import LoadSample
from sessions.model import commands as cm
from sessions.model.audit import INSTALLATION, public
from sessions.model.commands import SessionUpdate
from sessions.model.errors import BadInput, Unavailable
from sessions.model.events import SessionCreated, SessionInfo
from sessions.model.inspection import Judgement
from sessions.model.types import SCOPES, CallId, Principal, Scope, SessionKey, TenantId, UnixMs
from sessions.service_totals import ServiceTotals
from testbed.engine_client import until
from tests.support.doors.openai_server import Serving, serving
from tests.support.doors.transport import begun, created, delta, gateway_over, http_client, memory_sessions
from tests.support.mcp.opened import ACME as TOOLS_CALLER
from tests.support.mcp.opened import opened_servers, stdio_table
from tests.support.mcp.opened import until as tools_until
from tests.support.stores.encryption import Encryption
from tests.support.stores.file_rows import a_file
from transport.auth.authenticator import Authenticator, key_digest
from transport.files.multipart import FormFile, UploadForm
from transport.gateway import Gateway, GatewayServices
from transport.history_index import Unit
from transport.http_api.routes.chat import merged
from transport.http_api.routes.files import _checked, shown
from transport.http_api.routes.reviews import parse_place
from transport.http_api.routes.texts import OPENAI_CATEGORIES, _result, prompt_messages
from transport.http_api.routes.vector_stores import _said
from transport.ops.operator_api import HeldKV
from transport.ops.operator_requests import SessionPage, SessionQuery


def whole(index: int, cost: str | None) -> dict[str, Any]:
    usage: dict[str, Any] = {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}
    usage |= {"prompt_tokens_details": {"cached_tokens": 1}, "completion_tokens_details": {"reasoning_tokens": 0}}
    if cost is not None:
        usage["cost"] = {"amount": cost, "currency": "USD", "price_version": "v"}
    return {"id": f"cmpl-{index}", "choices": [{"index": index}], "usage": usage}


def test_choices_stand_one_behind_the_other_and_usage_is_summed() -> None:
    one = merged([whole(0, "0.5"), whole(1, "0.25")])
    assert one["id"] == "cmpl-0" and [each["index"] for each in one["choices"]] == [0, 1]
    assert one["usage"]["total_tokens"] == 6 and one["usage"]["prompt_tokens_details"] == {"cached_tokens": 2}
    assert one["usage"]["cost"]["amount"] == "0.75"
    assert "cost" not in merged([whole(0, None), whole(1, None)])["usage"]


ACME = TenantId("acme")
KEYS = {
    key_digest("operator"): Principal(tenant=ACME, key_id="k1", role="operator", scopes=("admin",)),
    key_digest("reader"): Principal(tenant=ACME, key_id="k2", role="operator", scopes=("read",)),
    key_digest("service"): Principal(tenant=ACME, key_id="k3", role="service", scopes=("chat", "admin")),
    key_digest("user"): Principal(tenant=ACME, key_id="k4", user="ann"),
}


ROLES = {
    key_digest(role): Principal(tenant=ACME, key_id=role, role=role, scopes=SCOPES) for role in ("service", "operator")
}


async def gateway_for_roles(**services: Any) -> Gateway:
    access = Authenticator(ROLES, clock=lambda: 0.0, now_ms=lambda: UnixMs(1))
    return gateway_over(await memory_sessions(), access, services=GatewayServices(**services))


async def gateway_with_keys() -> Gateway:
    access = Authenticator(KEYS, clock=lambda: 0.0, now_ms=lambda: UnixMs(1))
    return gateway_over(await memory_sessions(), access)


@pytest.mark.parametrize(
    ("key", "user", "role", "scopes", "operator"),
    [
        ("operator", None, "operator", ["admin"], True),
        ("reader", None, "operator", ["read"], False),
        ("service", None, "service", ["chat", "admin"], False),
        ("user", "ann", "user", None, False),
    ],
)
async def test_me_names_the_tenant_user_and_role_of_the_key(
    key: str, user: str | None, role: str, scopes: list[Scope] | None, operator: bool
) -> None:
    async with http_client(await gateway_with_keys(), authorization=f"Bearer {key}") as client:
        shown = (await client.get("/v1/me")).json()
    assert (shown["object"], shown["tenant"], shown["user"]) == ("principal", "acme", user)
    assert (shown["role"], shown["operator"]) == (role, operator)
    assert scopes is None or shown["scopes"] == scopes


async def test_no_request_waits_until_the_routes_are_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first request that came past all of them held the loop for a tenth of a second."""
    (tmp_path / "index.html").write_text("<p>")
    built, build = list[str](), get_dependant

    def noted(*, path: str, **more: Any) -> Any:
        built.append(path)
        return build(path=path, **more)

    monkeypatch.setattr(routing, "get_dependant", noted)
    async with http_client(gateway_over(await memory_sessions()), web=tmp_path) as http:
        assert built
        built.clear()
        for path in ("/nothing", "/v1/nothing", "/index.html"):
            await http.get(path)
        assert not built


async def test_who_could_not_upgrade_learns_that_the_server_is_there_and_whether_it_lets_anybody_in() -> None:
    gateway = await gateway_with_keys()
    async with http_client(gateway) as client:
        answer = await client.get("/v1/ws", headers={"x-request-id": "sdk-42"})
        assert (answer.status_code, answer.headers["upgrade"]) == (426, "websocket")
        assert answer.headers["x-request-id"] == "sdk-42"
        assert answer.json()["error"]["code"] == "upgrade_required"
        gateway.draining = True
        answer = await client.get("/v1/ws")
        assert (answer.status_code, answer.headers["retry-after-ms"]) == (503, "1000")
        assert answer.json()["error"]["code"] == "draining"


async def test_a_server_without_keys_says_so() -> None:
    async with http_client(gateway_over(await memory_sessions())) as client:
        assert (await client.get("/v1/keys")).json()["error"]["code"] == "journal_unavailable"


PLACE = "/v1/operator/encryption"


async def test_operators_see_and_change_keys_and_it_is_audited() -> None:
    encryption = Encryption()
    gateway = await gateway_for_roles(encryption=encryption)
    async with http_client(gateway, authorization="Bearer service") as client:
        assert (await client.get(PLACE)).status_code == 403
        assert (await client.post(PLACE, json={"action": "destroy", "tenant": "acme"})).status_code == 403
    async with http_client(gateway, authorization="Bearer operator") as client:
        shown = (await client.get(PLACE)).json()
        assert shown["encrypts"] and shown["tenants"][0]["changed_rows"] == 7
        assert (await client.post(PLACE, json={"action": "rotate"})).json()["changed"] == 3
        assert (await client.post(PLACE, json={"action": "destroy", "tenant": "acme"})).status_code == 200
        for wrong in ({}, {"action": "burn"}, {"action": "rotate", "tenant": ""}):
            assert (await client.post(PLACE, json=wrong)).status_code == 400
    assert encryption.calls == [("rotate", None), ("destroy", "acme")]
    rows = [public(row) for row in await gateway.store.audit.rows(INSTALLATION, after=0, limit=10)]
    details = [row["detail"] for row in rows if row["action"] == "encryption.changed"]
    assert details == [{"action": "rotate", "tenant": None}, {"action": "destroy", "tenant": "acme"}]


async def test_a_plain_journal_says_so() -> None:
    async with http_client(await gateway_for_roles(encryption=None), authorization="Bearer operator") as client:
        answer = await client.get(PLACE)
        assert answer.status_code == 400 and "not encrypted" in answer.json()["error"]["message"]


def a_form(**fields: str) -> UploadForm:
    form = UploadForm("multipart/form-data; boundary=x")
    form.file = FormFile("a.txt", "text/plain")
    form.fields.update({name.replace("__", "[") + ("]" if "__" in name else ""): text for name, text in fields.items()})
    return form


def test_what_a_form_says() -> None:
    assert _checked(a_form(purpose="user_data")) == ("user_data", None)
    given = {"expires_after__anchor": "created_at", "expires_after__seconds": "3600"}
    assert _checked(a_form(purpose="batch", **given)) == ("batch", 3600)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"purpose": "x"},
        {"purpose": "batch", "more": "x"},
        {"purpose": "batch", "expires_after__seconds": "3600"},
        {"purpose": "batch", "expires_after__anchor": "now", "expires_after__seconds": "3600"},
        *(
            {"purpose": "batch", "expires_after__anchor": "created_at", "expires_after__seconds": seconds}
            for seconds in ("3599", "2592001", "-1", "1e4", "", "9" * 400, "٣٦٠٠")
        ),
    ],
)
def test_what_it_may_not_say(fields: dict[str, str]) -> None:
    with pytest.raises(BadInput):
        _checked(a_form(**fields))


def test_times_are_in_seconds() -> None:
    made = shown(a_file(b"abc", blob="b", at=5_999, expires_at=9_000))
    assert (made.bytes, made.created_at, made.expires_at) == (3, 5, 9)


class Replicas:
    def __init__(self, held: HeldKV) -> None:
        self.held = held

    async def kv_of(self, tenant: TenantId) -> HeldKV:
        return self.held


@pytest.mark.parametrize(
    ("held", "total", "complete"),
    [
        (HeldKV({"r1": 5, "r2": 7}, {}), 12, True),
        (HeldKV({"r1": 5, "r2": None}, {}), 5, False),
        (HeldKV({"r1": None}, {}), None, False),
        (HeldKV({"r1": 5}, {"r2": "no answer"}), 5, False),
    ],
)
async def test_the_sum_is_complete_where_every_replica_counts(held: HeldKV, total: int | None, complete: bool) -> None:
    gateway = await gateway_for_roles(operator_api=Replicas(held))
    async with http_client(gateway, authorization="Bearer service") as client:
        kv = (await client.get("/v1/limits")).json()["kv"]
        assert (kv["held_bytes"], kv["complete"], kv["silent"]) == (total, complete, held.silent)


async def test_another_tenants_are_for_operators_and_a_process_without_replicas_says_so() -> None:
    gateway = await gateway_for_roles(operator_api=Replicas(HeldKV({}, {})))
    async with http_client(gateway, authorization="Bearer service") as client:
        assert (await client.get("/v1/limits?tenant=beta")).status_code == 403
    async with http_client(gateway, authorization="Bearer operator") as client:
        assert (await client.get("/v1/limits?tenant=beta")).json()["limits"] is None
    async with http_client(await gateway_for_roles(operator_api=None), authorization="Bearer service") as client:
        assert (await client.get("/v1/limits")).json()["error"]["code"] == "engine_unavailable"


class OperatorReplicas:
    """An operator API that notes what it was called with."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    async def replicas(self) -> list[dict[str, Any]]:
        return [{"replica": "r1"}]

    async def sessions(self, query: SessionQuery) -> SessionPage:
        self.calls.append(query)
        return SessionPage([], 0, False, {"r2": "no answer"})

    async def measure(self, replica: str = "", *, after: int = 0, step_s: int = 0) -> dict[str, Measured | LinkDown]:
        self.calls.append((replica, after, step_s))
        sample = LoadSample(after + 600, 10.0, (0, 2), 40.0, 20.0, 1.0, 0.0, 0.0, 2, 1, 4, 3, {"host": 5.0})
        totals = ServiceTotals(met=3, missed=1, ended={"stop": 4.0})
        return {"r1": Measured(0, 3, totals, (sample,) if step_s else ()), "r2": LinkDown("keepalive", "no answer")}

    async def drain(self, replica: str) -> None:
        self.calls.append(replica)

    async def undrain(self, replica: str) -> None:
        self.calls.append(replica)

    async def hand_off(self, replica: str, key: SessionKey, to: str) -> str:
        self.calls.append((replica, key, to))
        return "r2"


@pytest.fixture
def replicas() -> OperatorReplicas:
    return OperatorReplicas()


@pytest.fixture
async def gateway(replicas: OperatorReplicas) -> Gateway:
    return await gateway_for_roles(operator_api=replicas)


async def test_only_operators_see_it(gateway: Gateway) -> None:
    async with http_client(gateway, authorization="Bearer service") as client:
        assert (await client.get("/v1/operator/overview")).status_code == 403
    async with http_client(gateway, authorization="Bearer operator") as client:
        overview = (await client.get("/v1/operator/overview")).json()
        assert overview["version"] == "1"
        assert overview["health"]["in_target"] == 0.75 and overview["health"]["answers"] == 4
        assert overview["replicas"] == [{"replica": "r1", "sessions": 3}]
        assert overview["silent"] == {"r2": "keepalive: no answer"}


async def test_series_are_of_the_time_and_the_replica_that_were_requested(
    gateway: Gateway, replicas: OperatorReplicas
) -> None:
    async with http_client(gateway, authorization="Bearer operator") as client:
        series = (await client.get("/v1/operator/series?range_s=600&replica=r1")).json()
        assert (series["step_s"], len(series["at"])) == (10, 60)
        assert replicas.calls == [("r1", series["at"][0] - 10, 10)] == [("r1", series["at"][-1] - 600, 10)]
        assert series["tokens_per_s"]["decoded"][-2:] == [None, 2.0]
        assert series["silent"] == {"r2": "keepalive: no answer"}
        assert (await client.get("/v1/operator/series?range_s=86400")).status_code == 400
    async with http_client(gateway, authorization="Bearer service") as client:
        assert (await client.get("/v1/operator/series")).status_code == 403


async def test_actions_are_audited(gateway: Gateway, replicas: OperatorReplicas) -> None:
    async with http_client(gateway, authorization="Bearer operator") as client:
        assert (await client.post("/v1/operator/replicas/r1/drain")).status_code == 202
        assert (await client.post("/v1/operator/replicas/r1/undrain")).status_code == 200
        moved = await client.post("/v1/operator/sessions/acme/s/handoff", json={"replica": "r1"})
        assert moved.json()["replica"] == "r2"
    rows = [await gateway.store.audit.rows(tenant, after=0, limit=9) for tenant in (INSTALLATION, ACME)]
    actions = [public(row)["action"] for each in rows for row in each]
    assert actions == ["replica.drain_asked", "replica.undrain_asked", "session.hand_off_asked"]
    assert len(replicas.calls) == 3


def test_places_are_read_as_they_are_written() -> None:
    assert parse_place("12.rev_a") == (12, "rev_a")
    for wrong in ("", "12", ".a", "x.a", "٣.a", "1" * 17 + ".a"):
        with pytest.raises(BadInput):
            parse_place(wrong)


async def test_a_bare_number_is_of_the_log_as_it_is_and_must_exist() -> None:
    sessions = await memory_sessions()
    gateway = gateway_over(sessions)
    async with http_client(gateway) as client:
        assert (await client.get("/v1/sessions/nothing/events?after=3")).status_code == 404
        gateway.draining = True
        assert (await client.get("/v1/sessions/s/events")).status_code == 503
    assert len(gateway.feeds) == 0


async def test_a_search_shows_where_it_found_something() -> None:
    sessions = await memory_sessions()
    await sessions.append("s", created(), *begun(), delta("a needle in hay", 3))
    await sessions.append("t", created())
    async with http_client(gateway_over(sessions)) as client:
        page = (await client.get("/v1/sessions/search?q=Hay%20needle")).json()
        assert (await client.get("/v1/sessions/search?q=")).status_code == 400
        assert (await client.get("/v1/sessions/search?q=x&after=nothing")).status_code == 404
    assert page == {"object": "list", "data": [], "has_more": False, "last_id": page["last_id"]}  # it is being written
    await sessions.append(
        "u", SessionCreated(info=SessionInfo(model="m", title="Needles in hay", created_at=UnixMs(1)))
    )
    async with http_client(gateway_over(sessions)) as client:
        (row,) = (await client.get("/v1/sessions/search?q=needle")).json()["data"]
    assert (row["object"], row["id"]) == ("session.match", "u")
    assert row["matches"] == [{"item_id": None, "role": None, "snippet": "Needles in hay", "start": 0, "end": 6}]


# -- where WebSocket is blocked --------------------------------------------------------------------------------------


async def test_a_long_poll_gives_what_lies_ready_then_what_comes_first_then_nothing() -> None:
    sessions = await memory_sessions()
    await sessions.append("s", created(), *begun(), delta("a ", 2), delta("b ", 3))
    gateway = gateway_over(sessions)
    path = "/v1/sessions/s/events?epoch=ep_s&wait_ms"
    async with http_client(gateway) as client:
        ready = await client.get(f"{path}=0&after=4")
        assert ready.headers["cache-control"] == "no-store"
        event, caught_up = ready.json()
        assert (event["first_offset"], event["offset"], event["event"]["delta"]) == (5, 6, "a b ")
        assert caught_up == {"type": "caught_up", "session": "s", "offset": 6}
        assert (await client.get(f"{path}=0&after=6")).json() == []
        waiting = asyncio.create_task(client.get(f"{path}=20000&after=6"))
        async with asyncio.timeout(60):
            await until(lambda: len(gateway.feeds) > 0)
        await sessions.append("s", delta("c ", 4))
        assert [each["offset"] for each in (await waiting).json()] == [7, 7]
        (snapshot, _) = (await client.get("/v1/sessions/s/events?wait_ms=0")).json()
        assert (snapshot["type"], snapshot["mode"], snapshot["at"]) == ("resumed", "snapshot", 7)
        (reset, _) = (await client.get("/v1/sessions/s/events?wait_ms=0&after=3&epoch=other")).json()
        assert (reset["mode"], reset["reason"]) == ("reset", "epoch_changed")
        assert (await client.get(f"{path}=25001&after=6")).status_code == 400
        assert (await client.get("/v1/sessions/nothing/events?wait_ms=0&after=0")).status_code == 404
    assert len(gateway.feeds) == 0


async def test_commands_go_by_post_under_their_own_ids() -> None:
    sessions = await memory_sessions()
    await sessions.append("s", created())
    async with http_client(gateway_over(sessions)) as client:
        frame = {"type": "session.update", "id": "01K8000000000000000000000A", "session": "s", "title": "new"}
        assert (await client.post("/v1/commands", json=frame)).status_code == 200
        (command,) = sessions.executed
        assert isinstance(command, SessionUpdate) and (command.id, command.title) == (frame["id"], "new")
        asked = {"type": "session.get", "id": "01K8000000000000000000000B", "session": "s"}
        shown = (await client.post("/v1/commands", json=asked)).json()
        assert (shown["type"], shown["id"], shown["offset"]) == ("ok", asked["id"], 1)
        listed = (await client.post("/v1/commands", json={"type": "session.list", "id": "c"})).json()
        assert [each["id"] for each in listed["data"]] == ["s"]


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"[]", "bad_frame"),
        (b'[{"type":"ping"},{"type":"ping"}]', "bad_frame"),
        (b"{", "bad_frame"),
        (b'{"type":"ping"}', "unknown_type"),
        (b'{"type":"subscribe","id":"c","session":"s"}', "unknown_type"),
        (b'{"type":"no.such","id":"c"}', "unknown_type"),
        (b'{"type":"session.get","id":"c"}', "invalid_request"),
    ],
)
async def test_what_is_no_command_is_refused_at_that_door(body: bytes, code: str) -> None:
    sessions = await memory_sessions()
    async with http_client(gateway_over(sessions)) as client:
        refused = await client.post("/v1/commands", content=body, headers={"content-type": "application/json"})
    assert refused.status_code == 400 and refused.json()["error"]["code"] == code
    assert not sessions.executed


def test_all_of_openais_categories_are_named_and_ours_beside_them() -> None:
    shown = _result(Judgement({"toxicity": 0.9, "pii/email": 1.0}))
    assert shown["flagged"] and set(OPENAI_CATEGORIES) < shown["categories"].keys()
    assert [name for name, found in shown["categories"].items() if found] == ["harassment", "toxicity", "pii/email"]
    assert shown["category_scores"]["harassment"] == 0.9 and shown["category_scores"]["violence"] == 0.0
    none = _result(Judgement({}))
    assert not none["flagged"] and not any(none["categories"].values())


def test_an_answer_with_its_calls_is_one_message_and_outputs_know_their_function() -> None:
    call = cm.NewCall(call_id=CallId("c"), name="look", arguments="{}")
    units = [
        Unit((cm.NewMessage(content="hi"),)),
        Unit((cm.NewMessage(role="assistant", content="let me"), call), answer=True),
        Unit((cm.NewOutput(call_id=CallId("c"), output="18"),)),
        Unit((call,), answer=True),
    ]
    shown = [(each.role, each.text, each.name, len(each.calls)) for each in prompt_messages(units, images=False)]
    assert shown == [
        ("user", "hi", None, 0),
        ("assistant", "let me", None, 1),
        ("tool", "18", "look", 0),
        ("assistant", "", None, 1),
    ]


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
            assert tools.find(TOOLS_CALLER, "town__look") is not None
        (tmp_path / "pull").touch()
        async with opened_servers(tmp_path, table, pins=pins) as tools:
            assert tools.find(TOOLS_CALLER, "town__look") is None, "it was pinned over the restart"
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
            await tools_until(lambda: tools.find(TOOLS_CALLER, "town__look") is not None)
            assert tools.find(TOOLS_CALLER, "town__more") is None
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


async def test_an_export_that_breaks_ends_with_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    async def away(*_: object, **__: object) -> None:
        raise Unavailable("journal_away", "Away.")

    gateway = await gateway_for_roles()
    monkeypatch.setattr(gateway.store.usage, "entries", away)
    async with http_client(gateway, authorization="Bearer service") as client:
        *_, last = (await client.get("/v1/users/ana/export")).text.splitlines()
    assert json.loads(last)["error"]["code"] == "journal_unavailable"


def test_names_and_values_are_judged() -> None:
    assert _said("n", {"a": "b", "c": True}) == ["n", "a b", "c True"] and _said(None, None) == [""]
