"""Snapshots in host memory: payloads as files in the staging folder, and who is using them."""

from __future__ import annotations

import array
import asyncio
from pathlib import Path
from typing import BinaryIO, ClassVar, Literal

from inference.kv.envelope import SnapshotManifest, SnapshotRefused
from sessions.model.types import SessionKey


class HostSnapshot:
    """A payload in the staging folder. The tiers' own; engines only hand it back."""

    __slots__ = (
        "bytes",
        "freed",
        "gone",
        "key",
        "manifest",
        "moving",
        "parked",
        "path",
        "tagging",
        "tokens",
        "used_s",
        "users",
    )

    tier: ClassVar[Literal["host"]] = "host"

    def __init__(self, key: SessionKey, tokens: array.array[int], path: Path, size: int) -> None:
        self.key = key
        self.tokens = tokens
        self.path = path
        self.bytes = size
        self.used_s = 0.0
        self.parked = False
        self.users = 0  # somebody reads the file: it is not evicted meanwhile
        self.moving = False  # on its way to disk
        self.gone = False  # out of the index: nobody may begin to use it
        self.freed = False
        self.manifest: SnapshotManifest | None = None  # once tagged
        self.tagging: asyncio.Task[None] | None = None


class PendingHostSnapshot:
    """A session's snapshot on its way into host memory."""

    __slots__ = ("revoked",)

    def __init__(self) -> None:
        self.revoked = False  # the session has been erased meanwhile


def create(path: Path) -> BinaryIO:
    """Blocking. Raises Refused."""
    try:
        return path.open("wb", buffering=0)
    except OSError as exc:
        raise SnapshotRefused("no_room") from exc


async def append(file: BinaryIO, part: bytes) -> None:
    """Raises Refused."""
    writing = asyncio.ensure_future(asyncio.to_thread(file.write, part))
    try:
        await asyncio.shield(writing)
    except OSError as exc:
        raise SnapshotRefused("no_room") from exc
    except asyncio.CancelledError:
        await asyncio.wait([writing])  # the file must not be closed under the thread
        raise
