"""The client, the terminal and the server cases on the server of this checkout (simulated engine), also killed.

Skipped where the package stands alone.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from sessile_client import Client, Event, FileStore, Limits, Snapshot

CHECKOUT = Path(__file__).parents[3]
QUICK = Limits(backoff_first_s=0.02, backoff_max_s=0.2)

pytestmark = pytest.mark.skipif(not (CHECKOUT / "app.py").exists(), reason="the server is not in this checkout")


class Process:
    """The server as a process of its own, on a port that stays the same."""

    def __init__(self, data: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        self._data = data
        self._process: asyncio.subprocess.Process | None = None

    @property
    def url(self) -> str:
        return f"ws://127.0.0.1:{self.port}/v1/ws"

    async def start(self) -> None:
        settings = {"engine": "sim", "port": self.port, "data": self._data, "sim-tokens-per-s": 100}
        settings |= {"sim-answer-tokens": 0, "log-level": "error"}
        flags = [part for name, value in settings.items() for part in (f"--{name}", str(value))]
        environment = {k: v for k, v in os.environ.items() if not k.startswith("SESSILE_")}
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            str(CHECKOUT / "app.py"),
            "serve",
            *flags,
            stdout=asyncio.subprocess.PIPE,
            cwd=self._data.parent,
            env=environment,
        )
        assert self._process.stdout is not None
        line = await asyncio.wait_for(self._process.stdout.readline(), 60)
        assert b"ready" in line, line

    async def kill(self, sign: int = signal.SIGKILL) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(sign)
            await asyncio.wait_for(process.wait(), 60)


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Process]:
    process = Process(tmp_path / "data")
    await process.start()
    try:
        yield process
    finally:
        await process.kill()


@pytest.mark.slow
@pytest.mark.parametrize("encoding", ["json", "msgpack"])
async def test_a_killed_server_goes_on_with_the_same_answer(server: Process, encoding: Any, tmp_path: Path) -> None:
    rng = random.Random(11)
    store = FileStore(tmp_path / "positions")
    async with Client(server.url, encoding=encoding, limits=QUICK, rng=rng, store=store) as client:
        session = await client.create_session(title="Killed")
        offsets: list[int] = [session.offset]
        kills = 0
        response = session.send("Tell me everything.", max_output_tokens=200)
        async for entry in session.events():
            if isinstance(entry, Snapshot):
                assert entry.offset == 1
                continue
            assert isinstance(entry, Event)
            offsets += range(entry.first_offset, entry.offset + 1)
            if entry.type == "response.output_text.delta" and kills < 2 and rng.random() < 0.2:
                kills += 1
                await server.kill()
                await server.start()
            if entry.type in ("response.completed", "response.incomplete"):
                break
        assert kills == 2
        assert offsets == list(range(1, session.offset + 1))
        text = await response.text()
        assert (await session.get())["state"]["items"][-1]["content"][0]["text"] == text
        ended = [item for item in session.items if item.role == "assistant"]
        assert [item.text for item in ended] == [text]
    async with Client(server.url, encoding="json" if encoding == "msgpack" else "msgpack") as other:
        assert [item.text for item in (await other.session(session.id)).items] == ["Tell me everything.", text]


async def test_commands_against_the_real_thing(server: Process) -> None:
    async with Client(server.url, limits=QUICK) as client:
        session = await client.create_session(title="One")
        first = session.send("Hello", max_output_tokens=20)
        await first.text()
        assert first.incomplete_reason == "max_output_tokens"
        assert first.usage is not None
        waiting = session.send("And?", max_output_tokens=400)
        queued = await session.send("Then?", queue=True, max_output_tokens=5)
        assert await waiting.cancel()
        assert not await waiting.cancel()
        assert waiting.incomplete_reason == "cancelled"
        await queued.text()
        assert first.item_id is not None
        edited = session.edit(first.item_id, "Hi", max_output_tokens=5)
        await edited.text()
        again = session.regenerate(max_output_tokens=5)
        await again.text()
        assert len(session.view.children(edited.item_id)) == 2
        await session.update(title="Two")
        await session.warm()
        assert [info.title async for info in client.sessions()] == ["Two"]
        await session.delete()
        assert [info async for info in client.sessions()] == []


# A script's chat gives up half a minute after the server went away; here a restart may take longer.
PATIENT_CHAT = """
import sys
sys.path.insert(0, "clients/python")
from sessile_client import terminal
import app
terminal._DIALS_OF_A_PIPE = None
sys.exit(app.main(["chat", *sys.argv[1:]]))
"""


@pytest.mark.slow
async def test_the_terminal_survives_a_restart_in_mid_answer(server: Process) -> None:
    chat = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        PATIENT_CHAT,
        "--url",
        server.url,
        cwd=CHECKOUT,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert chat.stdin is not None and chat.stdout is not None and chat.stderr is not None
    chat.stdin.write(b"Tell me everything.\n")
    note = (await asyncio.wait_for(chat.stderr.readline(), 60)).decode()
    session_id = note.split()[-1]
    begun = await asyncio.wait_for(chat.stdout.read(40), 60)
    await server.kill()
    assert b"no connection" in await asyncio.wait_for(chat.stderr.readline(), 60)
    await server.start()
    assert b"connected again" in await asyncio.wait_for(chat.stderr.readline(), 60)
    chat.stdin.write(b"/cancel\n")
    await chat.stdin.drain()
    chat.stdin.close()
    rest = await asyncio.wait_for(chat.stdout.read(), 60)
    assert await asyncio.wait_for(chat.wait(), 60) == 0
    async with Client(server.url, limits=QUICK) as client:
        session = await client.session(session_id)
        assert (begun + rest).decode() == session.items[-1].text.rstrip("\n") + "\n"
        assert session.items[-1].status == "incomplete"
