"""The Kotlin client and a real server: cut in mid-answer, the server killed, the program killed, doors that refuse."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from testbed.chaos.proxy import Proxy
from testbed.server_process import ServerProcess
from testbed.wire_client import connected
from tests.support.jvm import compiled, program

pytestmark = pytest.mark.slow

WAYS = [("json", "http"), ("msgpack", "sockets")]
FLAGS = ("--engine", "sim", "--sim-tokens-per-s", "60", "--sim-answer-tokens", "0")


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    compiled()


@pytest.fixture
async def server() -> AsyncIterator[ServerProcess]:
    process = ServerProcess(*FLAGS)
    await asyncio.to_thread(process.start)
    try:
        yield process
    finally:
        await asyncio.to_thread(process.__exit__)


async def items(server: ServerProcess, session: str) -> list[dict[str, Any]]:
    """The conversation as the server has it, as the program's `view` says it."""
    async with connected(server.url) as wire:
        state = (await wire.command("session.get", session=session))["state"]
    return [
        {
            "id": item["id"],
            "role": item["role"],
            "text": "".join(part["text"] for part in item["content"]),
            "status": item["status"],
        }
        for item in state["items"]
    ]


@pytest.mark.parametrize(("encoding", "transport"), WAYS)
@pytest.mark.timeout(240)
async def test_an_answer_is_read_whole_through_cuts_and_kills(
    server: ServerProcess, tmp_path: Path, encoding: str, transport: str
) -> None:
    async with Proxy(("127.0.0.1", server.port)) as proxy:
        url = f"http://127.0.0.1:{proxy.port}"
        async with program(url, tmp_path, encoding, transport) as run:
            session = (await run.asked("create", "session"))["session"]
            await run.asked("say 120 Tell me of the tides", "said")
            await run.asked("read", "piece")
            proxy.reset()
            await run.next("piece")
            proxy.close()
            await run.next("piece")
            await asyncio.to_thread(server.kill)
            await asyncio.to_thread(server.start)
            end = await run.next("end")
            assert (end["end"], end["reason"]) == ("incomplete", "max_output_tokens"), end
            assert not any(told.get("restarted") for told in run.told), "nothing that was shown may change"
            seen = await items(server, session)
            assert [item["role"] for item in seen] == ["user", "assistant"]
            assert run.text() == seen[1]["text"]
            assert (await run.asked("view", "items"))["items"] == seen
            assert proxy.counts.connections >= 3, "it was never cut"

            # A tunnel: what is written in it is on the disk, and the app is killed.
            await proxy.refuse()
            proxy.reset()
            await run.asked("later 5 first", "unanswered")
            kept = (await run.asked("later 5 second", "unanswered"))["unanswered"]
            assert len(kept) == 2
        await proxy.start()
        async with program(url, tmp_path, encoding, transport) as again:
            stored = (await again.asked(f"open {session}", "opened"))["stored"]
            assert stored is not None, "the view was not taken from the storage"
            await again.asked("until 6", "settled")
            seen = await items(server, session)
            assert [item["status"] for item in seen] == ["completed", "incomplete"] * 3
            assert [item["text"] for item in seen if item["role"] == "user"][1:] == ["first", "second"]
            await again.say("suspend")
            await again.say("resume")
            await again.asked(f"open {session}", "opened")
            assert (await again.asked("view", "items"))["items"] == seen
            assert await again.asked("end", "ended")


@pytest.mark.parametrize("transport", ["http", "sockets"])
async def test_a_door_that_says_when_and_one_that_says_no(tmp_path: Path, transport: str) -> None:
    """503 with a time is waited out; 401 ends it, with a word for the program."""
    came: list[str] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        came.append("dialled")
        said = "503 Busy\r\nretry-after: 2" if len(came) == 1 else "401 No"
        writer.write(f"HTTP/1.1 {said}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n".encode())
        await writer.drain()
        writer.close()

    door = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = door.sockets[0].getsockname()[1]
    async with door, program(f"http://127.0.0.1:{port}", tmp_path, "json", transport) as run:
        failed = await run.asked("create", "failed")
        assert "401" in failed["failed"]
        assert {"status": "stopped", "error": "stopped"} in run.told
        assert len(came) == 2
