"""Where positions outlive the process.

A position is (epoch, offset) together with the conversation as it stood there: one without the other would leave a
hole. Saving late is harmless (the server replays the difference), saving half is not: an implementation keeps or
replaces a position as a whole. The client saves when a session has caught up, when a response ends, once a second in
between, and when it is closed.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from ._wire import INTEGER_MAX


@dataclass(frozen=True)
class Position:
    """A session's log up to ``offset`` of ``epoch``, as a snapshot's ``state``."""

    epoch: str
    offset: int
    state: dict[str, Any]


class PositionStore(Protocol):
    """Keeps one position per session."""

    async def load(self, session: str) -> Position | None: ...

    async def save(self, session: str, position: Position) -> None: ...

    async def forget(self, session: str) -> None: ...


class MemoryStore:
    """Positions for the life of the process: for a client that is closed and opened again within it."""

    def __init__(self) -> None:
        self.positions: dict[str, Position] = {}

    async def load(self, session: str) -> Position | None:
        return self.positions.get(session)

    async def save(self, session: str, position: Position) -> None:
        self.positions[session] = position

    async def forget(self, session: str) -> None:
        self.positions.pop(session, None)


class FileStore:
    """One JSON file per session in a folder, replaced atomically; a damaged file counts as none."""

    def __init__(self, folder: str | Path) -> None:
        self._folder = Path(folder)

    def _path(self, session: str) -> Path:
        return json_path(self._folder, session)

    async def load(self, session: str) -> Position | None:
        return await asyncio.to_thread(self._read, session)

    async def save(self, session: str, position: Position) -> None:
        await asyncio.to_thread(write_json, self._path(session), {"session": session, **vars(position)})

    async def forget(self, session: str) -> None:
        await asyncio.to_thread(self._path(session).unlink, missing_ok=True)

    def _read(self, session: str) -> Position | None:
        try:
            raw = json.loads(self._path(session).read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            return None
        match raw:
            case {"session": str(name), "epoch": str(epoch), "offset": int(offset), "state": dict(state)} if (
                name == session and 0 <= offset <= INTEGER_MAX
            ):
                return Position(epoch, offset, state)
            case _:
                return None


def json_path(folder: Path, name: str) -> Path:
    """The file of ``name``, which is the peer's: it must not choose a path."""
    return folder / (hashlib.sha256(name.encode()).hexdigest()[:32] + ".json")


def write_json(path: Path, body: dict[str, Any]) -> None:
    """Write a file, synced, so that a reader finds the old one or the new one as a whole."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    draft = path.with_suffix(f".{os.getpid()}-{threading.get_ident()}.tmp")
    with open(draft, "w", encoding="utf-8") as out:
        json.dump(body, out, ensure_ascii=False)
        out.flush()
        os.fsync(out.fileno())
    os.replace(draft, path)
