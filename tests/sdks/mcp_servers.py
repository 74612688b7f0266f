"""MCP's reference servers, over standard streams and over HTTP: their tools are listed and called as OpenAI does."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import openai
import pytest

from inference.simulated import SimulatedOptions
from tests.support.doors.openai_server import SIMULATED, Serving, serving
from tests.support.doors.tool_service import LOOPBACK, opened_tools
from tests.support.listening_sockets import free_ports

ROOT: Final = Path(__file__).parent.parent.parent
PACKAGES: Final = Path(__file__).parent / "node_modules" / "@modelcontextprotocol"
WITH_NODE: Final = str(ROOT / "deploy" / "with_node.sh")
PYTHON: Final = ROOT / ".venv-sdks-mcp" / "bin"
TOOLS: Final = {
    "everything": 13,
    "remote": 13,
    "filesystem": 14,
    "memory": 9,
    "thinking": 1,
    "time": 2,
    "git": 12,
    "fetch": 1,
}
CALLS: Final[list[tuple[str, str, dict[str, Any], str]]] = [
    ("everything", "echo", {"message": "hi"}, "Echo: hi"),
    ("everything", "get-sum", {"a": 2, "b": 3}, "The sum of 2 and 3 is 5."),
    ("everything", "trigger-long-running-operation", {"duration": 1, "steps": 3}, "Duration: 1 seconds, Steps: 3."),
    ("everything", "get-tiny-image", {}, "[image, 4035 bytes, not shown]"),
    ("everything", "get-structured-content", {"location": "Chicago"}, '"humidity":82'),
    ("everything", "get-annotated-message", {"messageType": "error", "includeImage": True}, "Error: Operation failed"),
    ("everything", "get-resource-links", {"count": 2}, "[resource demo://resource/dynamic/text/2]"),
    (
        "everything",
        "get-resource-reference",
        {"resourceType": "Text", "resourceId": 1},
        "demo://resource/dynamic/text/1",
    ),
    ("everything", "get-env", {}, '"LANG": "C.UTF-8"'),
    ("remote", "echo", {"message": "über http"}, "Echo: über http"),
    ("remote", "trigger-long-running-operation", {"duration": 1, "steps": 3}, "Duration: 1 seconds, Steps: 3."),
    ("filesystem", "write_file", {"path": "FOLDER/a.txt", "content": "hello"}, "Successfully wrote"),
    ("filesystem", "read_text_file", {"path": "FOLDER/a.txt"}, "hello"),
    ("filesystem", "list_directory", {"path": "FOLDER"}, "[FILE] a.txt"),
    ("filesystem", "read_text_file", {"path": "/etc/passwd"}, "error: Access denied"),
    (
        "memory",
        "create_entities",
        {"entities": [{"name": "Ann", "entityType": "person", "observations": ["likes tea"]}]},
        "likes tea",
    ),
    ("memory", "search_nodes", {"query": "Ann"}, '"entityType": "person"'),
    (
        "thinking",
        "sequentialthinking",
        {"thought": "a", "nextThoughtNeeded": False, "thoughtNumber": 1, "totalThoughts": 1},
        '"thoughtHistoryLength": 1',
    ),
    (
        "time",
        "convert_time",
        {"source_timezone": "UTC", "time": "12:00", "target_timezone": "Asia/Tokyo"},
        "T21:00:00+09:00",
    ),
    ("git", "git_status", {"repo_path": "FOLDER/repository"}, "Untracked files"),
    ("fetch", "fetch", {"url": "http://127.0.0.1:1/"}, "error"),
]


def table(folder: Path, port: int) -> str:
    """Returns the tools file with all servers."""

    def node(name: str, *arguments: str) -> list[str]:
        return [shutil.which("bash") or "", WITH_NODE, "node", str(PACKAGES / name / "dist" / "index.js"), *arguments]

    commands = {
        "everything": node("server-everything"),
        "filesystem": node("server-filesystem", str(folder)),
        "memory": node("server-memory"),
        "thinking": node("server-sequential-thinking"),
        "time": [str(PYTHON / "mcp-server-time")],
        "git": [str(PYTHON / "mcp-server-git"), "--repository", str(folder / "repository")],
        "fetch": [str(PYTHON / "mcp-server-fetch")],
    }
    text = LOOPBACK + f'[servers.remote]\nurl = "http://127.0.0.1:{port}/mcp"\n'
    for label, command in commands.items():
        text += f"[servers.{label}]\ncommand = {json.dumps(command)}\n"
        text += f'env.MEMORY_FILE_PATH = "{folder}/memory.json"\n' if label == "memory" else ""
    return text


@asynccontextmanager
async def everything_over_http(port: int) -> AsyncIterator[None]:
    """Runs the reference server of all features as a streamable HTTP server of its own."""
    command = [WITH_NODE, "node", str(PACKAGES / "server-everything" / "dist" / "index.js"), "streamableHttp"]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec("env", f"PORT={port}", *command, stderr=pipe)
    assert process.stderr is not None
    async with asyncio.timeout(60):
        while b"listening on port" not in (line := await process.stderr.readline()):
            assert line, "the server ended before it listened"
    try:
        yield
    finally:
        process.terminate()
        await process.wait()


@pytest.fixture(scope="session")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[Serving, Path]]:
    folder = tmp_path_factory.mktemp("files")
    subprocess.run(["git", "init", "--quiet", folder / "repository"], check=True)
    (folder / "repository" / "new").touch()
    (port,) = free_ports(1)
    options = SimulatedOptions(step_base_s=0.001, context_window=60_000)
    async with (
        everything_over_http(port),
        opened_tools(tmp_path_factory.mktemp("tools") / "tools.toml", table(folder, port)) as tools,
        serving(options, tools=tools) as made,
    ):
        yield made, folder


def client_of(server: Serving) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{server.server.url}/v1", api_key="none", max_retries=0)


@pytest.mark.parametrize(("label", "count"), TOOLS.items())
async def test_its_tools_are_listed(server: tuple[Serving, Path], label: str, count: int) -> None:
    server[0].engine.script.append("Yes.")
    tools: Any = [{"type": "mcp", "server_label": label}]
    listed, said = (await client_of(server[0]).responses.create(model=SIMULATED, input="x", tools=tools)).output
    assert listed.type == "mcp_list_tools" and len(listed.tools) == count and said.type == "message"


@pytest.mark.parametrize(("label", "name", "arguments", "expected"), CALLS)
async def test_its_tools_are_called(
    server: tuple[Serving, Path], label: str, name: str, arguments: dict[str, Any], expected: str
) -> None:
    made, folder = server
    call = json.dumps({"name": f"{label}__{name}", "arguments": arguments}).replace("FOLDER", str(folder))
    made.engine.script += [f"<tool_call>\n{call}\n</tool_call>", "Done."]
    tools: Any = [{"type": "mcp", "server_label": label}]
    response = await client_of(made).responses.create(model=SIMULATED, input="x", tools=tools)
    _, called, said = response.output
    assert called.type == "mcp_call" and said.type == "message" and response.output_text == "Done."
    assert expected in (f"error: {called.error}" if called.error else str(called.output))
