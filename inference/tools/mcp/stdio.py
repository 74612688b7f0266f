"""Runs an MCP server as a process of its own and carries its messages, one a line, over its standard streams.

It gets none of the server's environment but PATH and a language, and what the tools file says. What it writes is read
up to `MESSAGE_BYTES_MAX` a line: a longer one, or one that never ends, ends it. What it writes to its error stream is
read, bounded and logged as text without control signs. It is ended with its whole process group.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import anyio
import structlog
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.client._transport import ReadStream, WriteStream
from mcp.shared.message import SessionMessage
from mcp.types import jsonrpc_message_adapter

from inference.tools.mcp.plain_words import plain_words
from inference.tools.secrets import SentSecrets

log = structlog.get_logger(__name__)

MESSAGE_BYTES_MAX: Final = 1 << 20
MESSAGES_PER_S: Final = 200.0
MESSAGES_BURST: Final = 400.0
END_S: Final = 2.0  # between the end of its input, SIGTERM and SIGKILL
EXIT_S: Final = 0.5  # between the end of its output and its own
_STDERR_LINES_MAX: Final = 50  # logged, of one process
_STDERR_BYTES: Final = 4_096
_LAUNCHER: Final = Path(__file__).with_name("launcher.py")


Note = Callable[[str], None]
"""Notes what a server, or the connection to it, said of its failure."""


class McpStreams(NamedTuple):
    """The streams that an MCP session reads from and writes to."""

    read: ReadStream[SessionMessage | Exception]
    write: WriteStream[SessionMessage]
    closed: asyncio.Event
    """Set once the server can send no more; never for a server with a URL."""


class StdioCommand(NamedTuple):
    """A command to run, with its environment. Only LANG is added to that, and PATH if it has none."""

    label: str
    command: Sequence[str]
    environment: Mapping[str, str]
    folder: str | None
    memory_bytes: int
    sent: SentSecrets
    """Secrets in its environment, which are removed from its output before that is logged."""
    note: Note
    """Gets why the command failed. What it wrote is for the log alone: it may be about the operator's machine."""


@contextlib.asynccontextmanager
async def stdio_streams(about: StdioCommand) -> AsyncIterator[McpStreams]:
    """Runs the process until the context ends. Raises OSError where it cannot be started."""
    environment = {"PATH": os.defpath, "LANG": "C.UTF-8", **about.environment}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-I", "-S", str(_LAUNCHER), str(os.getpid()), str(about.memory_bytes), *about.command),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=environment,
        cwd=about.folder or "/",
        start_new_session=True,
        limit=MESSAGE_BYTES_MAX,
    )
    log.info("mcp_server_started", server=about.label, pid=process.pid)
    to_session, read = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    closed = asyncio.Event()
    write, from_session = anyio.create_memory_object_stream[SessionMessage](0)
    works = [
        asyncio.create_task(_receive(about, process, to_session, closed)),
        asyncio.create_task(_send(process, from_session, closed)),
        asyncio.create_task(_log_errors(about, process)),
    ]
    try:
        yield McpStreams(read, write, closed)
    finally:
        for work in works:
            work.cancel()
        ending = asyncio.ensure_future(_end(process, works))
        cancelled: asyncio.CancelledError | None = None
        while not ending.done():  # whoever is in a hurry waits for this too, or the process would stay
            try:
                await asyncio.shield(ending)
            except asyncio.CancelledError as error:
                cancelled = error
        for stream in (to_session, read, write, from_session):
            stream.close()
        log.info("mcp_server_ended", server=about.label, pid=process.pid, status=process.returncode)
        if cancelled is not None:
            raise cancelled


async def _receive(
    about: StdioCommand,
    process: asyncio.subprocess.Process,
    to_session: MemoryObjectSendStream[SessionMessage | Exception],
    closed: asyncio.Event,
) -> None:
    assert process.stdout is not None
    room = MESSAGES_BURST
    clock = asyncio.get_running_loop().time
    last = clock()
    try:
        while line := await process.stdout.readline():
            room, last = min(MESSAGES_BURST, room + (clock() - last) * MESSAGES_PER_S) - 1, clock()
            if room < 0:  # it writes faster than anybody has use for: its pipe fills, and it waits
                await asyncio.sleep(-room / MESSAGES_PER_S)
            try:
                message = jsonrpc_message_adapter.validate_json(line, by_name=False)
            except ValueError:
                log.warning("mcp_message_malformed", server=about.label, bytes=len(line))
                continue
            await to_session.send(SessionMessage(message))
        with contextlib.suppress(TimeoutError):  # it may live on without output
            async with asyncio.timeout(EXIT_S):
                about.note(f"its command ended with status {await process.wait()}")
    except ValueError:  # StreamReader's, of a line beyond its limit
        log.warning("mcp_message_too_long", server=about.label, bytes_max=MESSAGE_BYTES_MAX)
        about.note("a message of it is too long")
    except (anyio.ClosedResourceError, anyio.BrokenResourceError, OSError):
        pass  # the session or the process has ended: both are seen elsewhere
    finally:
        closed.set()
        to_session.close()


async def _send(
    process: asyncio.subprocess.Process,
    from_session: MemoryObjectReceiveStream[SessionMessage],
    closed: asyncio.Event,
) -> None:
    assert process.stdin is not None
    try:
        async for each in from_session:
            line = each.message.model_dump_json(by_alias=True, exclude_unset=True)
            process.stdin.write(line.encode() + b"\n")
            await process.stdin.drain()
    except (anyio.ClosedResourceError, anyio.BrokenResourceError, OSError):
        closed.set()


async def _log_errors(about: StdioCommand, process: asyncio.subprocess.Process) -> None:
    assert process.stderr is not None
    logged = 0
    while chunk := await process.stderr.read(_STDERR_BYTES):
        for line in chunk.decode(errors="replace").splitlines():
            if not line.strip():
                continue
            if logged < _STDERR_LINES_MAX:
                logged += 1
                log.info("mcp_server_wrote", server=about.label, text=plain_words(about.sent.taken_out(line), 512))


async def _end(process: asyncio.subprocess.Process, works: Sequence[asyncio.Task[None]]) -> None:
    await asyncio.gather(*works, return_exceptions=True)
    if process.stdin is not None:
        process.stdin.close()
    for number in (0, signal.SIGTERM, signal.SIGKILL):
        if number:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, number)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(END_S):
                await _exited(process)
                break
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)  # what it has left behind in its group


async def _exited(process: asyncio.subprocess.Process) -> None:
    """Waits for the process's end and reads its output meanwhile: one that is stuck writing would never end."""
    assert process.stdout is not None and process.stderr is not None
    streams = [asyncio.create_task(_drained(stream)) for stream in (process.stdout, process.stderr)]
    try:
        await process.wait()
    finally:
        for each in streams:
            each.cancel()
        await asyncio.gather(*streams, return_exceptions=True)


async def _drained(stream: asyncio.StreamReader) -> None:
    while await stream.read(1 << 16):
        pass
