"""Starts and ends the server's worker processes, and carries their frames: msgpack behind its length, over pipes.

A worker takes what strangers wrote through libraries of others, so it gets none of the server's environment, where
secrets are: only what Python needs to find the same modules. It shares no pipe but its own two and the server's log.
Knows nothing of what the frames hold: `schemas.frames` and `moderation.worker_frames` do.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import sysconfig
from pathlib import Path
from typing import BinaryIO, Final, TypeVar

import msgspec

ROOT: Final = Path(__file__).resolve().parents[1]
_READ_BYTES: Final = 1 << 20  # how many bytes are read ahead from a pipe
_LENGTH_BYTES: Final = 4

T = TypeVar("T")
_encode = msgspec.msgpack.Encoder().encode


async def start_worker(module: str, *arguments: str) -> asyncio.subprocess.Process:
    """Starts a Python module as a process with pipes as its standard streams. Raises OSError."""
    options = () if sys.pycache_prefix is None else ("-X", f"pycache_prefix={sys.pycache_prefix}")
    return await asyncio.create_subprocess_exec(
        sys.executable,
        *options,
        "-m",
        module,
        *arguments,
        cwd=ROOT,
        env=worker_environment(),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=_READ_BYTES,
    )


async def end_worker(process: asyncio.subprocess.Process | None) -> None:
    """Kills a worker's process; returns when it has ended."""
    if process is not None:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
        await process.wait()


def worker_environment() -> dict[str, str]:
    """Returns the environment of a worker, complete: the module search path, and the library path if Python itself is a
    shared library."""
    environment = {"LANG": "C.UTF-8", "PYTHONPATH": os.pathsep.join(sys.path)}
    if sysconfig.get_config_var("Py_ENABLE_SHARED"):
        environment["LD_LIBRARY_PATH"] = str(sysconfig.get_config_var("LIBDIR"))
    return environment


def encode_frame(message: msgspec.Struct) -> bytes:
    body = _encode(message)
    return len(body).to_bytes(_LENGTH_BYTES, "little") + body


def read_frame(stream: BinaryIO, decoder: msgspec.msgpack.Decoder[T]) -> T | None:
    """Reads a frame, in the worker; blocks until there is one. Returns None when the server has ended."""
    head = stream.read(_LENGTH_BYTES)
    if len(head) < _LENGTH_BYTES:
        return None
    return decoder.decode(stream.read(int.from_bytes(head, "little")))


async def receive_frame(stream: asyncio.StreamReader, decoder: msgspec.msgpack.Decoder[T], bytes_max: int) -> T:
    """Reads a frame, in the server. Raises EOFError when the worker has ended, ValueError for a malformed frame."""
    size = int.from_bytes(await stream.readexactly(_LENGTH_BYTES), "little")
    if size > bytes_max:
        raise ValueError(f"a frame of {size} bytes")
    return decoder.decode(await stream.readexactly(size))
