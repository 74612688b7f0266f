"""The terminal chat in a terminal: what keys and pastes become, against the scripted server."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pty
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from fake_server import FakeServer

from sessile_client._bell import Bell

PACKAGE = Path(__file__).parents[1]
UP, LEFT, PASTE, END_OF_PASTE = "\x1b[A", "\x1b[D", "\x1b[200~", "\x1b[201~"


class Terminal:
    """A pseudo-terminal with the chat in it."""

    def __init__(self, process: asyncio.subprocess.Process, keyboard: int) -> None:
        self.process = process
        self.shown = ""
        self._keyboard = keyboard
        self._changed = Bell()
        self._ended = False
        os.set_blocking(keyboard, False)
        asyncio.get_running_loop().add_reader(keyboard, self._read)

    def _read(self) -> None:
        try:
            self.shown += os.read(self._keyboard, 65536).decode(errors="replace")
        except OSError:
            asyncio.get_running_loop().remove_reader(self._keyboard)
            self._ended = True
        self._changed.ring()

    async def types(self, keys: str) -> None:
        left = keys.encode()
        while left:
            try:
                left = left[os.write(self._keyboard, left) :]
            except BlockingIOError:
                await self._changed.wait()

    async def shows(self, text: str, times: int = 1) -> None:
        async def waiting() -> None:
            while self.shown.count(text) < times and not self._ended:
                await self._changed.wait()

        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(waiting(), 60)
        assert self.shown.count(text) >= times

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._keyboard)
        os.close(self._keyboard)


@pytest.fixture
async def server() -> AsyncIterator[FakeServer]:
    async with FakeServer() as running:
        yield running


@pytest.fixture
async def terminal(server: FakeServer) -> AsyncIterator[Terminal]:
    keyboard, screen = pty.openpty()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "sessile_client.terminal", "--url", server.url, "--encoding", "json"),
        cwd=PACKAGE,
        env={**os.environ, "TERM": "xterm-256color"},
        stdin=screen,
        stdout=screen,
        stderr=screen,
        start_new_session=True,
    )
    os.close(screen)
    opened = Terminal(process, keyboard)
    try:
        await opened.shows("\x1b[?2004h")  # it takes pastes
        yield opened
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        opened.close()


def sent_texts(server: FakeServer) -> list[str]:
    (log,) = server.logs.values()
    created = [event["item"] for event in log.events if event["type"] == "item.created"]
    return [part["text"] for item in created if item["role"] == "user" for part in item["content"]]


async def test_pasted_lines_are_one_message(server: FakeServer, terminal: Terminal) -> None:
    await terminal.types(f"{PASTE}line one\rline two\rline three{END_OF_PASTE}\r")
    await terminal.shows("you said line one")
    await terminal.types("\x04")
    assert await asyncio.wait_for(terminal.process.wait(), 60) == 0
    assert sent_texts(server) == ["line one\nline two\nline three"]


async def test_a_long_line_is_sent_whole(server: FakeServer, terminal: Terminal) -> None:
    line = f"{'x' * 4_994} whole"
    await terminal.types(line + "\r")
    await terminal.shows("said")
    await terminal.types("\x04")
    assert await asyncio.wait_for(terminal.process.wait(), 60) == 0
    assert sent_texts(server) == [line]


async def test_arrow_keys_edit_and_bring_back_earlier_lines(server: FakeServer, terminal: Terminal) -> None:
    await terminal.types(f"wrd{LEFT}{LEFT}o\r")
    await terminal.shows("you said word")
    await terminal.types(f"{UP}s\r")
    await terminal.shows("you said words")
    await terminal.types("\x04")
    assert await asyncio.wait_for(terminal.process.wait(), 60) == 0
    assert sent_texts(server) == ["word", "words"]
    assert "^[[" not in terminal.shown


async def test_what_is_typed_while_an_answer_is_written_stays_whole(server: FakeServer, terminal: Terminal) -> None:
    server.hold_after = 2
    await terminal.types("first\r")
    await terminal.shows("said")
    await terminal.types(f"{PASTE}one\rtwo{END_OF_PASTE}")
    await terminal.shows("two")
    server.release()
    await terminal.shows("you said first")
    await terminal.types("\r")
    await terminal.shows("you said one")
    await terminal.types("\x04")
    assert await asyncio.wait_for(terminal.process.wait(), 60) == 0
    assert sent_texts(server) == ["first", "one\ntwo"]


async def test_ctrl_c_stops_the_answer_and_then_leaves(server: FakeServer, terminal: Terminal) -> None:
    server.hold_after = 2
    await terminal.types("first\r")
    await terminal.shows("said")
    await terminal.types("\x03")
    await terminal.shows("stopped")
    await terminal.types("\x03")
    assert await asyncio.wait_for(terminal.process.wait(), 60) == 128 + signal.SIGINT
