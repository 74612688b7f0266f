"""Tools: their file, its secrets, and calls by name."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from inference.tools.secrets import (
    PARTS_MAX,
    SENT_MAX,
    Secret,
    SecretHeader,
    SecretText,
    SentSecrets,
    check_headers,
    header_values,
    secret_values,
    without_secrets,
)
from inference.tools.tools_file import CodeTool, ToolsFile, read_tools
from persistence.memory.database import MemoryDatabase
from sessions.model.errors import BadInput
from sessions.model.types import McpSource, TenantId
from tests.support.doors.tool_service import ToolService, open_tools_of, opened_tools, tools_toml
from tests.support.mcp.opened import request_of, stdio_table

# -- tools file
ACME, OTHER = TenantId("acme"), TenantId("other")
TWO = """
[tools.weather]
description = "The weather."
url = "https://weather.example.com/now"
idempotency = "key"
[tools.news]
url = "https://news.example.com/now"
approval = "always"
[tenants.acme]
allow = ["weather"]
offer = ["weather", "book"]
[tenants.acme.tools.book]
url = "https://booking.example.com/book"
"""


def read(tmp_path: Path, text: str) -> ToolsFile:
    (tmp_path / "tools.toml").write_text(text)
    return read_tools(tmp_path / "tools.toml")


def test_a_tenant_has_its_own_tools_and_of_the_others_what_it_is_allowed(tmp_path: Path) -> None:
    file = read(tmp_path, TWO)
    assert file.find(ACME, "weather") and file.find(ACME, "book") and file.find(ACME, "news") is None
    assert file.find(OTHER, "news") and file.find(OTHER, "book") is None
    assert file.offered(ACME) == ("weather", "book") and file.offered(OTHER) == ()
    weather, news = file.find(OTHER, "weather"), file.find(OTHER, "news")
    assert weather is not None and news is not None
    told = weather.server_tool("weather")
    assert not told.approval and news.server_tool("news").approval
    assert told.takes_keys and not news.server_tool("news").takes_keys
    assert told.tool.server is True and told.tool.description == "The weather."


@pytest.mark.parametrize(
    "wrong",
    [
        '[tools.x]\nurl = "http://weather.example.com/"',
        '[tools.x]\nurl = "https://127.0.0.1/"',
        '[tools.x]\nurl = "https://169.254.169.254/latest"',
        '[tools.x]\nurl = "https://u:p@weather.example.com/"',
        '[tools.x]\nurl = "https://a.example/"\nunknown = 1',
        '[tools.x]\nurl = "https://a.example/"\nparameters = {type = "string"}',
        '[tools.x]\nurl = "https://a.example/"\nheaders.host = "b"',
        '[tools.x]\nurl = "https://a.example/"\nheaders.a = {file = "x", env = "Y"}',
        '[tools.x]\nurl = "https://a.example/"\nheaders.a = "b\\r\\nc: d"',
        '[tools."a b"]\nurl = "https://a.example/"',
        '[tenants.acme]\nallow = ["x"]',
        '[tenants.acme]\noffer = ["x"]',
        'networks = ["here"]',
        '[tools.x]\nurl = "https://a.example:99999/"',
        '[tools.x]\nurl = "https://a.example/#x"',
        '[tools.x]\nurl = "https://b\u00fccher.example/"',
        '[tools.x]\nurl = "https://a.example/"\ntimeout_s = nan',
        '[tools.x]\nurl = "https://a.example/"\nheaders = {a = "1", A = "2"}',
        '[tools.x]\nurl = "https://a.example/"\nheaders.a = "\u00e9"',
        '[tools.x]\nurl = "https://a.example/"\nparameters = {type = "object", properties = 5}',
        '[tools.x]\nurl = "https://a.example/"\nparameters = {type = "object", default = 2026-01-01}',
        '[tools.x]\nurl = "https://a.example/"\nparameters = {type = "object", minProperties = 100000000}',
        "x",
    ],
)
def test_a_file_that_is_wrong_is_refused_as_a_whole(tmp_path: Path, wrong: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        read(tmp_path, wrong)


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        (
            '[tools.good]\nurl = "https://a.example/"\n[tools.bad]\nurl = "ftp://a.example/"',
            r"\[tools\.bad\].*https://",
        ),
        ('[tools.bad]\nurl = "https://a.example/"\ntimeuot_s = 5', r"\[tools\.bad\].*timeuot_s"),
        ('[tenants.acme.tools.bad]\nurl = "https://a.example/"\nretries = 99', r"\[tenants\.acme\.tools\.bad\].*8"),
        ("a = " + "[" * 3_000, "nested"),
    ],
)
def test_what_is_wrong_is_said_with_the_name_of_its_tool(tmp_path: Path, wrong: str, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        read(tmp_path, wrong)


def test_code_tools_have_bounds_of_their_own(tmp_path: Path) -> None:
    file = read(
        tmp_path, '[tools.code_interpreter]\nkind = "code"\nmemory_mb = 64\n[tenants.acme.tools.p]\nkind = "code"'
    )
    places = [place for place, each in file.all_tools() if isinstance(each, CodeTool)]
    assert places == ["tools.code_interpreter", "tenants.acme.tools.p"]
    tool = file.find(ACME, "code_interpreter")
    assert isinstance(tool, CodeTool) and tool.memory_mb == 64
    given = tool.server_tool("code_interpreter", "no sandbox")
    assert given.takes_keys and given.unavailable == "no sandbox"
    assert (given.tool.parameters or {})["required"] == ["code"]


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ('[tools.code_interpreter]\nurl = "https://a.example/"', 'is for kind = "code"'),
        ('[tools.code_interpreter]\nkind = "code"\ncalls = ["y"]', "calls"),
        ('[tools.x]\ncalls = ["y"]\nkind = "code"\ninterpreter = "program"', r"\[tools.x\].*calls"),
        ('[tenants.acme.tools.x]\nkind = "code"\ninterpreter = "program"', r"\[tenants.acme.tools.x\].*interpreter"),
        ('[tools.x]\nkind = "shell"', "kind"),
        ('[tools.x]\nkind = "code"\nmemory_mb = 1', "memory_mb"),
    ],
)
def test_a_code_tool_that_is_wrong_is_refused(tmp_path: Path, wrong: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        read(tmp_path, wrong)


# -- secrets
MANY = "; ".join(f"k{n}=secret-{n}" for n in range(10, 60))


def test_values_stand_in_files_and_in_the_environment(tmp_path: Path) -> None:
    (tmp_path / "s").write_text("word\n")
    given: dict[str, Secret] = {
        "a": SecretHeader(file=str(tmp_path / "s"), prefix="Bearer "),
        "b": SecretHeader(env="B"),
        "c": "plain",
    }
    assert secret_values(given, {"B": "x"}) == ({"a": "Bearer word", "b": "x", "c": "plain"}, ("word", "x"))
    with pytest.raises(ValueError, match="B is not set"):
        secret_values(given, {})
    with pytest.raises(ValueError, match="either"):
        SecretHeader()


def test_signs_that_no_header_has() -> None:
    with pytest.raises(ValueError, match="signs"):
        header_values({"a": SecretHeader(env="A")}, {"A": "x\ny"})
    with pytest.raises(ValueError, match="signs"):
        check_headers({"a": "x\ny"})
    with pytest.raises(ValueError, match="twice"):
        check_headers({"a": "x", "A": "y"})


def test_what_was_sent_is_taken_out_of_answers() -> None:
    assert without_secrets(("secret", "abc"), b"a secret, abc") == b"a [removed], abc"
    sent = SentSecrets()
    sent.add(("first", "second"))
    sent.add(("third",))
    assert sent.taken_out("first second third \ud800") == "[removed] [removed] [removed] \ud800"
    sent.add([f"secret {number}" for number in range(SENT_MAX)])
    assert sent.taken_out("first") == "first", "so many are remembered"


@pytest.mark.parametrize(
    ("value", "secrets"),
    [
        ("Bearer abcd1234efgh", ["Bearer abcd1234efgh", "abcd1234efgh"]),
        ("AWS4-HMAC-SHA256 abcd1234", ["AWS4-HMAC-SHA256 abcd1234", "abcd1234"]),
        ("Basic YW5uYTpzM2NyM3Q=", ["Basic YW5uYTpzM2NyM3Q=", "YW5uYTpzM2NyM3Q="]),
        ("YW5uYTpzM2NyM3==", ["YW5uYTpzM2NyM3=="]),
        ('Token token="abc123secret"', ['Token token="abc123secret"', 'token="abc123secret"', "abc123secret"]),
        ("sessionid=abcd1234; theme=dark", ["sessionid=abcd1234; theme=dark", "abcd1234"]),
        ("id=abcd1234==,key=efgh5678", ["id=abcd1234==,key=efgh5678", "abcd1234==", "efgh5678"]),
        ("true", []),
        (MANY, [MANY, *(f"secret-{n}" for n in range(10, 10 + PARTS_MAX))]),
    ],
)
def test_the_secrets_in_a_header_sent_over_the_api(value: str, secrets: list[str]) -> None:
    assert list(SecretText(value).secrets) == secrets


def test_headers_that_are_no_secrets_stay_in_answers() -> None:
    given = {"Accept": "application/json", "User-Agent": "our-client/1.0", "x-verbose": "true", "x-key": "abcd1234"}
    headers: dict[str, Secret] = {name: SecretText(value) for name, value in given.items()}
    assert secret_values(headers, {}) == (given, ("abcd1234",))


def test_secrets_are_removed_as_json_has_them() -> None:
    secrets = SecretText('Token token="abc123/secret\\"').secrets
    for echoed in (secrets[0], json.dumps(secrets[0]), json.dumps(secrets[0]).replace("/", "\\/"), secrets[-1]):
        left = without_secrets(secrets, echoed.encode()).decode()
        assert "[removed]" in left and "abc123" not in left and "Token" not in left
    assert without_secrets(("whole secret", "secret"), b"a whole secret") == b"a [removed]"


# -- opening
ONE = '[tools.%s]\nurl = "https://a.example/"\n'


async def test_none_where_no_file_is_named() -> None:
    async with open_tools_of(SimpleNamespace(tools=""), MemoryDatabase(), {}) as tools:
        assert tools is None


@pytest.mark.parametrize("text", [None, "[tools.x]"])
async def test_a_file_that_is_wrong_from_the_start_ends_the_start(tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "tools.toml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(BadInput, match="tools"):
        async with open_tools_of(SimpleNamespace(tools=str(path), file_bytes=0), MemoryDatabase(), {}):
            raise AssertionError("it started")


async def test_the_file_is_read_again_and_a_wrong_one_changes_nothing(tmp_path: Path) -> None:
    path, acme = tmp_path / "tools.toml", TenantId("acme")
    path.write_text(ONE % "first")
    async with open_tools_of(SimpleNamespace(tools=str(path), file_bytes=0), MemoryDatabase(), {}) as tools:
        assert tools is not None and tools.find(acme, "first") is not None
        path.write_text("[tools.x]")
        path.write_text(ONE % "second" + "\n# longer")
        async with asyncio.timeout(60):
            while tools.find(acme, "second") is None:
                await asyncio.wait((asyncio.ensure_future(asyncio.Event().wait()),), timeout=0.05)
        assert tools.find(acme, "first") is None


# -- tool set
ACME, OTHER = TenantId("acme"), TenantId("other")


async def test_tools_of_the_file_and_of_mcp_servers_are_found_offered_and_called(tmp_path: Path) -> None:
    async with ToolService() as service:
        tenants = '[tenants.acme]\noffer = ["look", "town__weather"]\n'
        text = tools_toml(service, look="") + "\n" + stdio_table(tmp_path) + tenants
        async with opened_tools(tmp_path / "tools.toml", text) as tools:
            assert list(tools.offered(ACME)) == ["look", "town__weather"]
            assert tools.find(ACME, "look") is not None and tools.find(ACME, "town__book") is not None
            assert len(await tools.of_server(ACME, McpSource(server_label="town"))) == 3
            assert (await tools.call(request_of("look", city="Rome"))).outcome == "done"
            assert (await tools.call(request_of("town__weather", city="Rome"))).output == "18 degrees in Rome"
