"""The tools file: whose tools, what is refused, and where secrets come from."""

from __future__ import annotations

from pathlib import Path

import pytest

from inference.tools.tools_file import CodeTool, ToolsFile, code_tools, read_tools
from sessions.model.types import TenantId

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
    assert list(code_tools(file)) == ["tools.code_interpreter", "tenants.acme.tools.p"]
    tool = file.find(ACME, "code_interpreter")
    assert isinstance(tool, CodeTool) and tool.memory_mb == 64
    given = tool.server_tool("code_interpreter", "no sandbox")
    assert given.takes_keys and given.unavailable == "no sandbox" and not given.program
    assert (given.tool.parameters or {})["required"] == ["code"]


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ('[tools.code_interpreter]\nurl = "https://a.example/"', 'is for kind = "code"'),
        ('[tools.code_interpreter]\nkind = "code"\ninterpreter = "program"', "on CPython"),
        ('[tools.x]\nkind = "code"\ncalls = ["y"]', "interpreter"),
        ('[tools.x]\nkind = "code"\ninterpreter = "program"\nnetwork = ["a.example:1"]', "no network"),
        ('[tools.x]\nkind = "code"\nnetwork = ["everywhere"]', "network"),
        ('[tools.x]\nkind = "shell"', "kind"),
        ('[tools.x]\nkind = "code"\nmemory_mb = 1', "memory_mb"),
    ],
)
def test_a_code_tool_that_is_wrong_is_refused(tmp_path: Path, wrong: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        read(tmp_path, wrong)
