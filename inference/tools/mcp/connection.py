"""One MCP server, kept running: connected, looked through, called, and begun again with growing pauses when it ends.

    run: start ─► initialize ─► list ─► review ─► serve (calls; lists again when it says so) ─► end ─► pause

What it listed last stays known while it is away, so that calls that wait for it are not taken for calls of no tool.
Nothing that it does holds up anybody else: its messages are bounded (`stdio`, `guarded_http`), its listings come at
most every `LIST_PAUSE_S`, its questions to us (sampling, elicitation, roots) are all refused.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from typing import Any, Final

import structlog
from mcp import ClientSession, MCPError
from mcp.types import (
    CONNECTION_CLOSED,
    CallToolRequest,
    CallToolRequestParams,
    CallToolResult,
    Implementation,
    ListToolsRequest,
    ListToolsResult,
    PaginatedRequestParams,
    Tool,
    ToolListChangedNotification,
)
from pydantic import ValidationError

from inference.tools.mcp.agreements import StoredPins
from inference.tools.mcp.catalogue import Listing, review, taken_over
from inference.tools.mcp.plain_words import plain_words
from inference.tools.mcp.server_table import McpServerTable
from inference.tools.mcp.stdio import McpStreams, Note
from inference.tools.outbound import ToolUnanswered, ToolUnreached
from inference.tools.secrets import SentSecrets
from sessions.backoff import Backoff
from sessions.model.errors import SessileError
from sessions.model.json_schema import SchemaFault
from sessions.ports import SchemaChecker
from sessions.server_tools import ReportProgress, ToolProgress

log = structlog.get_logger(__name__)

START_S: Final = 20.0
LIST_S: Final = 20.0
LIST_PAUSE_S: Final = 2.0
REFRESH_S: Final = 300.0
PING_S: Final = 30.0
PAGES_MAX: Final = 32
FIRST_PAUSE_S: Final = 0.5
PAUSE_MAX_S: Final = 60.0
SAID_MAX: Final = 200  # characters of what a server says of its failure
STEADY_S: Final = 30.0  # a connection that lasted so long was good: the next pause is the first again
_SESSION_LOST: Final = "Session terminated"  # the client's word for a server that does not know us any more
_ABOUT_US: Final = Implementation(name="sessile", version="1")

Connect = Callable[[SentSecrets, Note], AbstractAsyncContextManager[McpStreams]]
"""Opens the streams of an MCP server. It adds the secrets that it sends to the server to the `SentSecrets`, and notes
what the server or the connection to it says of a failure."""


class McpConnection:
    """A connection to one MCP server. `run` serves it; everything else may be called from other tasks of the loop."""

    def __init__(
        self,
        owner: str,
        label: str,
        table: McpServerTable,
        connect: Connect,
        *,
        schemas: SchemaChecker,
        pins: StoredPins,
    ) -> None:
        self.owner, self.label, self.table = owner, label, table
        self.listing = Listing()
        self.sent = SentSecrets()
        self._said = ""  # in this attempt, of a failure
        self._failure = "it has not answered yet"  # why the last attempt failed
        self.ready = asyncio.Event()  # connected and listed, now
        self.tried = asyncio.Event()  # once, with or without success
        self.unused = asyncio.Event()  # no call needs it
        self.unused.set()
        self._users = 0
        self._retired = False
        self._connect = connect
        self._schemas = schemas
        self._pins = pins
        self._session: ClientSession | None = None
        self._again = asyncio.Event()
        self._broken = asyncio.Event()

    @property
    def because(self) -> str:
        """Why it failed last, in brackets, for people and models; "" if nothing is known of that."""
        why = self._said or self._failure
        return f" ({why})" if why else ""

    def _note(self, words: str) -> None:
        self._said = " ".join(plain_words(self.sent.taken_out(words), SAID_MAX).split())

    async def run(self) -> None:
        """Keeps the server connected until this is cancelled; then it ends the server."""
        pauses, clock = Backoff(FIRST_PAUSE_S, PAUSE_MAX_S, random.Random()), asyncio.get_running_loop().time
        while True:
            begun_at, self._said = clock(), ""
            try:
                async with self._connected() as session:
                    await self._serve(session)
                why = "it has ended"
            except Exception as error:  # noqa: BLE001 - what a stranger's server brings about costs that server alone
                why = self.sent.taken_out(_reason(error))
                self._said = self._said or _in_short(error)
            self._failure = self._said
            task = asyncio.current_task()
            if task is not None and task.cancelling():  # the client's task group raised its own error in place of it
                raise asyncio.CancelledError
            if clock() - begun_at > STEADY_S:
                pauses.reset()
            pause_s = pauses.next_s()
            log.warning(
                "mcp_server_lost", server=self.label, owner=self.owner, reason=why, again_in_s=round(pause_s, 1)
            )
            self.tried.set()
            await asyncio.sleep(pause_s)

    def look_again(self) -> None:
        """Has the tools listed again soon, and compared with the agreements as they are then."""
        self._again.set()

    def retire(self) -> None:
        """Has no tools listed any more: the server was deleted or replaced, and stays connected only for calls."""
        self._retired = True

    @contextlib.contextmanager
    def in_use(self) -> Iterator[None]:
        """Marks the connection as needed by a call, with the pauses between its attempts."""
        self._users += 1
        self.unused.clear()
        try:
            yield
        finally:
            self._users -= 1
            if not self._users:
                self.unused.set()

    async def call(self, own_name: str, arguments: dict[str, Any], report: ReportProgress | None) -> CallToolResult:
        """Calls a tool. Raises ToolUnreached and ToolUnanswered. If cancelled, it tells the server that nobody waits
        for the answer."""
        session, broken = await self._present()
        request = CallToolRequest(params=CallToolRequestParams(name=own_name, arguments=arguments))

        async def progress(progress: float, total: float | None, message: str | None) -> None:
            if report is not None:
                words = plain_words(self.sent.taken_out(message), 512) if message else None
                report(ToolProgress(progress, total, words))

        try:
            return await session.send_request(request, CallToolResult, progress_callback=progress)
        except MCPError as error:
            if error.error.code == CONNECTION_CLOSED:
                broken.set()
                raise ToolUnanswered("it has ended") from error
            if error.error.message == _SESSION_LOST:
                broken.set()
                raise ToolUnreached from error
            raise
        except ValidationError as error:
            raise ToolUnanswered("its answer is malformed") from error

    async def _present(self) -> tuple[ClientSession, asyncio.Event]:
        """Returns the current session, and an event that is set when it breaks. If there is no session, waits for the
        next one."""
        while True:
            await self.ready.wait()
            if self._session is not None and not self._broken.is_set():
                return self._session, self._broken
            self.ready.clear()

    # -- one connection -----------------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def _connected(self) -> AsyncIterator[ClientSession]:
        self._broken = asyncio.Event()
        self._again.clear()
        async with (
            self._connect(self.sent, self._note) as streams,
            ClientSession(streams.read, streams.write, message_handler=self._heard, client_info=_ABOUT_US) as session,
        ):
            async with asyncio.timeout(START_S):
                await session.initialize()
            await self._list(session)
            self._session, self._broken = session, streams.closed
            self._failure = ""
            self.ready.set()
            self.tried.set()
            try:
                yield session
            finally:
                self._session = None
                self.ready.clear()

    async def _serve(self, session: ClientSession) -> None:
        """Serves the session until it has ended."""
        clock = asyncio.get_running_loop().time
        listed_at = clock()
        while not self._broken.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(PING_S):
                    await _first_of(self._again, self._broken)
            if self._broken.is_set():
                return
            if self._again.is_set() or clock() - listed_at > REFRESH_S:
                self._again.clear()
                await self._list(session)
                listed_at = clock()
                await asyncio.sleep(LIST_PAUSE_S)
            else:
                async with asyncio.timeout(START_S):
                    await session.send_ping()

    async def _heard(self, message: Any) -> None:
        if isinstance(message, ToolListChangedNotification):
            self._again.set()
        elif isinstance(message, Exception):
            log.info("mcp_transport_failed", server=self.label, reason=self.sent.taken_out(_reason(message)))

    async def _list(self, session: ClientSession) -> None:
        if self._retired:
            return
        listed = await self._pages(session)
        allow = self.table.allow
        tools, refused = taken_over(self.label, (tool for tool in listed if allow is None or tool.name in allow))
        for name, problem in [(tool.name, await self._schema_problem(tool.schema)) for tool in tools]:
            if problem:
                refused[name] = problem
        tools = [tool for tool in tools if tool.name not in refused]
        agreed = await self._pins.agreed(self.owner, self.label)
        found = review(tools, agreed or {}, begun=agreed is not None, takes_changes=self.table.changes == "take")
        if found.first or agreed is None:
            await self._pins.remember(self.owner, self.label, found.first)
        waiting = {tool.name: tool for tool in tools if tool.name in found.held}
        listing = Listing(found.shown, {**refused, **found.held}, waiting)
        if listing != self.listing:
            log.info("mcp_tools_listed", server=self.label, owner=self.owner, tools=len(found.shown))
            for name, why in list(listing.held.items())[:20]:
                if self.listing.held.get(name) != why:
                    log.warning("mcp_tool_held", server=self.label, owner=self.owner, tool=name, reason=why)
            self.listing = listing
            await self._pins.listed(self.owner, self.label, listing)

    async def _pages(self, session: ClientSession) -> list[Tool]:
        """Returns the tools that the server lists, up to a bound."""
        listed: list[Tool] = []
        cursor: str | None = None
        async with asyncio.timeout(LIST_S):
            for _ in range(PAGES_MAX):
                params = None if cursor is None else PaginatedRequestParams(cursor=cursor)
                page = await session.send_request(ListToolsRequest(params=params), ListToolsResult)
                for tool in page.tools[: self.table.tools_max + 1 - len(listed)]:
                    words = self.sent.taken_out(tool.description or "")
                    listed.append(tool.model_copy(update={"description": words}))
                cursor = page.next_cursor
                if cursor is None or len(listed) > self.table.tools_max:
                    break
        if cursor is not None or len(listed) > self.table.tools_max:
            log.warning("mcp_tools_left_out", server=self.label, owner=self.owner, tools_max=self.table.tools_max)
        return listed[: self.table.tools_max]

    async def _schema_problem(self, schema: dict[str, Any]) -> str:
        try:
            judged = await self._schemas.judge(schema)
        except SessileError as error:
            return f"its schema could not be judged ({error.code})"
        return f"its schema cannot be used: {judged}" if isinstance(judged, SchemaFault) else ""


async def _first_of(*events: asyncio.Event) -> None:
    waits = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for each in waits:
            each.cancel()


def _first(error: BaseException) -> BaseException:
    """Returns the first error in a group, or the error itself."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _in_short(error: BaseException) -> str:
    """Returns an error for users, without any words of the server; "" if there is no more to say than that it ended."""
    error = _first(error)
    if isinstance(error, TimeoutError):
        return "it does not answer in time"
    if isinstance(error, MCPError) and error.error.code != CONNECTION_CLOSED:
        return "it answers with an error"
    return ""


def _reason(error: BaseException) -> str:
    """Returns the first error in a group, for a log: at most one line of the server's own words."""
    error = _first(error)
    return f"{type(error).__name__}: {plain_words(str(error), 200)}" if str(error) else type(error).__name__
