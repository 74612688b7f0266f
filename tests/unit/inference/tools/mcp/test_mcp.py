"""MCP servers behind the port of tools: their words and lists, connections and processes."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp.shared.message import SessionMessage
from mcp.types import CallToolResult, ImageContent, TextContent, ToolAnnotations
from mcp.types import Tool as ListedTool
from structlog.testing import capture_logs

from inference.tools.mcp import launcher
from inference.tools.mcp.catalogue import NAME_LENGTH_MAX, SCHEMA_DEPTH_MAX, digest_of, review, shown_name, taken_over
from inference.tools.mcp.connection import McpConnection
from inference.tools.mcp.guarded_http import BODY_BYTES_MAX, GuardedTransport
from inference.tools.mcp.plain_words import plain_words
from inference.tools.mcp.results import result_of
from inference.tools.mcp.server_table import McpServerTable
from inference.tools.mcp.stdio import McpStreams, Note, StdioCommand, stdio_streams
from inference.tools.secrets import SentSecrets
from sessions.model.errors import NotFound, Unavailable
from sessions.model.types import McpSource, TenantId
from sessions.name_lookup import NameLookup
from sessions.public_addresses import AddressRules
from sessions.schemas import InlineSchemaChecker
from tests.support.doors.tool_service import ToolService, reply
from tests.support.mcp.opened import (
    ACME,
    MemoryPins,
    opened_servers,
    request_of,
    stdio_table,
    tools_file,
    until,
    url_table,
)

# -- catalogue
PLAIN: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "string", "description": "An \x1b[1ma\u202e."}}}


def listed(name: str = "look", description: str = "Looks.", schema: dict[str, Any] = PLAIN) -> ListedTool:
    return ListedTool(name=name, description=description, input_schema=schema)


def test_names_are_ours_and_no_two_become_one() -> None:
    assert shown_name("town", "look") == "town__look"
    names = [shown_name("town", each) for each in ("a.b", "a/b", "a b", "x" * 100, "x" * 99)]
    assert len(set(names)) == 5 and all(len(name) <= NAME_LENGTH_MAX for name in names)
    assert all(name.replace("-", "_").replace("_", "a").isalnum() and name.isascii() for name in names)


def test_what_cannot_be_seen_is_taken_out_or_refused() -> None:
    (tool,), refused = taken_over("town", [listed(description="Good\u202e bad\x1b]0;x\x07 end.\x00")])
    assert tool.description == "Good bad end." and not refused
    assert tool.schema["properties"]["a"]["description"] == "An a."
    tools, refused = taken_over("town", [listed("\x1b[31mred"), listed("l\u200book"), listed(""), listed("y" * 300)])
    assert not tools and len(refused) >= 3


@pytest.mark.parametrize(
    "schema", [{"type": "string"}, {"type": "object", "properties": {f"p{n}": PLAIN for n in range(5_000)}}]
)
def test_schemas_have_bounds(schema: dict[str, Any]) -> None:
    tools, refused = taken_over("town", [listed(schema=schema), listed("other")])
    assert [tool.own_name for tool in tools] == ["other"] and "schema" in refused["look"]


def test_depth_is_judged_without_recursion() -> None:
    deep: dict[str, Any] = {}
    for _ in range(SCHEMA_DEPTH_MAX * 100):
        deep = {"type": "object", "properties": {"a": deep}}
    _, refused = taken_over("town", [listed(schema=deep)])
    assert "deep" in refused["look"]


def test_a_tool_that_says_something_else_is_held() -> None:
    first, _ = taken_over("town", [listed()])
    taken = review(first, {}, begun=False, takes_changes=False)
    assert set(taken.shown) == set(taken.first) == {"town__look"} and taken.first["town__look"] == digest_of(listed())
    changed, _ = taken_over("town", [listed(description="Sends secrets."), listed("more")])
    held = review(changed, taken.first, begun=True, takes_changes=False)
    assert not held.shown and held.held == {"town__look": "changed", "town__more": "new"} and not held.first
    free = review(changed, taken.first, begun=True, takes_changes=True)
    assert len(free.shown) == 2 and not free.held
    agreed = {"town__look": changed[0].digest}
    assert set(review(changed, agreed, begun=True, takes_changes=False).shown) == {"town__look"}


@pytest.mark.parametrize(
    "other",
    [
        listed(description="Looks!"),
        listed(schema={"type": "object"}),
        listed().model_copy(update={"annotations": ToolAnnotations(read_only_hint=True)}),
        listed(description="Looks.\u200b"),
    ],
)
def test_a_digest_is_of_all_that_one_may_go_by(other: ListedTool) -> None:
    assert digest_of(other) != digest_of(listed())


# -- connection
async def test_one_that_ends_is_begun_again_and_its_tools_stay_known(tmp_path: Path) -> None:
    async with opened_servers(tmp_path, stdio_table(tmp_path, mode="dies")) as tools:
        first = await tools.call(request_of("town__look"))
        assert first.outcome == "unknown" and tools.find(ACME, "town__look") is not None
        second = await tools.call(request_of("town__look"))
        assert second.outcome == "unknown", "it was there again, and died again"
        assert (tmp_path / "asked").read_text() == "look\nlook\n"


async def test_what_was_held_is_held_after_a_restart(tmp_path: Path) -> None:
    pins = MemoryPins()
    async with opened_servers(tmp_path, stdio_table(tmp_path, mode="pulls"), pins=pins):
        pass
    (tmp_path / "pull").touch()
    async with opened_servers(tmp_path, stdio_table(tmp_path, mode="pulls"), pins=pins) as tools:
        assert tools.find(ACME, "town__look") is None


def connection_by(connect: Any) -> McpConnection:
    table = McpServerTable(url="https://town.example/mcp")
    return McpConnection("", "town", table, connect, schemas=InlineSchemaChecker(), pins=MemoryPins())


async def test_no_secret_is_in_the_log_if_a_server_repeats_it() -> None:
    @asynccontextmanager
    async def connect(sent: SentSecrets, note: Note) -> AsyncIterator[McpStreams]:
        sent.add(["a-very-secret-token"])
        raise OSError("who says a-very-secret-token?")
        yield

    connection = connection_by(connect)
    with capture_logs() as logs:
        task = asyncio.create_task(connection.run())
        async with asyncio.timeout(60):
            await connection.tried.wait()
        task.cancel()
    assert [each["reason"] for each in logs] == ["OSError: who says [removed]?"]


async def test_it_ends_even_if_the_client_raises_an_error_in_place_of_the_cancellation() -> None:
    """A server that was cancelled while its connection failed went on for ever, and its replica did not end."""
    connecting = asyncio.Event()

    @asynccontextmanager
    async def connect(sent: SentSecrets, note: Note) -> AsyncIterator[McpStreams]:
        connecting.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise ExceptionGroup("of a task group", [OSError("it cannot be reached")]) from None
        raise AssertionError
        yield

    task = asyncio.create_task(connection_by(connect).run())
    await connecting.wait()
    task.cancel()
    async with asyncio.timeout(60):
        with pytest.raises(asyncio.CancelledError):
            await task


# -- guarded http
LOOPBACK = AddressRules(["127.0.0.0/8"])


async def secrets() -> Mapping[str, str]:
    return {"authorization": "Bearer first"}


@pytest.fixture
async def service() -> AsyncIterator[ToolService]:
    async with ToolService() as made:
        yield made


def client(rules: AddressRules = LOOPBACK, *addresses: str) -> httpx2.AsyncClient:
    async def resolve(host: str, port: int) -> Sequence[str]:
        return addresses or (host,)

    return httpx2.AsyncClient(
        transport=GuardedTransport(lambda: rules, secrets, lambda _: None, resolve=resolve), trust_env=False
    )


@pytest.mark.parametrize(
    "address", ["127.0.0.1", "169.254.169.254", "10.0.0.1", "::1", "fd00:ec2::254", "::ffff:10.0.0.1"]
)
async def test_a_name_that_leads_inside_is_not_connected_to(address: str) -> None:
    async with client(AddressRules(), address) as http:
        with pytest.raises(httpx2.ConnectError, match="not permitted"):
            await http.post("https://mcp.example.com/", json={})


async def test_a_redirect_has_no_place_to_lead_to(service: ToolService) -> None:
    service.answer = lambda asked: reply({}, 307, headers=f"location: {service.url}/elsewhere\r\n")
    async with client() as http:
        answer = await http.post(service.url, json={}, follow_redirects=True)
    assert answer.status_code == 307 and "location" not in answer.headers and len(service.asked) == 1


async def test_a_body_that_is_too_long_is_broken_off(service: ToolService) -> None:
    service.answer = lambda asked: reply("x" * (BODY_BYTES_MAX + 10))
    async with client() as http:
        with pytest.raises(httpx2.ReadError, match="more than"):
            await http.post(service.url, json={})


async def test_secrets_that_are_not_there_are_no_request(service: ToolService) -> None:
    async def nothing() -> Mapping[str, str]:
        raise OSError("no such file: /run/secret")

    async with httpx2.AsyncClient(
        transport=GuardedTransport(lambda: LOOPBACK, nothing, lambda _: None, resolve=NameLookup().addresses),
        trust_env=False,
    ) as http:
        with pytest.raises(httpx2.ConnectError, match="not set up"):
            async with asyncio.timeout(60):
                await http.post(service.url, json={})
    assert not service.asked


# -- launcher
LAUNCHER = str(Path(launcher.__file__))


def test_its_bounds_hold() -> None:
    code = "import resource as r; print(r.getrlimit(r.RLIMIT_NOFILE)[0], r.getrlimit(r.RLIMIT_DATA)[0])"
    command = [sys.executable, LAUNCHER, str(os.getpid()), str(256 << 20), sys.executable, "-c", code]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.split() == [
        "1024",
        str(256 << 20),
    ]


def test_no_command_and_no_parent() -> None:
    wrong = [sys.executable, LAUNCHER, str(os.getpid()), "268435456", "/nowhere/nothing"]
    assert "No such file" in subprocess.run(wrong, capture_output=True, text=True, check=False).stderr
    orphan = [sys.executable, LAUNCHER, "1", "268435456", sys.executable, "-c", "print('ran')"]
    ended = subprocess.run(orphan, capture_output=True, text=True, check=False)
    assert ended.stdout == "" and "ended" in ended.stderr


async def test_it_dies_with_the_server(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    inner = f"import os, time; open({str(pid)!r}, 'w').write(str(os.getpid()) + '\\n'); time.sleep(1000)"
    outer = (
        "import os, subprocess, sys, time\n"
        f"run = [sys.executable, {LAUNCHER!r}, str(os.getpid()), '268435456', sys.executable, '-c', {inner!r}]\n"
        "subprocess.Popen(run)\n"
        "time.sleep(1000)"
    )
    server = subprocess.Popen([sys.executable, "-c", outer])
    try:
        await until(lambda: pid.exists() and pid.read_text().endswith("\n"))
    finally:
        server.send_signal(signal.SIGKILL)
        server.wait()
    await until(lambda: not Path(f"/proc/{pid.read_text().strip()}").exists())


# -- mcp tools
OTHER = TenantId("other")


async def test_who_gives_up_tells_the_server(tmp_path: Path) -> None:
    async with opened_servers(tmp_path, stdio_table(tmp_path)) as tools:
        call = asyncio.create_task(tools.call(request_of("town__slow", city="Rome")))
        await until(lambda: "slow Rome" in _asked(tmp_path))
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        await until(lambda: "cancelled Rome" in _asked(tmp_path))
        assert (await tools.call(request_of("town__weather", city="Oslo"))).outcome == "done"


async def test_a_call_that_takes_too_long_is_unknown_and_cancelled(tmp_path: Path) -> None:
    async with opened_servers(tmp_path, stdio_table(tmp_path, more="timeout_s = 0.5")) as tools:
        late = await tools.call(request_of("town__slow", city="Rome"))
        assert (late.outcome, late.output) == ("unknown", "(no answer: it took longer than 0.5 s)")
        await until(lambda: "cancelled Rome" in _asked(tmp_path))


ERRS = """
import json, sys
for line in sys.stdin:
    asked = json.loads(line)
    if asked["method"] == "initialize":
        about = {"protocolVersion": "2025-06-18", "capabilities": {}, "serverInfo": {"name": "a", "version": "1"}}
        print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": about}), flush=True)
    elif "id" in asked:
        error = {"code": -1, "message": "/home/operator is full"}
        print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "error": error}), flush=True)
"""


async def test_a_server_that_is_away_says_why(tmp_path: Path, service: ToolService) -> None:
    service.answer = lambda asked: reply({}, 503)
    loopback = 'networks = ["127.0.0.0/8"]\n'
    for table, why in (
        (f"{loopback}{url_table(service.url)}", "HTTP 503"),
        (f"{loopback}{url_table('http://127.0.0.1:1/mcp')}", "no connection to it can be made"),
        ('[servers.town]\ncommand = ["/nowhere/mcp"]\n', "its command ended with status 1"),
        ('[servers.town]\ncommand = ["/usr/bin/head", "-c", "2000000", "/dev/zero"]\n', "a message of it is too long"),
        (f"[servers.town]\ncommand = {json.dumps([sys.executable, '-c', ERRS])}\n", "it answers with an error"),
    ):
        async with opened_servers(tmp_path, table) as tools:
            with pytest.raises(Unavailable, match=rf"cannot be reached now \({why}\)"):
                await tools.of_server(ACME, McpSource(server_label="town"))


async def test_a_server_that_never_answers_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("inference.tools.mcp.connection.START_S", 0.1)
    async with opened_servers(tmp_path, '[servers.town]\ncommand = ["/bin/sleep", "600"]\n') as tools:
        with pytest.raises(Unavailable, match=r"cannot be reached now \(it does not answer in time\)"):
            await tools.of_server(ACME, McpSource(server_label="town"))


async def test_who_has_which(tmp_path: Path) -> None:
    tenants = '[tenants.acme]\nallow = ["town__weather"]\noffer = ["town"]\n[tenants.other]\nallow = []\n'
    async with opened_servers(tmp_path, stdio_table(tmp_path) + tenants) as tools:
        assert tools.offered(ACME) == ["town__weather"] and tools.find(ACME, "town__book") is None
        assert tools.find(OTHER, "town__weather") is None
        found = await tools.of_server(ACME, McpSource(server_label="town"))
        assert [each.tool.name for each in found] == ["town__weather"]
        with pytest.raises(NotFound):
            await tools.of_server(ACME, McpSource(server_label="nowhere"))
        with pytest.raises(NotFound):
            await tools.of_server(OTHER, McpSource(server_label="town"))


@pytest.mark.parametrize(("more", "times"), [("", 1), ('idempotent = ["look"]', 3)])
async def test_a_call_is_sent_again_only_where_the_file_says_so(tmp_path: Path, more: str, times: int) -> None:
    table = stdio_table(tmp_path, mode="hangs", more=f"timeout_s = 0.3\n{more}")
    async with opened_servers(tmp_path, table) as tools:
        result = await tools.call(request_of("town__look"))
        assert result.outcome == "unknown"
        await until(lambda: len(_asked(tmp_path).splitlines()) == times)


async def test_another_file_ends_what_it_does_not_name(tmp_path: Path) -> None:
    async with opened_servers(tmp_path, stdio_table(tmp_path)) as tools:
        assert tools.find(ACME, "town__weather") is not None
        tools.put(tools_file(tmp_path, ""))
        assert tools.find(ACME, "town__weather") is None


def _asked(folder: Path) -> str:
    path = folder / "asked"
    return path.read_text() if path.exists() else ""


# -- plain words
@pytest.mark.parametrize(
    ("given", "plain"),
    [
        ("A tool\twith\nlines", "A tool\twith\nlines"),
        ("\x1b[31mred\x1b[0m \x1b]0;title\x07x\x1b]8;;http://x\x1b\\y", "red xy"),
        ("a\u202eb\u2066c\u200bd\ufeffe\u00ad", "abcde"),
        ("\x00\x07\x9b31m\ud800", "31m"),
        ("\u3164\u115fhidden\U000e0041", "hidden"),
        ("Grüße 日本 🙂", "Grüße 日本 🙂"),
    ],
)
def test_what_is_left(given: str, plain: str) -> None:
    assert plain_words(given, 100) == plain


def test_no_longer_than_it_may_be() -> None:
    assert plain_words("x" * 10_000_000, 5) == "xxxxx"


# -- results
def test_texts_are_joined_and_what_is_none_is_named() -> None:
    image = ImageContent(type="image", data="AAAA", mime_type="image/png")
    answer = CallToolResult(content=[TextContent(type="text", text="one"), image])
    assert result_of(answer, 100, str).output == "one\n[image, 3 bytes, not shown]"
    assert result_of(CallToolResult(content=[], structured_content={"a": 1}), 100, str).output.endswith('{"a":1}}')


def test_errors_and_bounds() -> None:
    long = CallToolResult(content=[TextContent(type="text", text="é" * 100)], is_error=True)
    result = result_of(long, 65, str)
    assert result.outcome == "failed" and result.output == "é" * 32 + "\n[cut off at 65 bytes]"
    assert result_of(CallToolResult(content=[TextContent(type="text", text="a\0b")]), 64, str).output == "a\ufffdb"


def test_secrets_are_taken_out_before_the_bound_cuts_them() -> None:
    sent = SentSecrets()
    sent.add(("secret word",))
    answer = CallToolResult(content=[TextContent(type="text", text="x" * 60 + "secret word")])
    assert result_of(answer, 68, sent.taken_out).output == "x" * 60 + "[removed\n[cut off at 68 bytes]"
    structured = CallToolResult(content=[], structured_content={"a": "secret word"})
    assert "secret" not in result_of(structured, 100, sent.taken_out).output


# -- server table
@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('[servers.a]\ncommand = ["x"]\nurl = "https://a.example/"', "`command` or a `url`"),
        ("[servers.a]\ntimeout_s = 1", "`command` or a `url`"),
        ('[servers.a]\ncommand = ["x"]\nheaders.a = "b"', "`headers`"),
        ('[servers.a]\nurl = "https://a.example/"\nenv.A = "b"', "`env`"),
        ('[servers.a]\nurl = "http://a.example/"', "neither https"),
        ('[servers.a]\nurl = "https://169.254.169.254/"', "neither https"),
        ('[servers.a]\nurl = "https://127.0.0.1/"', "neither https"),
        ('[servers.a_b]\nurl = "https://a.example/"', "a_b|match"),
        ('[servers.a]\ncommand = ["x", "a\\u0000b"]', "program"),
        ('[tenants.t]\nallow = ["a__b"]', "no such MCP server"),
        ('[tenants.t]\noffer = ["a"]', "no tool"),
    ],
)
def test_wrong_tables(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        tools_file(tmp_path, text)


# -- stdio
SAYS = """
import json, os, sys, time
print(json.dumps({"jsonrpc": "2.0", "method": "notifications/x", "params": {"env": sorted(os.environ)}}), flush=True)
print("no message", flush=True)
print("\\x1b[31mhello", file=sys.stderr, flush=True)
%s
"""


def command(script: str, note: Note = lambda _: None) -> StdioCommand:
    return StdioCommand("t", [sys.executable, "-c", SAYS % script], {"A": "b"}, None, 512 << 20, SentSecrets(), note)


async def test_it_gets_no_more_of_the_environment_than_it_is_given() -> None:
    os.environ["SESSILE_TEST_SECRET"] = "x"
    try:
        async with stdio_streams(command("sys.stdin.read()")) as streams:
            message = await anext(aiter(streams.read))
            assert isinstance(message, SessionMessage)
            seen = json.loads(message.message.model_dump_json())["params"]["env"]
            assert set(seen) <= {"A", "LANG", "PATH", "LC_CTYPE"}
    finally:
        del os.environ["SESSILE_TEST_SECRET"]


async def test_one_that_does_not_end_is_ended_with_what_it_started(tmp_path: Path) -> None:
    child = "import signal,time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(1000)"
    script = (
        "import signal, subprocess\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        f"p = subprocess.Popen([sys.executable, '-c', {child!r}])\n"
        f"open({str(tmp_path / 'pid')!r}, 'w').write(str(p.pid) + '\\n')\ntime.sleep(1000)"
    )
    async with stdio_streams(command(script)):
        await until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text().endswith("\n"))
    pid = int((tmp_path / "pid").read_text())
    await until(lambda: not _runs(pid))


async def test_a_line_without_an_end_ends_it() -> None:
    async with stdio_streams(command("while True: sys.stdout.write('x' * 65536)")) as streams:
        assert len([each async for each in streams.read]) == 1 and streams.closed.is_set()


async def test_its_end_is_noted_before_its_streams_end_and_its_words_are_for_the_log_alone() -> None:
    noted: list[str] = []
    with capture_logs() as logs:
        async with stdio_streams(command("print('no token', file=sys.stderr); sys.exit(3)", noted.append)) as streams:
            assert len([each async for each in streams.read]) == 1
    assert noted == ["its command ended with status 3"]
    assert "no token" in [each.get("text") for each in logs]


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
