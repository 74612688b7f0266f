"""An MCP server's table: what is refused, who is asked, what may be sent again."""

from __future__ import annotations

from pathlib import Path

import pytest

from inference.tools.mcp.server_table import McpServerTable
from tests.support.mcp.opened import tools_file


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


def test_who_is_asked_and_what_may_be_sent_again() -> None:
    table = McpServerTable(command=("x",), approve=("pay",), idempotent=("look",))
    assert table.asks("pay") and not table.asks("look")
    assert table.repeatable("look", hinted=False) and not table.repeatable("pay", hinted=True)
    trusting = McpServerTable(command=("x",), approve=True, trust_hints=True)
    assert trusting.asks("look") and trusting.repeatable("pay", hinted=True)
