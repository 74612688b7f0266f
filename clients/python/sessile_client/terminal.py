"""A chat in the terminal: ``./sessile chat``, or ``sessile-chat``.

Answers go to standard output, notes (connection, errors, help) to standard error, so a pipe gets the words alone:
``echo "Hello" | sessile-chat`` prints the answer and ends. What is shown is drawn from the session's log: messages
and answers of other devices appear too, and an answer that was being written when the server was killed goes on where
it stopped.

In a terminal, lines are edited, the arrow keys bring back earlier ones, what is pasted is one message, and Alt-Enter
begins a new line of one. Lines that begin with ``/`` are commands (``/help``); everything else is sent. What is sent
while an answer is being written waits for its end. Ctrl-C stops the answer, or leaves where none is being written.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ipaddress
import os
import shutil
import signal
import sys
import threading
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO
from urllib.parse import urlsplit

from ._fields import TurnOptions
from ._http import socket_url
from ._model_notice import model_notice
from ._notices import Disconnected, GoingAway, LinkNotice, Ready, Stopped, Warned
from ._screen import Follower, Screen
from .client import Client, SessionInfo
from .errors import ConnectionStopped, SessileError
from .response import Response
from .session import Session

_EXAMPLE = "Example: ./sessile chat --url ws://127.0.0.1:8080 --session ID\n\n"
_DIALS_OF_A_PIPE = 8  # about half a minute, in which a server has started again
_KEY_VARIABLE = "SESSILE_API_KEY"
_HELP = """\
/new [TITLE]     begin a new session          /regenerate   answer the last message again
/list            list the sessions            /edit TEXT    say the last message differently
/open ID | N     open a session, by id or     /cancel       stop the answer (or Ctrl-C)
                 by its number in the list    /history      show the conversation again
/title [TEXT]    show or change its title     /delete ID|N  delete a session, for every device
/model [NAME]    show or change the model     /delete this  delete the open one
                 from the next message on     /quit         leave (or end of file)
/help            this                         Alt-Enter     begin a new line of a message"""


@dataclass(frozen=True)
class Options:
    url: str = "ws://127.0.0.1:8080/v1/ws"
    session: str | None = None
    model: str | None = None
    instructions: str | None = None
    client: dict[str, Any] = field(default_factory=dict)
    dials_max: int | None = None
    """How many attempts to connect may fail, one after the other, before the chat ends; None: it never gives up."""


class Chat:
    """The terminal's program: lines in, commands out."""

    def __init__(self, client: Client, screen: Screen, options: Options) -> None:
        self._client = client
        self._screen = screen
        self._options = options
        self._model = options.model
        self._turn: TurnOptions = {}  # of the next turn of the open session
        self._follower: Follower | None = None
        self._following: asyncio.Task[None] | None = None
        self._listed: list[SessionInfo] = []
        self._idle = asyncio.Event()
        self._disconnected = False
        self._stop_noted = False
        self._unwritten: OSError | None = None
        self._failed_dials = 0
        self.gave_up = asyncio.Event()

    async def run(self, lines: AsyncIterator[str]) -> int:
        """Until ``/quit`` or the end of the lines, and then until what was sent is answered."""
        if self._options.session is not None:
            try:
                await self._open(self._options.session)
            except (SessileError, ValueError) as exc:
                self._screen.note(str(exc))
                return 2  # nothing is sent: a new session is not the one that was named
        self._screen.prompt()
        quitting = False
        async for line in lines:
            if line.strip() == "/quit":
                quitting = True
                break
            if line.strip():
                await self._try(self._line(line.strip()))
                if self._client.error is not None:
                    break
            elif not self._busy:
                self._screen.prompt()
        while self._busy and not quitting and self._client.error is None:
            self._idle.clear()
            await self._idle.wait()
        await self._leave()
        if self._unwritten is not None:
            raise self._unwritten
        if self._client.error is not None:
            self._note(self._client.error)
            return 1
        return 0

    @property
    def answering(self) -> bool:
        """An answer is being written, which Ctrl-C stops; otherwise it leaves."""
        return self._follower is not None and bool(self._follower.session.view.open)

    async def cancel(self) -> None:
        await self._try(self._cancel())

    def on_link(self, notice: LinkNotice) -> None:
        """Say once that the connection is lost, and once that it is back."""
        self._count_dials(notice)
        match notice:
            case Ready() if self._disconnected:
                self._disconnected = False
                self._screen.note("connected again")
            case Disconnected(code, reason, _) if not self._disconnected:
                self._disconnected = True
                self._screen.note(f"no connection ({reason or code}); trying again")
            case GoingAway(reason, _):
                self._screen.note(f"the server is leaving ({reason})")
            case Warned(error):
                self._screen.note(str(error))
            case Stopped():
                self._idle.set()

    def _count_dials(self, notice: LinkNotice) -> None:
        match notice:
            case Ready():
                self._failed_dials = 0
            case Disconnected():
                self._failed_dials += 1
                if self._failed_dials == self._options.dials_max:
                    self.gave_up.set()

    @property
    def _busy(self) -> bool:
        return self._follower is not None and self._follower.busy

    def _became_idle(self) -> None:
        if not self._idle.is_set():
            self._screen.prompt()
        self._idle.set()

    async def _try(self, work: Any) -> None:
        """Carry out one line; a refusal is shown, and the chat goes on."""
        try:
            await work
        except (SessileError, ValueError) as exc:
            self._note(exc)
            if not self._busy:
                self._screen.prompt()

    def _note(self, error: Exception) -> None:
        """Show an error; one that stopped the client once, and for a key what to do."""
        if error is not self._client.error:
            self._screen.note(str(error))
        elif not self._stop_noted:
            self._stop_noted = True
            self._screen.note(str(error))
            if isinstance(error, ConnectionStopped) and (error.close_code == 4401 or error.http_status == 401):
                self._screen.note("put the API key in SESSILE_API_KEY, or name its file with --key-file")

    async def _line(self, line: str) -> None:
        if not line.startswith("/"):
            await self._say(line)
            return
        command, _, rest = line.partition(" ")
        rest = rest.strip()
        match command:
            case "/new":
                await self._new(rest or None)
            case "/list":
                await self._list()
            case "/open":
                await self._open(rest)
            case "/cancel":
                await self._cancel()
            case "/regenerate":
                await self._expect(self._opened().session.regenerate(queue=True, **self._turn), None)
            case "/edit":
                await self._edit(rest)
            case "/title":
                await self._title(rest)
            case "/model":
                await self._switch_model(rest)
            case "/delete":
                await self._delete(rest)
            case "/history":
                self._opened().show_history()
            case "/help":
                self._screen.note(_HELP)
            case _:
                raise ValueError(f"{command} is no command; /help lists them")
        if not self._busy:
            self._screen.prompt()

    def _opened(self) -> Follower:
        if self._follower is None:
            raise ValueError("no session is open; say something, or /open one")
        return self._follower

    async def _say(self, text: str) -> None:
        if self._follower is None:
            await self._new(None)
        await self._expect(self._opened().session.send(text, queue=True, **self._turn), text)

    async def _expect(self, response: Response, text: str | None) -> None:
        """Wait for the acceptance, so that a refusal is shown where it belongs; the answer is drawn from the log."""
        follower = self._opened()
        self._idle.clear()
        entry = (response, text)
        follower.sent.append(entry)
        try:
            await response
        except SessileError:
            follower.sent.remove(entry)
            raise
        self._turn = {}
        if response.item_id is not None:
            follower.mine.add(response.item_id)

    async def _edit(self, text: str) -> None:
        session = self._opened().session
        if not text:
            raise ValueError("/edit TEXT: say how the last message should read")
        mine = next((item for item in reversed(session.items) if item.role == "user"), None)
        if mine is None:
            raise ValueError("there is nothing to edit yet")
        await self._expect(session.edit(mine.id, text, **self._turn), text)

    async def _cancel(self) -> None:
        if not await self._opened().session.cancel():
            self._screen.note("no answer is being written")

    async def _new(self, title: str | None) -> None:
        fields = {"title": title, "model": self._model, "instructions": self._options.instructions}
        given: Any = {name: value for name, value in fields.items() if value is not None}
        session = await self._client.create_session(**given)
        self._screen.note(f"session {session.id}")
        await self._follow(session, history=False)

    async def _open(self, which: str) -> None:
        if not which:
            raise ValueError("/open ID, or its number in the last /list")
        session = await self._client.session(self._id_of(which))
        self._screen.note(f"session {session.id}" + (f": {session.title}" if session.title else ""))
        await self._follow(session, history=True)

    def _id_of(self, which: str) -> str:
        """A session by its id, or by its number in the last list."""
        numbered = which.isdigit() and 1 <= int(which) <= len(self._listed)
        return self._listed[int(which) - 1].id if numbered else which

    async def _title(self, title: str) -> None:
        session = self._opened().session
        if title:
            await session.update(title=title)
        self._screen.note(f"title: {title or session.title or 'none yet; /title TEXT gives one'}")

    async def _switch_model(self, name: str) -> None:
        """The open session goes on with the model from the next turn on, and new sessions begin with it."""
        if not name:
            self._screen.note(f"model: {self._model or 'the server chooses'}, for new sessions")
            return
        self._model = name
        if self._follower is not None:
            self._turn = {"model": name}
        self._screen.note(f"model: {name}" + (", from your next message on" if self._turn else ""))

    async def _delete(self, which: str) -> None:
        if not which:
            raise ValueError("/delete ID, its number in the last /list, or `this`: it is deleted for every device")
        name = self._opened().session.id if which == "this" else self._id_of(which)
        if self._follower is not None and self._follower.session.id == name:
            await self._follower.session.delete()
            await self._leave()
        else:
            session = await self._client.session(name)
            await session.delete()
            await session.close()
        self._screen.note(f"deleted {name}")

    async def _list(self) -> None:
        self._listed = [info async for info in self._client.sessions(page=100)]
        if not self._listed:
            self._screen.note("no sessions yet")
        for number, info in enumerate(self._listed, 1):
            self._screen.note(f"{number:3}  {info.id}  {info.title or ''}".rstrip())

    async def _follow(self, session: Session, *, history: bool) -> None:
        if self._follower is not None and self._follower.session is session:
            return
        await self._leave()
        self._turn = {}
        self._follower = Follower(session, self._screen, self._became_idle, history=history)
        self._following = asyncio.create_task(self._watch(self._follower))
        await self._follower.begun.wait()

    async def _watch(self, follower: Follower) -> None:
        try:
            await follower.run()
        except SessileError as exc:
            self._screen.end()
            self._note(exc)
        except OSError as exc:
            self._unwritten = exc  # standard output takes no more
        follower.over = True
        follower.sent.clear()
        follower.begun.set()
        self._idle.set()

    async def _leave(self) -> None:
        following, self._following = self._following, None
        follower, self._follower = self._follower, None
        if following is not None and follower is not None:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
            await follower.session.close()
            self._screen.end()


async def chat(options: Options, lines: AsyncIterator[str], screen: Screen) -> int:
    """The whole program but for the process around it: ``lines`` in, the screen out, an exit status back."""
    client = Client(options.url, on_link=lambda notice: program.on_link(notice), **options.client)
    program = Chat(client, screen, options)
    async with client:
        work = asyncio.ensure_future(program.run(lines))
        giving_up = asyncio.create_task(program.gave_up.wait())
        giving_up.add_done_callback(lambda _: work.cancel())
        cancels: list[asyncio.Task[None]] = []

        def on_interrupt() -> None:
            if program.answering:
                cancels.append(asyncio.create_task(program.cancel()))
            else:
                work.cancel()

        loop = asyncio.get_running_loop()
        in_main_thread = threading.current_thread() is threading.main_thread()
        if in_main_thread:
            loop.add_signal_handler(signal.SIGINT, on_interrupt)
        try:
            return await work
        except asyncio.CancelledError:
            screen.end()
            if program.gave_up.is_set():
                screen.note(
                    f"no connection to {options.url} after {options.dials_max} attempts; is the server running?"
                )
                return 1
            return 130
        finally:
            giving_up.cancel()
            if in_main_thread:
                loop.remove_signal_handler(signal.SIGINT)


async def read_lines(source: TextIO) -> AsyncIterator[str]:
    """The lines of a blocking stream, read in a thread of its own that ends with the process."""
    loop = asyncio.get_running_loop()
    lines: asyncio.Queue[str] = asyncio.Queue()

    def read() -> None:
        # a loop that has closed meanwhile wants no more lines
        with contextlib.suppress(RuntimeError):
            for line in source:
                loop.call_soon_threadsafe(lines.put_nowait, line)
            loop.call_soon_threadsafe(lines.put_nowait, "")

    threading.Thread(target=read, name="sessile-chat-input", daemon=True).start()
    while line := await lines.get():
        yield line.rstrip("\r\n")


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="chat", description="Talk to a Sessile server in the terminal.", epilog=_EXAMPLE + _HELP
    )
    top.formatter_class = argparse.RawDescriptionHelpFormatter
    top.add_argument("--url", default=Options.url, help="address of the server (default: %(default)s)")
    top.add_argument("--session", metavar="ID", help="open this session")
    top.add_argument(
        "--key-file",
        "--api-key-file",
        metavar="FILE",
        type=Path,
        help=f"file with the API key, where it is not in {_KEY_VARIABLE}",
    )
    top.add_argument("--model", help="model of new sessions (default: the server's)")
    top.add_argument("--instructions", metavar="TEXT", help="instructions of new sessions")
    top.add_argument("--encoding", choices=["json", "msgpack"], default="msgpack", help="default: %(default)s")
    return top


def check_key_is_safe(url: str, key: str | None) -> None:
    """Raises ValueError where a key would go over an open line to another machine."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    try:
        loopback = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        loopback = False
    if key and parts.scheme == "ws" and not loopback:
        raise ValueError(f"--url {url}: a key goes over https or wss only, or to this machine")


def bare_key(key: str, where: str) -> str:
    """Returns a key without the byte order mark and the line end that editors and mounted secrets put around it. Raises
    ValueError, which repeats nothing of it, for one that no header can carry."""
    bare = key.removeprefix("\ufeff").strip()
    if not bare.isascii() or not bare.isprintable():
        raise ValueError(f"{where}: a key is one line of ASCII without control characters")
    return bare


def main(argv: list[str] | None = None) -> int:
    """Run the chat on the process' own streams; the exit status."""
    given = parser().parse_args(argv)
    settings: dict[str, Any] = {"encoding": given.encoding}
    try:
        if key := os.environ.get(_KEY_VARIABLE, ""):
            settings["api_key"] = bare_key(key, _KEY_VARIABLE)
        if given.key_file is not None:
            where = f"--key-file {given.key_file}"
            try:
                settings["api_key"] = bare_key(given.key_file.read_text(encoding="utf-8"), where)
            except OSError as exc:
                raise ValueError(f"{where}: {exc.strerror}") from exc
            except UnicodeDecodeError as exc:
                raise ValueError(f"{where}: it is not UTF-8; save it as UTF-8") from exc
        url = socket_url(given.url)
        check_key_is_safe(url, settings.get("api_key"))
    except ValueError as exc:
        print(f"chat: {exc}", file=sys.stderr)
        return 2
    dials_max = None if sys.stdin.isatty() else _DIALS_OF_A_PIPE  # a script is told; a person sees it and may wait
    options = Options(url, given.session, given.model, given.instructions, settings, dials_max)
    notice = model_notice(options.url, settings.get("api_key")) if sys.stdin.isatty() else None
    return asyncio.run(_talk(options, notice))


async def _talk(options: Options, notice: str | None) -> int:
    """Chats on the process' own streams, with an editor for lines where a person types them."""
    width = (lambda: shutil.get_terminal_size().columns) if sys.stdout.isatty() else None
    terminal = next((stream for stream in (sys.stdout, sys.stderr) if stream.isatty()), None)
    async with contextlib.AsyncExitStack() as stack:
        if terminal is None or not sys.stdin.isatty() or os.environ.get("TERM", "dumb") == "dumb":
            screen = Screen(sys.stdout, sys.stderr, prompts=sys.stdin.isatty() and sys.stdout.isatty(), width=width)
            lines = read_lines(sys.stdin)
        else:
            from ._line_editor import LineEditor  # a pipe does without

            editor = LineEditor(terminal)
            out, notes = (
                above if stream.isatty() else stream
                for stream, above in ((sys.stdout, editor.out), (sys.stderr, editor.notes))
            )
            screen = Screen(out, notes, prompts=False, width=width)
            await stack.enter_async_context(editor)
            lines = editor.lines()
        if notice is not None:
            screen.note(notice)
        return await chat(options, lines, screen)


if __name__ == "__main__":
    sys.exit(main())
