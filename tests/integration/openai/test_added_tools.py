"""Tools that a tenant's administrators add over the API: read as those of the file, called by turns, never revealed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import httpx2
import msgspec
import openai
import pytest
from structlog.testing import capture_logs

from inference.simulated import SimulatedOptions
from inference.tools import added_tools
from inference.tools.added_tools import AddedToolRules
from inference.tools.mcp.server_table import McpServerTable
from inference.tools.opening import open_added_tool_check
from inference.tools.tool_set import ToolSet
from inference.tools.tools_file import HttpTool
from persistence.memory.database import MemoryDatabase
from persistence.memory.store import MemoryStore
from persistence.sql.added_tools import SqlAddedTools
from sessions.added_tools import ADDED_MAX, HIDDEN, AddedTool, AddedTools, tools_conflict
from sessions.model.audit import Audited, public
from sessions.model.types import Principal, TenantId, UnixMs
from sessions.tool_records import ToolRecord
from tests.support.doors.openai_server import SIMULATED, Serving, serving
from tests.support.doors.tool_service import LOOPBACK, ToolService, opened_tools, reply
from tests.support.mcp.http_server import HttpMcp
from tests.support.mcp.opened import until
from tests.support.stores.journals import overwrite_added_tools
from transport.auth.authenticator import key_digest
from transport.http_api.routes import added_tools as routes

LOCAL = TenantId("local")
SECRET = "s3cr3t-of-the-weather"
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


def call_of(name: str, **arguments: str) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def named(name: str) -> Any:
    return {"type": "function", "name": name, "server": True}


class World(NamedTuple):
    """A server with a tools file, and an administrator's client."""

    server: Serving
    tools: ToolSet
    http: httpx2.AsyncClient
    file: Path
    database: MemoryDatabase
    rules: AddedToolRules

    async def ask(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        answer = await self.http.request(method, path, json=body, headers=headers)
        return answer.status_code, answer.json()

    async def added(self) -> tuple[AddedTool, ...]:
        """The tools of the tenant, as they are stored."""
        return (await SqlAddedTools(self.database).tools_of(LOCAL)).tools

    async def put(self, name: str, **table: Any) -> None:
        """Adds an HTTP tool, and waits until turns can call it as it is now."""
        status, said = await self.ask("PUT", f"/v1/tools/{name}", table)
        assert status in (200, 201), said
        await until(lambda: getattr(self.tools._file.find(LOCAL, name), "url", "") == table["url"])


@asynccontextmanager
async def a_world(folder: Path, text: str = LOOPBACK, **more: Any) -> AsyncIterator[World]:
    database, file = MemoryDatabase(), folder / "tools.toml"
    async with (
        opened_tools(file, text, MemoryStore(database)) as tools,
        open_added_tool_check(SimpleNamespace(tools=str(file))) as check,
        serving(SimulatedOptions(step_base_s=0.001), tools=tools, store=database, added_tools=check, **more) as server,
        httpx2.AsyncClient(base_url=server.server.url, trust_env=False, timeout=60) as http,
    ):
        assert isinstance(check, AddedToolRules)
        yield World(server, tools, http, file, database, check)


@pytest.fixture
async def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    monkeypatch.setattr(added_tools, "LOOK_S", 0.02)
    async with a_world(tmp_path) as made:
        yield made


@pytest.fixture
async def client(world: World) -> AsyncIterator[openai.AsyncOpenAI]:
    async with world.server.client() as made:
        yield made


async def test_an_added_tool_is_called_and_its_header_is_seen_by_the_service_alone(
    world: World, client: openai.AsyncOpenAI, service: ToolService
) -> None:
    service.answer = lambda asked: reply({"you sent": asked.headers["authorization"], "or": SECRET})
    headers = {"authorization": f"Bearer {SECRET}"}
    with capture_logs() as logs:
        await world.put("weather", url=f"{service.url}/now", parameters=PARAMETERS, headers=headers)
        world.server.engine.script += [call_of("weather", city="Rome"), "It is 18 degrees."]
        done = await client.responses.create(model=SIMULATED, input="how is it", tools=[named("weather")])
    (asked,) = service.asked
    assert asked.headers["authorization"] == f"Bearer {SECRET}" and json.loads(asked.body) == {"city": "Rome"}
    assert done.output_text == "It is 18 degrees." and "[removed]" in done.model_dump_json()
    status, shown = await world.ask("GET", "/v1/tools/weather")
    assert status == 200 and shown["settings"]["headers"] == {"authorization": HIDDEN}
    assert shown["settings"]["parameters"] == PARAMETERS and shown["settings"]["offer"] is False
    status, listed = await world.ask("GET", "/v1/tools")
    assert status == 200 and listed["data"] == [shown]
    (session,) = world.server.sessions
    rows = await world.server.gateway.store.audit.rows(LOCAL, after=0, limit=100)
    said = [done.model_dump_json(), shown, listed, logs, world.server.log(session), rows]
    prompts = [bytes(token for token in prompt if token < 256) for prompt in world.server.engine.prompts]
    assert SECRET not in repr(said) and not any(SECRET.encode() in prompt for prompt in prompts)
    (row,) = [public(row) for row in rows if public(row)["action"] == "tool.stored"]
    assert row["detail"] == {"kind": "tool", "name": "weather"}


async def test_parts_of_a_header_are_removed_and_harmless_values_stay(
    world: World, client: openai.AsyncOpenAI, service: ToolService
) -> None:
    service.answer = lambda asked: reply({"sent": asked.headers["authorization"], "ok": True, "as": "application/json"})
    headers = {"authorization": f'Token token="{SECRET}"', "x-verbose": "true", "accept": "application/json"}
    await world.put("weather", url=f"{service.url}/now", parameters=PARAMETERS, headers=headers)
    world.server.engine.script += [call_of("weather", city="Rome"), "It is warm."]
    done = await client.responses.create(model=SIMULATED, input="how is it", tools=[named("weather")])
    (output,) = [str(each.output) for each in done.output if each.type == "function_call_output"]
    assert json.loads(output) == {"sent": "[removed]", "ok": True, "as": "application/json"}


async def test_a_change_lets_running_calls_go_on_and_a_deleted_tool_is_not_found(
    world: World, client: openai.AsyncOpenAI, service: ToolService
) -> None:
    await world.put("weather", url=f"{service.url}/first", parameters=PARAMETERS)
    service.hold = asyncio.Event()
    calls = [call_of("weather", city=city) for city in ("Rome", "Oslo", "Bern")]
    world.server.engine.script += [*calls, "Warm."]
    running = asyncio.create_task(client.responses.create(model=SIMULATED, input="how is it", tools=[named("weather")]))
    await service.wait_for(1)
    await world.put("weather", url=f"{service.url}/second", parameters=PARAMETERS)
    service.hold.set()
    service.hold = asyncio.Event()
    await service.wait_for(2)
    assert [each.target for each in service.asked] == ["/first", "/second"]
    assert await world.ask("DELETE", "/v1/tools/weather") == (
        200,
        {"object": "tool.deleted", "name": "weather", "deleted": True},
    )
    await until(lambda: world.tools.find(LOCAL, "weather") is None)
    service.hold.set()
    done = await running
    outputs = [each.output for each in done.output if each.type == "function_call_output"]
    assert [str(each)[:14] for each in outputs] == ['{"degrees": 18', '{"degrees": 18', "tool_not_found"]
    assert len(service.asked) == 2 and done.output_text == "Warm."
    with pytest.raises(openai.NotFoundError, match="no tool"):
        await client.responses.create(model=SIMULATED, input="x", tools=[named("weather")])
    assert (await world.ask("GET", "/v1/tools/weather"))[0] == 404
    assert (await world.ask("DELETE", "/v1/tools/weather"))[0] == 404
    rows = [public(row) for row in await world.server.gateway.store.audit.rows(LOCAL, after=0, limit=100)]
    stored = [row["action"] for row in rows if row["action"].startswith("tool.") and row["action"] != "tool.called"]
    assert stored == ["tool.stored", "tool.stored", "tool.deleted"]


async def test_an_offered_tool_is_in_every_session_and_at_every_replica(
    world: World, client: openai.AsyncOpenAI, service: ToolService, tmp_path: Path
) -> None:
    await world.put("weather", url=f"{service.url}/now", parameters=PARAMETERS, offer=True)
    world.server.engine.script += [call_of("weather", city="Rome"), "It is 18 degrees."]
    done = await client.responses.create(model=SIMULATED, input="how is it")
    assert done.output_text == "It is 18 degrees." and len(service.asked) == 1
    async with opened_tools(tmp_path / "other.toml", LOOPBACK, MemoryStore(world.database)) as replica:
        assert list(replica.offered(LOCAL)) == ["weather"], "it was there before the replica began"
        assert replica.find(TenantId("acme"), "weather") is None
        assert (await world.ask("DELETE", "/v1/tools/weather"))[0] == 200
        await until(lambda: not replica.offered(LOCAL) and not world.tools.offered(LOCAL))


async def test_the_file_has_precedence(world: World, service: ToolService) -> None:
    await world.put("weather", url=f"{service.url}/added", offer=True)
    text = f'{LOOPBACK}[tools.weather]\nurl = "{service.url}/filed"\n'

    def url() -> str:
        return getattr(world.tools._file.find(LOCAL, "weather"), "url", "")

    with capture_logs() as logs:
        world.file.write_text(text + '[servers.town]\nurl = "https://town.example/mcp"\n')
        await until(lambda: url() == f"{service.url}/filed" and "weather" in world.rules.file.tools)
        assert list(world.tools.offered(LOCAL)) == []
        await world.put("other", url=f"{service.url}/other")
    left_out = [each for each in logs if each["event"] == "added_tool_left_out"]
    assert [(each["tool"], each["reason"]) for each in left_out] == [("weather", "the file has this name")]
    seen = (await world.ask("GET", "/v1/tools/weather"))[1], (await world.ask("GET", "/v1/tools/other"))[1]
    assert [each["left_out"] for each in seen] == ["the file has this name", None]
    taken = [("tools/weather", "weather"), ("tools/town__look", "town__look"), ("tool_servers/town", "town")]
    taken += [("tools/town", "town"), ("tool_servers/weather", "weather")]
    await until(lambda: "town" in world.rules.file.servers)
    for path, name in taken:
        status, said = await world.ask("PUT", f"/v1/{path}", {"url": "https://x.example/"})
        assert status == 409 and said["error"]["code"] == "tool_exists" and name in said["error"]["message"]
        assert said["error"]["param"] == ("server" if path.startswith("tool_servers") else "name")
    assert [each.name for each in await world.added()] == ["other", "weather"]


async def test_an_added_mcp_server_is_called_over_http(world: World, client: openai.AsyncOpenAI) -> None:
    async with HttpMcp(token=SECRET).running() as town:
        headers = {"authorization": f"Bearer {SECRET}"}
        status, shown = await world.ask(
            "PUT", "/v1/tool_servers/town", {"url": town.url, "headers": headers, "offer": True}
        )
        assert status == 201 and shown["settings"]["headers"] == {"authorization": HIDDEN}
        await until(lambda: "town__weather" in world.tools.offered(LOCAL))
        world.server.engine.script += [call_of("town__weather", city="Rome"), "Warm."]
        done = await client.responses.create(model=SIMULATED, input="how is it")
        assert town.asked == ["Rome"] and "18 degrees in Rome" in done.model_dump_json()
        status, listed = await world.ask("GET", "/v1/tools")
        assert [each["object"] for each in listed["data"]] == ["tool_server", "tool_server.settings"]
        assert listed["data"][1] == shown and SECRET not in repr(listed)
        assert (await world.ask("DELETE", "/v1/tool_servers/town"))[0] == 200
        await until(lambda: not world.tools.offered(LOCAL))
        assert (await world.ask("GET", "/v1/tools"))[1]["data"] == []
        assert await world.server.gateway.store.tool_records.records("pin", LOCAL) == []


async def test_a_changed_mcp_server_lets_its_calls_end(world: World, client: openai.AsyncOpenAI) -> None:
    begun, release = asyncio.Event(), asyncio.Event()
    town = HttpMcp()

    @town.server.tool(description="Waits.")
    async def wait() -> str:
        begun.set()
        await release.wait()
        return "waited for it"

    async with town.running():
        await world.ask("PUT", "/v1/tool_servers/town", {"url": town.url})
        await until(lambda: world.tools.find(LOCAL, "town__wait") is not None)
        world.server.engine.script += [call_of("town__wait"), call_of("town__wait"), "Done."]
        running = asyncio.create_task(
            client.responses.create(model=SIMULATED, input="wait", tools=[named("town__wait")])
        )
        async with asyncio.timeout(60):
            await begun.wait()
        await world.ask("DELETE", "/v1/tool_servers/town")
        await until(lambda: world.tools.find(LOCAL, "town__wait") is None)
        release.set()
        done = await running
        outputs = [str(each.output) for each in done.output if each.type == "function_call_output"]
        assert "waited for it" in outputs[0] and outputs[1].startswith("tool_not_found")
        await until(lambda: not world.tools.servers._ending)


async def test_a_listing_that_ends_after_the_deletion_leaves_no_records(world: World) -> None:
    listing, release = asyncio.Event(), asyncio.Event()
    town, records = HttpMcp(), world.server.gateway.store.tool_records
    put, stored = records.put, list[str]()

    async def late(record: ToolRecord, audit: Audited | None = None) -> None:
        listing.set()
        try:
            await release.wait()
        finally:  # it is stored even if its caller is cancelled
            await put(record, audit)
            stored.append(record.kind)

    async with town.running():
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(type(records), "put", lambda _, record, audit=None: late(record, audit))
            assert (await world.ask("PUT", "/v1/tool_servers/town", {"url": town.url}))[0] == 201
            async with asyncio.timeout(60):
                await listing.wait()
            assert (await world.ask("DELETE", "/v1/tool_servers/town"))[0] == 200
            release.set()
            await until(lambda: bool(stored) and not world.tools.servers._running)
            await until(lambda: not world.tools.servers._ending)
    assert [await records.records(kind) for kind in ("pin", "listing")] == [[], []]


async def test_records_without_a_server_can_be_deleted(world: World) -> None:
    records = world.server.gateway.store.tool_records
    await records.put(ToolRecord(tenant=LOCAL, kind="pin", name="town", body='{"digests": {}}', at=UnixMs(1)))
    assert [(await world.ask("DELETE", "/v1/tool_servers/town"))[0] for _ in range(2)] == [200, 404]
    assert await records.records("pin") == []
    rows = [public(row) for row in await world.server.gateway.store.audit.rows(LOCAL, after=0, limit=10)]
    assert [row["detail"] for row in rows if row["action"] == "tool.deleted"] == [{"kind": "server", "name": "town"}]


async def test_agreements_about_the_files_own_server_stay(world: World) -> None:
    records = world.server.gateway.store.tool_records
    await records.put(ToolRecord(tenant=LOCAL, kind="pin", name="town", body='{"digests": {}}', at=UnixMs(1)))
    world.file.write_text(f'{LOOPBACK}[tenants.local.servers.town]\nurl = "https://town.example/mcp"\n')
    await until(lambda: world.rules.has_server(LOCAL, "town"))
    assert (await world.ask("DELETE", "/v1/tool_servers/town"))[0] == 404
    assert len(await records.records("pin")) == 1


THERE = {"url": "https://x.example/"}
UNFIT: list[tuple[str, dict[str, Any], str]] = [
    ("tools/weather", {}, "url"),
    ("tools/weather", {"url": "http://93.184.216.34/"}, "url"),
    ("tools/weather", {"url": "https://10.0.0.1/"}, "url"),
    ("tools/weather", {"url": "https://169.254.169.254/latest"}, "url"),
    ("tools/weather", {**THERE, "timeout_s": 301}, "timeout_s"),
    ("tools/weather", {**THERE, "colour": "red"}, "colour"),
    ("tools/weather", {**THERE, "networks": ["10.0.0.0/8"]}, "networks"),
    ("tools/weather", {**THERE, "kind": "code"}, "kind"),
    ("tools/weather", {**THERE, "offer": "yes"}, "offer"),
    ("tools/weather", {**THERE, "parameters": {"type": "array"}}, "parameters"),
    ("tools/weather", {**THERE, "parameters": {"type": "no"}}, "parameters"),
    ("tools/weather", {**THERE, "headers": {"host": "y"}}, "headers.host"),
    ("tools/weather", {**THERE, "headers": {"a": {"env": "HOME"}}}, "headers.a"),
    ("tools/weather", {**THERE, "headers": {"a": {"file": "/etc/passwd"}}}, "headers.a"),
    ("tools/weather", {**THERE, "headers": {"a": HIDDEN}}, "headers.a"),
    ("tools/9weather", THERE, "name"),
    ("tools/code_interpreter", THERE, "name"),
    ("tools/file_search", THERE, "name"),
    ("tool_servers/town", {}, "url"),
    ("tools/weather", {**THERE, "headers": {"a": "x", "A": "y"}}, "headers"),
    ("tools/weather", {**THERE, "headers": {"a": 5}}, "headers.a"),
    ("tools/weather", {**THERE, "headers": {f"a{n}": "x" for n in range(33)}}, "headers"),
    ("tools/weather?tenant=other", THERE, "tenant"),
    ("tool_servers/Town", THERE, "server"),
    ("tool_servers/town", {**THERE, "name": "x"}, "name"),
    ("tool_servers/town", {"command": ["/bin/sh"]}, "command"),
    ("tool_servers/town", {**THERE, "env": {"A": "b"}}, "env"),
    ("tool_servers/town", {**THERE, "folder": "/"}, "folder"),
    ("tool_servers/town", {**THERE, "memory_mb": 64}, "memory_mb"),
    ("tool_servers/town", {"url": "http://localhost:1/mcp"}, "url"),
    ("tool_servers/town", {**THERE, "allow": ["a"] * 513}, "allow"),
    ("tool_servers/town", {**THERE, "approve": ["a"] * 513}, "approve"),
    ("tool_servers/town", {**THERE, "idempotent": ["a"] * 513}, "idempotent"),
]


async def test_what_cannot_be_added_names_its_field_and_stores_nothing(world: World) -> None:
    for path, body, param in UNFIT:
        status, said = await world.ask("PUT", f"/v1/{path}", body)
        assert status == 400 and said["error"]["param"] == param, said
    assert await world.added() == ()


@pytest.mark.parametrize(
    ("path", "table", "operators"),
    [
        ("/v1/tools/{name}", HttpTool, set()),
        ("/v1/tool_servers/{server}", McpServerTable, {"command", "env", "folder", "memory_mb"}),
    ],
)
async def test_the_document_has_the_fields_that_a_table_may_have(
    world: World, path: str, table: type[msgspec.Struct], operators: set[str]
) -> None:
    document = (await world.http.get("/openapi.json")).json()
    schema = document["paths"][path]["put"]["requestBody"]["content"]["application/json"]["schema"]
    fields = schema["properties"]
    known = {"kind"} if table is HttpTool else set()
    assert fields.keys() == {*table.__struct_fields__, "offer"} - operators | known
    assert schema["required"] == ["url"] and not schema["additionalProperties"] and "$ref" not in json.dumps(schema)
    defaults = {name: field["default"] for name, field in fields.items() if "default" in field}
    body = {"url": "http://127.0.0.1:1/", **defaults, "headers": {"x-a": "b"}}
    status, said = await world.ask("PUT", path.format(name="all", server="all"), body)
    assert status == 201, said
    for name in operators:
        assert (await world.ask("PUT", path.format(server="all"), {**body, name: ""}))[0] == 400


async def test_a_header_with_other_signs_is_in_no_error(world: World) -> None:
    body = {"url": "https://x.example/", "headers": {"a": f"{SECRET}\n"}}
    status, said = await world.ask("PUT", "/v1/tools/weather", body)
    assert status == 400 and said["error"]["param"] == "headers.a" and SECRET not in repr(said)


async def test_no_change_is_lost(world: World) -> None:
    url = "/v1/tools/weather"
    made = await world.http.put(url, json={"url": "https://x.example/1"})
    assert made.status_code == 201 and made.headers["etag"] == (await world.http.get(url)).headers["etag"]
    match = {"if-match": made.headers["etag"]}
    again = await world.http.put(url, json={"url": "https://x.example/2"}, headers=match)
    assert again.status_code == 200 and again.headers["etag"] != made.headers["etag"]
    late = await world.http.put(url, json={"url": "https://x.example/3"}, headers=match)
    assert late.status_code == 409 and late.json()["error"]["code"] == "tool_changed"
    assert (await world.http.delete(url, headers=match)).status_code == 409
    assert (await world.http.get(url)).json()["settings"]["url"] == "https://x.example/2"
    there = await world.http.put(url, json={"url": "https://x.example/3"}, headers={"if-none-match": "*"})
    assert there.status_code == 409 and there.json()["error"]["param"] == "If-None-Match"
    new = await world.http.put("/v1/tools/new", json={"url": "https://x.example/"}, headers={"if-none-match": "*"})
    assert new.status_code == 201
    absent = await world.http.put("/v1/tools/other", json={"url": "https://x.example/"}, headers={"if-match": "*"})
    assert absent.status_code == 409
    puts = [world.http.put(f"/v1/tools/t{n}", json={"url": "https://x.example/"}) for n in range(20)]
    assert {each.status_code for each in await asyncio.gather(*puts)} == {201}
    assert len(await world.added()) == 22


@pytest.mark.parametrize("name", ["own", "own__weather"])
async def test_tools_and_servers_are_not_mistaken_for_each_other(world: World, name: str) -> None:
    body = {"url": "https://x.example/"}
    for first, second, param in (
        (f"tools/{name}", "tool_servers/own", "server"),
        ("tool_servers/own", f"tools/{name}", "name"),
    ):
        assert (await world.ask("PUT", f"/v1/{first}", body))[0] == 201
        status, said = await world.ask("PUT", f"/v1/{second}", body)
        assert status == 409 and said["error"]["code"] == "tool_exists" and said["error"]["param"] == param
        assert (await world.ask("DELETE", f"/v1/{first}"))[0] == 200


async def test_a_tool_says_why_it_is_not_in_force(world: World) -> None:
    tables = {"local": "http://127.0.0.1/", "later": "https://x.example/"}
    for name, url in tables.items():
        assert (await world.ask("PUT", f"/v1/tools/{name}", {"url": url}))[0] == 201
    (later, local) = await world.added()
    later = msgspec.structs.replace(later, table={**later.table, "colour": "red"})
    await SqlAddedTools(world.database).replace(AddedTools(tenant=LOCAL, version=2, tools=(later, local)))
    world.file.write_text("")
    await until(lambda: not world.rules.file.networks)
    refused, forbidden = [each["left_out"] for each in (await world.ask("GET", "/v1/tools"))[1]["data"]]
    assert "colour" in refused and forbidden == "its address is not permitted"


async def test_a_change_goes_on_while_others_change_other_tools(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    replace, conflicts = SqlAddedTools.replace, [12]

    async def contended(store: SqlAddedTools, tools: AddedTools, audit: Audited | None = None) -> AddedTools:
        conflicts[0] -= 1
        if conflicts[0] >= 0:
            raise tools_conflict()
        return await replace(store, tools, audit)

    monkeypatch.setattr(SqlAddedTools, "replace", contended)
    monkeypatch.setattr(routes, "PAUSE_MAX_S", 0.001)
    body = {"url": "https://x.example/"}
    assert (await world.ask("PUT", "/v1/tools/weather", body))[0] == 201
    conflicts[0] = 1_000
    status, said = await world.ask("PUT", "/v1/tools/weather", body)
    assert status == 409 and said["error"]["code"] == "tool_changed" and said["error"]["retryable"]


async def test_changes_of_a_tenant_take_turns(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred changes at once each had a copy of all tools in memory, and made another one for each that was faster:
    the process grew by a gigabyte."""
    replace, changing, most = SqlAddedTools.replace, 0, 0

    async def replaced(store: SqlAddedTools, tools: AddedTools, audit: Audited | None = None) -> AddedTools:
        nonlocal changing, most
        changing, most = changing + 1, max(most, changing + 1)
        for _ in range(20):
            await asyncio.sleep(0)
        changing -= 1
        return await replace(store, tools, audit)

    monkeypatch.setattr(SqlAddedTools, "replace", replaced)
    puts = [world.ask("PUT", f"/v1/tools/t{n}", {"url": "https://x.example/"}) for n in range(20)]
    assert {status for status, _ in await asyncio.gather(*puts)} == {201}
    assert most == 1


async def test_tools_that_cannot_be_read_are_replaced(world: World) -> None:
    assert (await world.ask("PUT", "/v1/tools/old", {"url": "https://x.example/"}))[0] == 201
    for method, body, status in (("PUT", {"url": "https://x.example/"}, 201), ("DELETE", None, 200)):
        await overwrite_added_tools(world.database)
        for path in ("/v1/tools/weather", "/v1/tools"):
            assert (await world.ask("GET", path))[0] == 500
        assert (await world.ask(method, "/v1/tools/weather", body))[0] == status
        assert len(await world.added()) == (method == "PUT")


async def test_a_tenant_adds_so_many(world: World) -> None:
    for number in range(ADDED_MAX["server"]):
        assert (await world.ask("PUT", f"/v1/tool_servers/s{number}", {"url": "https://x.example/"}))[0] == 201
    status, said = await world.ask("PUT", "/v1/tool_servers/more", {"url": "https://x.example/"})
    assert status == 429 and said["error"]["code"] == "quota_exceeded"
    assert (await world.ask("PUT", "/v1/tool_servers/s0", {"url": "https://y.example/"}))[0] == 200


async def test_administrators_have_the_tools_of_their_own_tenant(tmp_path: Path, service: ToolService) -> None:
    acme, beta = TenantId("acme"), TenantId("beta")
    keys = {
        "boss": Principal(tenant=acme, key_id="boss", role="service", scopes=("admin", "chat")),
        "chat": Principal(tenant=acme, key_id="chat", role="service", scopes=("chat",)),
        "user": Principal(tenant=acme, key_id="user", role="user", user="ana", scopes=("admin", "chat")),
        "beta": Principal(tenant=beta, key_id="beta", role="service", scopes=("admin", "chat")),
    }
    async with a_world(tmp_path, keys={key_digest(name): who for name, who in keys.items()}) as world:

        async def ask(key: str, method: str, body: Any = None) -> int:
            return (await world.ask(method, "/v1/tools/weather", body, authorization=f"Bearer {key}"))[0]

        body = {"url": f"{service.url}/now"}
        assert [await ask(key, "PUT", body) for key in ("chat", "user", "boss")] == [403, 403, 201]
        assert [await ask(key, "GET") for key in ("chat", "user", "beta", "boss")] == [403, 403, 404, 200]
        assert [await ask(key, "DELETE") for key in ("chat", "user", "beta")] == [403, 403, 404]
        assert await ask("beta", "PUT", body) == 201 and await ask("boss", "DELETE") == 200
        assert await ask("beta", "GET") == 200


async def test_a_server_without_tools_adds_none() -> None:
    async with (
        serving(SimulatedOptions()) as server,
        httpx2.AsyncClient(base_url=server.server.url, trust_env=False, timeout=60) as http,
    ):
        answer = await http.put("/v1/tools/weather", json={"url": "https://x.example/"})
        assert answer.status_code == 403 and answer.json()["error"]["code"] == "tools_disabled"
