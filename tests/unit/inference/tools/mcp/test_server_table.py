"""An MCP server's table: what is refused, who is asked, what may be sent again."""

from __future__ import annotations

from pathlib import Path

import pytest

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
