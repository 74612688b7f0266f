"""Worker processes see nothing of the server's environment, and frames end where a pipe ends."""

from __future__ import annotations

import asyncio
import io
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import pytest

from inference.moderation.worker_client import ModerationWorkerClient
from inference.schemas.checker import SchemaWorkers
from inference.worker_process import encode_frame, end_worker, read_frame, receive_frame, start_worker

SECRET = "a secret of the server"


class Note(msgspec.Struct, frozen=True, array_like=True):
    text: str


NOTES = msgspec.msgpack.Decoder(Note)


async def schema_worker() -> tuple[int, Callable[[], Awaitable[None]]]:
    workers = SchemaWorkers(workers=1)
    await workers.judge({})
    process = workers.pool.workers[0].process
    assert process is not None
    return process.pid, workers.close


async def moderation_worker() -> tuple[int, Callable[[], Awaitable[None]]]:
    client = ModerationWorkerClient("test")
    await client.start()
    await client.load(b'{"policies":{}}', ())
    assert client._process is not None
    return client._process.pid, client.close


@pytest.mark.parametrize("start", [schema_worker, moderation_worker])
async def test_workers_get_nothing_of_the_environment(
    start: Callable[[], Awaitable[tuple[int, Callable[[], Awaitable[None]]]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SESSILE_PEER_TOKEN", "AWS_SECRET_ACCESS_KEY", "HOME_MADE"):
        monkeypatch.setenv(name, SECRET)
    pid, close = await start()
    try:
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    finally:
        await close()
    names = {variable.partition(b"=")[0].decode() for variable in variables if variable}
    assert names <= {"LANG", "PYTHONPATH", "LD_LIBRARY_PATH"} and "PYTHONPATH" in names
    assert SECRET.encode() not in b"".join(variables)


async def test_a_worker_that_has_ended_may_be_ended_again() -> None:
    process = await start_worker("inference.schemas.worker", "200", "96")
    os.kill(process.pid, 9)
    await end_worker(process)
    await end_worker(process)
    await end_worker(None)
    assert process.returncode == -9


async def test_frames_are_read_up_to_the_end_of_the_pipe() -> None:
    stream = io.BytesIO(encode_frame(Note("one")) + encode_frame(Note("two")) + b"\1\0")
    assert [read_frame(stream, NOTES) for _ in range(3)] == [Note("one"), Note("two"), None]
    for sent, bytes_max, expected in (
        (encode_frame(Note("one")), 100, None),
        (encode_frame(Note("one")), 4, ValueError),
        (encode_frame(Note("one"))[:-1], 100, EOFError),
        (b"\1\0", 100, EOFError),
    ):
        reader = asyncio.StreamReader()
        reader.feed_data(sent)
        reader.feed_eof()
        if expected is None:
            assert await receive_frame(reader, NOTES, bytes_max) == Note("one")
        else:
            with pytest.raises(expected):
                await receive_frame(reader, NOTES, bytes_max)
