"""How a script gets to a server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from redis.exceptions import NoScriptError

from actors.directory.scripts import read_script, run_script
from tests.support.cluster.scripted_servers import ScriptedServers


async def test_a_server_that_does_not_know_a_script_gets_its_text_once(tmp_path: Path) -> None:
    path = tmp_path / "one.lua"
    path.write_text("return 1")
    servers: Any = ScriptedServers(NoScriptError(), 1, 1)
    for _ in range(2):
        assert await run_script(servers, read_script(path), ("key",), "word") == 1
    known, whole = ("key", "EVALSHA", read_script(path).sha, 1, "key", "word"), "return 1"
    assert servers.calls == [known, ("key", "EVAL", whole, 1, "key", "word"), known]
