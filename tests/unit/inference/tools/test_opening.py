"""The tools of the settings: none, wrong from the start, and read again."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace

import pytest

from inference.tools.opening import open_tools
from sessions.metrics import Metrics
from sessions.model.errors import BadInput
from sessions.model.types import TenantId
from sessions.schemas import InlineSchemaChecker

ONE = '[tools.%s]\nurl = "https://a.example/"\n'


async def test_none_where_no_file_is_named() -> None:
    async with open_tools(SimpleNamespace(tools=""), Metrics(), {}, InlineSchemaChecker()) as tools:
        assert tools is None


@pytest.mark.parametrize("text", [None, "[tools.x]"])
async def test_a_file_that_is_wrong_from_the_start_ends_the_start(tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "tools.toml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(BadInput, match="tools"):
        async with open_tools(SimpleNamespace(tools=str(path)), Metrics(), {}, InlineSchemaChecker()):
            raise AssertionError("it started")


async def test_the_file_is_read_again_and_a_wrong_one_changes_nothing(tmp_path: Path) -> None:
    path, acme = tmp_path / "tools.toml", TenantId("acme")
    path.write_text(ONE % "first")
    async with open_tools(SimpleNamespace(tools=str(path)), Metrics(), {}, InlineSchemaChecker()) as tools:
        assert tools is not None and tools.find(acme, "first") is not None
        path.write_text("[tools.x]")
        path.write_text(ONE % "second" + "\n# longer")
        async with asyncio.timeout(60):
            while tools.find(acme, "second") is None:
                await asyncio.wait((asyncio.ensure_future(asyncio.Event().wait()),), timeout=0.05)
        assert tools.find(acme, "first") is None
