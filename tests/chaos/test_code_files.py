"""Files of code over a kill -9 of the whole server: while the run that writes them goes on, and between two runs."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import openai
import pytest

from inference.tools.code.sandbox_pool import SandboxUnavailable, find_kind
from testbed.server_process import ServerProcess
from tests.support.engines.chat_provider import STREAM, ChatProvider, delta, end

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(240)]
CODE: Any = {"type": "code_interpreter", "container": {"type": "auto"}}
TOOLS = '[tools.code_interpreter]\nkind = "code"\n'
SLOW = "import time\nopen('a.txt', 'w').write('kept')\ntime.sleep(3)\nopen('b.txt', 'w').write(str(time.time()))\nNone"


def call(code: str) -> bytes:
    function = {"name": "code_interpreter", "arguments": json.dumps({"code": code})}
    called = [{"index": 0, "id": "c", "type": "function", "function": function}]
    return STREAM + delta(tool_calls=called) + end("tool_calls")


async def test_each_file_is_there_once_and_later_runs_find_it(tmp_path: Path) -> None:
    try:
        find_kind()
    except SandboxUnavailable as error:
        pytest.skip(f"no sandbox here: {error}")
    (tmp_path / "tools.toml").write_text(TOOLS)
    words = STREAM + delta(content="See b.txt.") + end()
    async with ChatProvider(call(SLOW), words, call("print(open('a.txt').read())"), words) as provider:
        flags = ("--engine", "chat", "--engine-url", provider.url, "--model", "m", "--context", "8000")
        made = ServerProcess(*flags, "--tools", str(tmp_path / "tools.toml"), data=str(tmp_path / "data"))
        server = await asyncio.to_thread(made.__enter__)
        try:
            async with openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="none") as client:
                stream = await client.responses.create(
                    model="m", input="write", tools=[CODE], background=True, stream=True
                )
                async for event in stream:
                    if event.type == "response.created":
                        begun = event.response.id
                    if event.type == "response.code_interpreter_call.interpreting":
                        break
                server.kill()
                await asyncio.to_thread(server.start)
                async with asyncio.timeout(90):
                    again = await client.responses.retrieve(begun, stream=True)
                    events = [event async for event in again]
                last = events[-1]
                assert last.type == "response.completed" and last.response.output_text == "See b.txt."
                files = {file.filename: file.id for file in (await client.files.list()).data}
                assert sorted(files) == ["a.txt", "b.txt"] and len((await client.files.list()).data) == 2
                (message,) = [item for item in last.response.output if item.type == "message"]
                (part,) = message.content
                assert part.type == "output_text"
                cited = [each.file_id for each in part.annotations if each.type == "container_file_citation"]
                assert sorted(cited) == sorted(files.values())
                server.kill()
                await asyncio.to_thread(server.start)
                after = await client.responses.create(model="m", input="read", tools=[CODE], previous_response_id=begun)
                (ran,) = [item for item in after.output if item.type == "code_interpreter_call"]
                assert ran.outputs is not None and ran.outputs[0].model_dump() == {"type": "logs", "logs": "kept"}
        finally:
            await asyncio.to_thread(made.__exit__)
