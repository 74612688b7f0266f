"""Worker processes: pools, frames, an environment without secrets, folders that nobody else can enter."""

from __future__ import annotations

import asyncio
import io
import os
import signal
import stat
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import pytest

from inference.moderation.worker_client import ModerationWorkerClient
from inference.private_folder import SOCKET_PATH_MAX, PrivateFolder, create_socket_folder, remove_abandoned
from inference.schemas.checker import SchemaWorkers
from inference.schemas.frames import SchemaReply, SchemaRequest, read_reply
from inference.worker_pool import PoolErrors, WorkerCommand, WorkerEnded, WorkerPool
from inference.worker_process import encode_frame, end_worker, read_frame, receive_frame, start_worker
from sessions.model.errors import Overloaded, Unavailable

# -- worker pool
COMMAND = WorkerCommand("inference.schemas.worker", ("200", "96"), read_reply, 60.0)
ERRORS = PoolErrors(lambda: Overloaded("overloaded", "full"), lambda: Unavailable("schemas_unavailable", "none"))
REQUEST = SchemaRequest(b"{}")


def pool_of(
    command: WorkerCommand[SchemaReply] = COMMAND, *, waiting_max: int = 1
) -> WorkerPool[SchemaRequest, SchemaReply]:
    return WorkerPool(command, ERRORS, workers=1, waiting_max=waiting_max)


def no_answer(_: WorkerEnded) -> None:
    return None


async def test_who_waits_beyond_the_bound_is_refused_and_a_close_ends_who_waits() -> None:
    pool = pool_of()
    running = asyncio.create_task(pool.exchange(REQUEST, no_answer))
    waiting = asyncio.create_task(pool.exchange(REQUEST, no_answer))
    await asyncio.sleep(0)
    with pytest.raises(Overloaded):
        await pool.exchange(REQUEST, no_answer)
    await pool.close()
    for call in (running, waiting):
        with pytest.raises(Unavailable, match=r"^draining: "):
            await call
    with pytest.raises(Unavailable):
        await pool.exchange(REQUEST, no_answer)  # starts no process that nobody would end


async def test_a_cancelled_call_leaves_its_worker_to_the_next() -> None:
    pool = pool_of()
    try:
        left = asyncio.create_task(pool.exchange(REQUEST, no_answer))
        await asyncio.sleep(0)
        left.cancel()
        assert (await pool.exchange(REQUEST, no_answer)).size is not None
        assert left.cancelled()
    finally:
        await pool.close()


async def test_a_worker_that_is_killed_is_followed_by_a_new_one_or_its_end_is_the_answer() -> None:
    pool = pool_of()
    refusal = SchemaReply(problem="it was killed")
    ends: list[tuple[int | None, bool]] = []

    def on_end(ended: WorkerEnded) -> SchemaReply | None:
        ends.append((ended.signal, ended.used))
        return refusal if len(ends) > 1 else None

    try:
        await pool.exchange(REQUEST, no_answer)
        for expected in (None, refusal.problem):
            (worker,) = pool.workers
            assert worker.process is not None and worker.process.stdin is not None
            worker.process.send_signal(signal.SIGSTOP)  # so that it is there when the request comes
            call = asyncio.create_task(pool.exchange(REQUEST, on_end))
            await asyncio.sleep(0)
            worker.process.send_signal(signal.SIGKILL)
            assert (await call).problem == expected
        assert ends == [(signal.SIGKILL, True)] * 2
    finally:
        await pool.close()


async def test_a_worker_that_cannot_be_started_is_an_error() -> None:
    pool = pool_of(COMMAND._replace(module="inference.no_such_module"))
    with pytest.raises(Unavailable, match=r"^schemas_unavailable: "):
        await pool.exchange(REQUEST, no_answer)
    await pool.close()


# -- worker process
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


# -- private folder
def test_a_folder_is_its_owners_alone_and_goes_with_it(tmp_path: Path) -> None:
    folder = PrivateFolder(tmp_path, "mine-")
    assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700
    assert remove_abandoned(tmp_path, "mine-") == 0 and folder.path.exists()
    folder.close()
    folder.close()
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_process_left_goes_at_the_next_start(tmp_path: Path) -> None:
    left = tmp_path / "mine-left"
    left.mkdir()
    (left / "owner.lock").touch()
    (tmp_path / "theirs-left").mkdir()
    PrivateFolder(tmp_path, "mine-").close()
    assert [each.name for each in tmp_path.iterdir()] == ["theirs-left"]


def test_a_temporary_folder_with_a_long_path_is_passed_over(tmp_path: Path) -> None:
    long = tmp_path / ("x" * SOCKET_PATH_MAX)
    long.mkdir()
    folder = create_socket_folder(10, (long, Path("/tmp")))
    try:
        assert folder.path.parent == Path("/tmp") and len(str(folder.path / ("n" * 10))) <= SOCKET_PATH_MAX
    finally:
        folder.close()


def test_without_any_it_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="TMPDIR"):
        create_socket_folder(10, (tmp_path / ("x" * SOCKET_PATH_MAX),))
    with pytest.raises(Unavailable, match="missing"):
        create_socket_folder(10, (Path("/tmp/missing"),))
