"""Keeps the history index of one process in its data folder, so that it outlives a restart.

What is put is appended about once a second, encrypted, to `history.places`. Once that holds half of what the index may
hold it becomes `history.places.old`, and the one before it goes: so the files are bounded, and nothing is ever
rewritten. A killed process loses the last second. How often a place was given is not kept: it counts anew.

Losing a file, or the key, costs tokens, never a conversation; what cannot be read is left out.
"""

from __future__ import annotations

import asyncio
import os
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple

import msgspec
import structlog
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from sessions.model.types import SHARED, SessionId, SessionKey, TenantId, UnixMs
from sessions.ports import Keys
from transport.history_index import HISTORY_PLACES_MAX, HISTORY_TTL_S, HistoryPlace, MemoryHistory

WRITE_S: Final = 1.0
_NAME: Final = "history.places"
_SIZE: Final = struct.Struct("<I")
_NONCE_BYTES: Final = 12
_KEY: Final = SessionKey(
    TenantId("\x7fhistory"), SessionId(f"{SHARED}places")
)  # no tenant's name has a control character

log = structlog.get_logger(__name__)


class _Record(NamedTuple):
    chain: bytes
    place: HistoryPlace
    until: UnixMs


_DECODER: Final = msgspec.msgpack.Decoder(list[_Record])


class StoredHistory(MemoryHistory):
    """A history index that outlives the process. As an async context manager it reads its files on entry, and appends
    new places to them about once a second."""

    def __init__(
        self,
        folder: Path,
        secret: bytes,
        *,
        clock: Callable[[], float],
        now_ms: Callable[[], UnixMs],
        places_max: int = HISTORY_PLACES_MAX,
    ) -> None:
        """`secret`: 32 bytes, the same at every start. `clock`: monotonic, in seconds."""
        super().__init__(clock, places_max=places_max)
        self._file = folder / _NAME
        self._older = folder / f"{_NAME}.old"
        self._records_max = max(1, places_max // 2)  # of a file
        self._cipher = AESGCM(secret)
        self._now_ms = now_ms
        self._new: list[_Record] = []
        self._records = 0  # in the newer file
        self._whole = 0  # its bytes, without half a write
        self._writing: asyncio.Task[None] | None = None

    async def __aenter__(self) -> StoredHistory:
        (older, _), (newer, self._whole) = await asyncio.to_thread(
            lambda: (self._read(self._older), self._read(self._file))
        )
        now = self._now_ms()
        for chain, place, until in (*older, *newer):
            if until > now:
                self._add_known(chain, place, (until - now) / 1000)
        self._records = len(newer)
        self._writing = asyncio.create_task(self._run())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._writing is not None:
            self._writing.cancel()
            await asyncio.wait([self._writing])
        await self._write_new()

    async def put(self, chain: bytes, place: HistoryPlace) -> None:
        await super().put(chain, place)
        self._new.append(_Record(chain, place, UnixMs(self._now_ms() + round(HISTORY_TTL_S * 1000))))

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(WRITE_S)
            await asyncio.shield(self._write_new())

    async def _write_new(self) -> None:
        records, self._new = self._new, []
        if not records:
            return
        try:
            await asyncio.to_thread(self._append, records)
        except OSError as failure:  # the folder is full, or read-only: the index goes on in memory
            log.warning("history_write_failed", error=str(failure))

    # -- blocking, one at a time -------------------------------------------------------------------------------------

    def _append(self, records: list[_Record]) -> None:
        if self._records >= self._records_max:
            self._file.replace(self._older)
            self._records = self._whole = 0
        nonce = os.urandom(_NONCE_BYTES)
        sealed = nonce + self._cipher.encrypt(nonce, msgspec.msgpack.encode(records), None)
        with self._file.open("ab") as file:
            os.fchmod(file.fileno(), 0o600)
            whole = min(self._whole, file.tell())
            file.truncate(whole)  # behind half a write, of a kill or on a full disk, nothing could be read
            file.write(_SIZE.pack(len(sealed)) + sealed)
        self._whole = whole + _SIZE.size + len(sealed)
        self._records += len(records)

    def _read(self, path: Path) -> tuple[list[_Record], int]:
        """Returns the file's records, and how many of its bytes are whole writes."""
        records: list[_Record] = []
        at = 0
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return records, at
        except OSError as failure:
            log.warning("history_read_failed", error=str(failure))
            return records, at
        while at + _SIZE.size <= len(data):
            (size,) = _SIZE.unpack_from(data, at)
            end = at + _SIZE.size + size
            if end > len(data):
                break
            sealed, at = data[at + _SIZE.size : end], end
            try:
                plain = self._cipher.decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], None)
                records += _DECODER.decode(plain)
            except (InvalidTag, ValueError, msgspec.MsgspecError):  # damaged, or under another key
                continue
        return records, at


@asynccontextmanager
async def open_history(
    folder: Path, keys: Keys | None, *, clock: Callable[[], float], now_ms: Callable[[], UnixMs]
) -> AsyncIterator[MemoryHistory]:
    """Opens the history index of one process: in `folder`, encrypted under a key of its own, or only in memory if there
    is no key store (`keys` None). Raises Unavailable."""
    if keys is None:
        yield MemoryHistory(clock)
        return
    key = await keys.current(_KEY)
    async with StoredHistory(folder, key.secret, clock=clock, now_ms=now_ms) as history:
        yield history
