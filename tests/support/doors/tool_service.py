"""A service that stands in for those that tools call: it counts the effects of each path, knows keys, and can hang."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

from inference.tools.opening import open_tools
from inference.tools.tool_set import ToolSet
from persistence.memory.database import MemoryDatabase
from persistence.memory.journal import MemoryJournal
from persistence.memory.store import MemoryStore
from sessions.metrics import Metrics
from sessions.model.knowledge.files import FileQuotas
from sessions.ports import ServerTools
from sessions.schemas import InlineSchemaChecker
from sessions.store import Store
from tests.support.doors.assembly import strict_clock

LOOPBACK = 'networks = ["127.0.0.0/8"]\n'


class Asked(NamedTuple):
    """A request as it came."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes

    @property
    def key(self) -> str:
        return self.headers.get("idempotency-key", "")


class ToolService:
    """Listens within its `async with`. `answer` says what is answered; under a key that it knows, it says so again."""

    def __init__(self) -> None:
        self.asked: list[Asked] = []
        self.effects: Counter[str] = Counter()  # by key, or by target and body where there is none
        self.answer: Callable[[Asked], bytes] = lambda asked: reply({"ok": True})
        self.came = asyncio.Condition()
        self.hold: asyncio.Event | None = None  # what is answered waits for it, behind the effect
        self._known: dict[str, bytes] = {}
        self._open: set[asyncio.StreamWriter] = set()

    async def __aenter__(self) -> ToolService:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._server.close()
        for writer in list(self._open):
            writer.close()
        await self._server.wait_closed()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def wait_for(self, count: int) -> None:
        async with asyncio.timeout(60), self.came:
            await self.came.wait_for(lambda: len(self.asked) >= count)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        try:
            line = (await reader.readline()).decode()
            method, target, _ = line.split()
            headers: dict[str, str] = {}
            while header := (await reader.readline()).decode().strip():
                name, _, value = header.partition(":")
                headers[name.lower()] = value.strip()
            asked = Asked(method, target, headers, await reader.readexactly(int(headers.get("content-length", "0"))))
            answer = self._known.get(asked.key) if asked.key else None
            if answer is None:
                self.effects[asked.key or f"{asked.target} {asked.body.decode()}"] += 1
                answer = self.answer(asked)
                if asked.key:
                    self._known[asked.key] = answer
            async with self.came:
                self.asked.append(asked)
                self.came.notify_all()
            if self.hold is not None:
                await self.hold.wait()
            writer.write(answer)
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError, ValueError):
            return
        finally:
            self._open.discard(writer)
            writer.close()


def reply(value: Any, status: int = 200, *, headers: str = "") -> bytes:
    body = json.dumps(value).encode()
    return f"HTTP/1.1 {status} x\r\n{headers}content-length: {len(body)}\r\n\r\n".encode() + body


def tools_toml(service: ToolService, **tools: str) -> str:
    """A tools file of functions at a service: by name, what else stands in the table of each."""
    tables = [
        f'[tools.{name}]\nurl = "{service.url}/{name}"\n'
        'parameters = {type = "object", properties = {city = {type = "string"}}, required = ["city"]}\n' + more
        for name, more in tools.items()
    ]
    return LOOPBACK + "\n".join(tables)


@asynccontextmanager
async def opened_tools(
    path: Path, text: str, store: Store | MemoryDatabase | None = None, **more: Any
) -> AsyncIterator[ToolSet]:
    """`store`: that of the server, where files of code and added tools are; None: another one, and no files are
    kept."""
    path.write_text(text)
    settings = SimpleNamespace(tools=str(path), file_bytes=0 if store is None else 8 << 20)
    environment = {"TOOL_SECRET": "from the environment"}
    async with open_tools_of(settings, store or MemoryDatabase(), environment, **more) as tools:
        assert isinstance(tools, ToolSet)
        yield tools


def open_tools_of(
    settings: Any, store: Store | MemoryDatabase, environment: Mapping[str, str], **more: Any
) -> AbstractAsyncContextManager[ServerTools | None]:
    if isinstance(store, MemoryDatabase):
        store = MemoryStore(journal=MemoryJournal(store))
    given: dict[str, Any] = {"store": store, "now_ms": strict_clock(), "quotas": lambda _: FileQuotas(), **more}
    return open_tools(settings, Metrics(), environment, InlineSchemaChecker(), **given)
