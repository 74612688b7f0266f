"""Files of code that are none, or too many, too large, somebody else's: 35 attempts through the Responses door of a
server that keeps what code leaves. None brings anything out that was not in the folder, or costs more than the bounds.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import openai
import pytest
from openai.types.responses import Response

from inference.simulated import SimulatedOptions
from inference.tools.code.sandbox_pool import SandboxUnavailable, find_kind
from persistence.memory.database import MemoryDatabase
from persistence.sql.files import SqlFiles
from sessions.model.knowledge.files import FileQuery
from sessions.model.types import TenantId, UnixMs
from tests.support.doors.code_runs import logs, run
from tests.support.doors.openai_server import Serving, serving
from tests.support.doors.tool_service import opened_tools
from tests.support.sandbox.escapes_files import COSTLY, TAKEN_OUT, program
from tests.support.stores.file_rows import content_of

pytestmark = [pytest.mark.timeout(300)]
SECRET = b"hidden-from-code-4711"
KEPT, KEPT_BYTES = 8, 2**20
TOOLS = f"""
[tools.code_interpreter]
kind = "code"
timeout_s = 4
memory_mb = 256
disk_mb = 16
files = 64
kept_files = {KEPT}
kept_mb = 1
"""


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Serving]:
    try:
        find_kind()
    except SandboxUnavailable as error:
        pytest.skip(f"no sandbox here: {error}")
    store = MemoryDatabase()
    async with (
        opened_tools(tmp_path / "tools.toml", TOOLS, store) as tools,
        serving(SimulatedOptions(step_base_s=0.0005), tools=tools, store=store) as made,
    ):
        yield made


@pytest.fixture
async def client(server: Serving) -> AsyncIterator[openai.AsyncOpenAI]:
    async with server.client() as made:
        yield made


async def contents(server: Serving) -> list[bytes]:
    """The contents of all files."""
    files = SqlFiles(server.journal.database)
    found = await files.files(FileQuery(tenant=TenantId("local"), anybody=True), UnixMs(1))
    return [await content_of(files, each) for each in found]


def stored_bytes(server: Serving) -> int:
    """How much is stored, whether a file has it or not."""
    rows = server.journal.database.query("SELECT length(body) FROM file_chunks")
    return sum(length - 16 for (length,) in rows)


async def cited(done: Response) -> list[str]:
    parts = [part for item in done.output if item.type == "message" for part in item.content]
    return [each.type for part in parts if part.type == "output_text" for each in part.annotations]


async def test_nothing_comes_out_that_was_not_in_the_folder(
    client: openai.AsyncOpenAI, server: Serving, tmp_path: Path
) -> None:
    assert len(TAKEN_OUT) + len(COSTLY) == 35
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_bytes(SECRET)
    for name, code in TAKEN_OUT.items():
        done = await run(client, server, program(code, str(outside / "secret"), str(outside)))
        files = (await client.files.list()).data
        assert not [content for content in await contents(server) if SECRET in content], name
        assert not [file for file in files if not file.filename.isprintable() or "/" in file.filename], name
        assert len(await cited(done)) == len(files) and all(file.bytes <= 1 for file in files), (name, logs(done))
        for file in files:
            await client.files.delete(file.id)
    assert sorted(path.name for path in outside.iterdir()) == ["secret"]
    assert (outside / "secret").read_bytes() == SECRET and not (tmp_path / "escaped").exists()


async def test_nothing_costs_more_than_the_bounds(client: openai.AsyncOpenAI, server: Serving) -> None:
    for name, code in COSTLY.items():
        done = await run(client, server, program(code, "", ""))
        files = (await client.files.list()).data
        assert len(files) <= KEPT and sum(file.bytes for file in files) <= KEPT_BYTES, (name, logs(done))
        assert stored_bytes(server) <= KEPT_BYTES and len(logs(done)) < 8_000, name
        assert len(await cited(done)) == len(files), name
        for file in files:
            await client.files.delete(file.id)
        server.journal.database.query("DELETE FROM file_chunks")
    assert logs(await run(client, server, "1 + 1")) == "2", "the next one runs"


async def test_names_of_uploads_are_no_paths_and_no_code(client: openai.AsyncOpenAI, server: Serving) -> None:
    code, names = b"print('ESCAPED')", ["../../escaped", "/etc/cron.d/x", "..", "a\\..\\b", ".pth", "x\0y"]
    modules = ["ast.py", "traceback.py", "sitecustomize.py", "usercustomize.py", "os.py", "json.py", "x.pth"]
    uploads = [(await client.files.create(file=(name, code), purpose="user_data")).id for name in [*names, *modules]]
    tool = {"type": "code_interpreter", "container": {"type": "auto", "file_ids": uploads}}
    listing = "import json, os, traceback\nprint(len([name for *_, names in os.walk('.') for name in names]))\n1 / 0"
    said = logs(await run(client, server, listing, tools=[tool]))
    assert str(len(uploads)) in said.split("\n") and "ZeroDivisionError" in said and "ESCAPED" not in said


async def test_a_file_that_takes_the_room_of_a_run_stays_outside(client: openai.AsyncOpenAI, server: Serving) -> None:
    large = (await client.files.create(file=("large.bin", bytes(9 * 2**20)), purpose="user_data")).id
    small = [(await client.files.create(file=(f"{n}", b"x"), purpose="user_data")).id for n in range(40)]
    tool = {"type": "code_interpreter", "container": {"type": "auto", "file_ids": [*small, large]}}
    said = logs(await run(client, server, "import os\nlen(os.listdir())", tools=[tool]))
    assert said.startswith("32\n[files that were not in the folder: ") and "large.bin" in said
