"""The terminal chat: what a person (or a pipe) sees, against the scripted server, and its line editor."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import pty
import random
import signal
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from fake_server import FakeServer

from sessile_client import Limits
from sessile_client._bell import Bell
from sessile_client._http import socket_url
from sessile_client._screen import Screen
from sessile_client.terminal import Options, chat, main

PACKAGE = Path(__file__).parents[1]


@pytest.fixture
async def server() -> AsyncIterator[FakeServer]:
    async with FakeServer() as running:
        yield running


class Paper(io.StringIO):
    """A stream that can be waited on."""

    def __init__(self) -> None:
        super().__init__()
        self.changed = Bell()

    def write(self, text: str) -> int:
        written = super().write(text)
        self.changed.ring()
        return written

    async def shows(self, text: str) -> None:
        async def waiting() -> None:
            while text not in self.getvalue():
                await self.changed.wait()

        await asyncio.wait_for(waiting(), 60)


class Person:
    """Types lines, reads both streams."""

    def __init__(self, server: FakeServer, *, prompts: bool = True, session: str | None = None) -> None:
        self.out, self.notes = Paper(), Paper()
        self._lines: asyncio.Queue[str | None] = asyncio.Queue()
        options = Options(
            server.url, session, client={"limits": Limits(backoff_first_s=0.001), "rng": random.Random(6)}
        )
        screen = Screen(self.out, self.notes, prompts=prompts)
        self.program = asyncio.ensure_future(chat(options, self._read(), screen))

    async def _read(self) -> AsyncIterator[str]:
        while (line := await self._lines.get()) is not None:
            yield line

    def types(self, line: str) -> None:
        self._lines.put_nowait(line)

    async def leaves(self) -> int:
        self._lines.put_nowait(None)
        return await asyncio.wait_for(self.program, 60)

    async def is_prompted(self, times: int) -> None:
        async def waiting() -> None:
            while self.notes.getvalue().count("> ") < times:
                await self.notes.changed.wait()

        await asyncio.wait_for(waiting(), 60)


async def test_a_pipe_gets_the_answer_and_nothing_else(server: FakeServer) -> None:
    person = Person(server, prompts=False)
    person.types("Hello there")
    assert await person.leaves() == 0
    assert person.out.getvalue() == "you said Hello there \n"
    assert person.notes.getvalue() == f"-- session {next(iter(server.logs))}\n"


async def test_lines_that_come_too_early_wait_for_their_turn(server: FakeServer) -> None:
    person = Person(server, prompts=False)
    for line in ("/new Talk", "/list", "/help", "/nonsense", "", "/edit x"):
        person.types(line)
    assert await person.leaves() == 0
    notes = person.notes.getvalue()
    assert "  1  ses_" in notes
    assert "  Talk" in notes
    assert "/regenerate" in notes
    assert "/nonsense is no command" in notes
    assert "nothing to edit" in notes


async def test_a_conversation_with_every_command(server: FakeServer) -> None:
    person = Person(server)
    await person.is_prompted(1)
    person.types("one")
    await person.out.shows("you said one \n")
    await person.is_prompted(2)
    person.types("/regenerate")
    await person.out.shows("you said again \n")
    await person.is_prompted(3)
    person.types("/edit two")
    await person.out.shows("you said two \n")
    await person.is_prompted(4)
    person.types("/cancel")
    await person.notes.shows("no answer is being written")
    person.types("/new Second")
    person.types("/list")
    await person.notes.shows("  2  ses_")
    person.types("/open 2")
    await person.out.shows("> two\nyou said two \n")
    person.types("/open ses_none")
    await person.notes.shows("session_not_found")
    person.types("/history")
    person.types("/quit")
    assert await asyncio.wait_for(person.program, 60) == 0
    assert person.out.getvalue().count("> two\nyou said two \n") == 2


async def test_title_model_and_delete(server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    frames = []
    execute = server.execute

    def noting(frame: dict[str, object]) -> dict[str, object]:
        frames.append(frame)
        return execute(frame)

    monkeypatch.setattr(server, "execute", noting)
    person = Person(server)
    person.types("/model")
    await person.notes.shows("model: the server chooses")
    person.types("/model grande")
    await person.notes.shows("model: grande")
    person.types("/new")
    await person.notes.shows("session ses_")
    person.types("/title")
    await person.notes.shows("title: none yet")
    person.types("/title Rome")
    await person.notes.shows("title: Rome")
    person.types("/model")
    person.types("/new Second")
    person.types("/list")
    await person.notes.shows("  2  ses_")
    assert person.notes.getvalue().count("model: grande") == 2
    person.types("/model petite")
    await person.notes.shows("model: petite, from your next message on")
    person.types("one")
    await person.out.shows("you said one")
    person.types("two")
    await person.out.shows("you said two")
    named = [(frame["type"], frame.get("model")) for frame in frames if "create" in str(frame["type"])]
    assert named == [
        ("session.create", "grande"),
        ("session.create", "grande"),
        ("message.create", "petite"),
        ("message.create", None),
    ]
    first, second = server.logs
    assert server.logs[first].state()["title"] == "Rome"
    person.types("/delete")
    await person.notes.shows("deleted for every device")
    person.types(f"/delete {first}")
    await person.notes.shows(f"deleted {first}")
    person.types("/delete this")
    await person.notes.shows(f"deleted {second}")
    person.types("/title")
    await person.notes.shows("no session is open")
    assert all(log.deleted for log in server.logs.values())
    assert await person.leaves() == 0


@pytest.mark.parametrize("pieces", [1, 3, 1000])
def test_answers_are_broken_between_words(pieces: int) -> None:
    out = io.StringIO()
    screen = Screen(out, io.StringIO(), prompts=False, width=lambda: 12)
    text = "one two three four\n  code  stays\nincomprehensibilities are long 日本語日本語 x"
    for at in range(0, len(text), pieces):
        screen.say(text[at : at + pieces])
    screen.end()
    screen.say("again")
    screen.end()
    assert out.getvalue() == (
        "one two\nthree four\n  code\nstays\nincomprehensibilities\nare long\n日本語日本語\nx\nagain\n"
    )


def test_the_key_is_in_the_variable_or_a_file_and_never_goes_over_an_open_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    used: list[Options] = []

    async def no_chat(options: Options, *_: object) -> int:
        used.append(options)
        return 0

    monkeypatch.setattr("sessile_client.terminal.chat", no_chat)
    monkeypatch.setenv("SESSILE_API_KEY", "sk-x")
    assert main(["--url", "127.0.0.1:9"]) == 0
    assert main(["--url", "https://chat.example"]) == 0
    (tmp_path / "key").write_text("sk-y\n")
    assert main(["--api-key-file", str(tmp_path / "key")]) == 0
    monkeypatch.setenv("SESSILE_API_KEY", "sk-\nx")
    assert main([]) == 2
    assert "sk-" not in capsys.readouterr().err
    monkeypatch.setenv("SESSILE_API_KEY", "\ufeffsk-x\n")
    assert main([]) == 0
    assert used.pop().client["api_key"] == "sk-x"
    assert [each.client["api_key"] for each in used] == ["sk-x", "sk-x", "sk-y"]
    assert main(["--url", "http://chat.example"]) == 2
    assert "a key goes over https or wss only" in capsys.readouterr().err
    monkeypatch.delenv("SESSILE_API_KEY")
    assert main(["--url", "http://chat.example"]) == 0
    for wrong in ("ftp://chat.example", "http://", ""):
        assert main(["--url", wrong]) == 2
        assert "HOST:PORT is expected" in capsys.readouterr().err


async def test_an_answer_goes_on_when_the_server_comes_back(server: FakeServer) -> None:
    server.hold_after = 2
    person = Person(server)
    person.types("a long story")
    await person.out.shows("you said ")
    await server.stop()
    await person.notes.shows("no connection")
    await server.start()
    await person.notes.shows("connected again")
    server.release()
    await person.out.shows("you said a long story \n")
    assert await person.leaves() == 0
    assert person.out.getvalue() == "you said a long story \n"


async def test_cancel_stops_the_answer(server: FakeServer) -> None:
    server.hold_after = 2
    person = Person(server)
    person.types("a long story")
    await person.out.shows("you said ")
    person.types("/cancel")
    await person.notes.shows("stopped: cancelled")
    await person.is_prompted(2)
    person.types("/quit")
    assert await person.leaves() == 0
    assert person.out.getvalue() == "you said \n"


async def test_interrupt_stops_the_answer_and_then_leaves(server: FakeServer) -> None:
    server.hold_after = 2
    person = Person(server)
    person.types("a long story")
    await person.out.shows("you said ")
    signal.raise_signal(signal.SIGINT)
    await person.notes.shows("stopped: cancelled")
    await person.is_prompted(2)
    signal.raise_signal(signal.SIGINT)
    assert await asyncio.wait_for(person.program, 60) == 130


async def test_what_another_device_says_appears(server: FakeServer) -> None:
    first = Person(server)
    first.types("from one")
    await first.out.shows("you said from one \n")
    second = Person(server, session=next(iter(server.logs)))
    await second.out.shows("> from one\nyou said from one \n")
    second.types("from two")
    await second.out.shows("you said from two \n")
    await first.out.shows("> from two\nyou said from two \n")
    assert await first.leaves() == 0
    assert await second.leaves() == 0
    assert "> from two" not in second.out.getvalue()


async def test_retracted_words_are_shown_anew(server: FakeServer) -> None:
    person = Person(server)
    server.hold_after = 2
    person.types("secret")
    await person.out.shows("you said ")
    log = next(iter(server.logs.values()))
    added = next(event for event in log.events if event["type"] == "response.output_item.added")
    span = {"start": 0, "end": 3, "replacement": "we", "category": "x", "content_index": 0}
    log.put({"type": "content.retracted", "response_id": added["response_id"], "item_id": added["item"]["id"], **span})
    await person.notes.shows("the answer was corrected")
    server.release()
    await person.out.shows("we said secret \n")
    assert await person.leaves() == 0


async def test_a_refused_message_is_shown_and_the_chat_goes_on(server: FakeServer) -> None:
    person = Person(server)
    person.types("/new")
    await person.notes.shows("session ")
    server.refuse["message.create"] = {"type": "invalid_request_error", "code": "content_filter", "message": "No."}
    person.types("bad")
    await person.notes.shows("content_filter: No.")
    server.refuse.clear()
    person.types("good")
    await person.out.shows("you said good \n")
    assert await person.leaves() == 0


async def test_a_session_that_is_not_there_ends_the_chat_and_nothing_is_sent(server: FakeServer) -> None:
    person = Person(server, prompts=False, session="ses_01KBZZZZZZZZZZZZZZZZZZZZZZ")
    person.types("Hello")
    assert await person.leaves() == 2
    assert person.out.getvalue() == "" and not server.logs


async def test_control_characters_do_not_reach_the_terminal(server: FakeServer) -> None:
    server.answer = lambda text: ["\x1b]0;owned\x07", "a\r\nb\tc", " \x9b31m", "é👍🏽"]
    person = Person(server, prompts=False)
    person.types("x")
    assert await person.leaves() == 0
    assert person.out.getvalue() == "]0;owneda\nb\tc 31mé👍🏽\n"


async def test_a_client_that_stopped_ends_the_chat(server: FakeServer) -> None:
    server.hold_after = 1
    person = Person(server, prompts=False)
    person.types("x")
    await person.out.shows("you ")
    await server.close_all(4401)
    person.types("y")
    person.types("z")
    assert await person.leaves() == 1
    notes = person.notes.getvalue()
    assert notes.count("4401") == 1, "said once, however many lines were typed"
    assert "SESSILE_API_KEY" in notes, "and what to do"


@pytest.mark.parametrize("session", [None, "s1"])
async def test_a_pipe_gives_up_where_nobody_answers(session: str | None) -> None:
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))  # not listening: every attempt is refused
        url = f"ws://127.0.0.1:{reserved.getsockname()[1]}/v1/ws"
        options = Options(
            url, session, client={"limits": Limits(backoff_first_s=0.001), "rng": random.Random(6)}, dials_max=3
        )

        async def lines() -> AsyncIterator[str]:
            yield "hello"

        out, notes = io.StringIO(), io.StringIO()
        status = await asyncio.wait_for(chat(options, lines(), Screen(out, notes, prompts=False)), 60)
    assert (status, out.getvalue()) == (1, "")
    assert f"no connection to {url} after 3 attempts" in notes.getvalue()


async def test_output_that_nobody_takes_ends_the_chat(server: FakeServer) -> None:
    class Closed(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    async def lines() -> AsyncIterator[str]:
        yield "hello"

    options = Options(server.url)
    with pytest.raises(BrokenPipeError):
        await asyncio.wait_for(chat(options, lines(), Screen(Closed(), io.StringIO(), prompts=False)), 60)


async def test_the_process_itself_on_a_pipe(server: FakeServer) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "sessile_client.terminal",
        "--url",
        f"127.0.0.1:{server.port}",
        "--encoding",
        "json",
        cwd=PACKAGE,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, notes = await asyncio.wait_for(process.communicate(b"hello pipe\n"), 60)
    assert out.decode() == "you said hello pipe \n"
    assert process.returncode == 0, notes


def test_a_key_file_that_is_missing_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--key-file", str(tmp_path / "none")]) == 2
    assert "none" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("address", "url"),
    [
        ("127.0.0.1:8080", "ws://127.0.0.1:8080/v1/ws"),
        ("ws://127.0.0.1:8080", "ws://127.0.0.1:8080/v1/ws"),
        ("ws://127.0.0.1:8080/", "ws://127.0.0.1:8080/v1/ws"),
        ("[::1]:8080", "ws://[::1]:8080/v1/ws"),
        ("wss://chat.example/v1/ws?ticket=t", "wss://chat.example/v1/ws?ticket=t"),
        ("https://chat.example/behind", "wss://chat.example/behind/v1/ws"),
        ("http://127.0.0.1:8080", "ws://127.0.0.1:8080/v1/ws"),
        ("http://127.0.0.1:8080/", "ws://127.0.0.1:8080/v1/ws"),
        ("https://chat.example/", "wss://chat.example/v1/ws"),
        ("wss://chat.example/behind/a/path", "wss://chat.example/behind/a/path"),
        ("https://chat.example/v1/ws", "wss://chat.example/v1/ws"),
    ],
)
def test_an_address_is_taken_as_people_write_it(address: str, url: str) -> None:
    assert socket_url(address) == url


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
