"""vLLM's processes as the front sees them: deaths, reports, who watches whom."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import msgspec
import pytest

from inference import standby as standby_module
from inference.concurrency_gate import ConcurrencyGate, GatedRun
from inference.process_environment import only_handed_over
from inference.standby import Standby
from inference.vllm import supervisor as module
from inference.vllm.crash_isolation import CrashIsolation
from inference.vllm.supervisor import VllmSupervisor
from inference.vllm.worker_events import (
    MENTIONS_NAME,
    SOCKET_NAME,
    BlocksLoaded,
    BlocksSaved,
    Report,
    WorkerEventListener,
    WorkerEventSender,
)
from sessions.model.errors import Unavailable
from sessions.model.types import TenantId
from tests.support.engines.kv import key
from tests.support.virtual_time import virtual


# -- supervisor
class Ground:
    """A gate and its supervisor, over a vLLM that is two flags."""

    def __init__(self) -> None:
        self.gate = ConcurrencyGate(1, 8)
        self.is_dead = False
        self.refusals = 0
        self.deaths = 0
        self.starts = 0
        self.may_start = asyncio.Event()
        self.may_start.set()
        self.supervisor = VllmSupervisor(
            self.gate, is_dead=lambda: self.is_dead, on_death=self._on_death, restart=self._restart
        )
        self.supervisor.started()

    async def let_in(self) -> GatedRun:
        run = GatedRun(TenantId("t"), 0, 1.0, 8, pauses=False)
        await self.gate.acquire(run)
        return run

    def _on_death(self) -> None:
        self.deaths += 1

    async def _restart(self, wanted: Callable[[], bool]) -> None:
        await self.may_start.wait()
        if not wanted():
            return
        if self.refusals:
            self.refusals -= 1
            raise OSError("no memory")
        self.starts += 1
        self.is_dead = False


@virtual
async def test_a_death_that_nobody_hears_of_is_found_by_looking() -> None:
    ground = Ground()
    ground.is_dead = True
    await asyncio.sleep(module.WATCH_S * 1.5)
    await ground.supervisor.restarted()
    assert (ground.deaths, ground.starts, ground.supervisor.unavailable) == (1, 1, None)
    await ground.supervisor.close()


@virtual
async def test_who_waits_goes_on_waiting_and_runs_when_it_is_back() -> None:
    ground = Ground()
    running = await ground.let_in()
    before = asyncio.create_task(ground.let_in())
    await asyncio.sleep(0)
    ground.may_start.clear()
    ground.supervisor.mark_dead()
    ground.supervisor.mark_dead()
    ground.gate.leave(running)
    assert ground.supervisor.refusal is None
    after = asyncio.create_task(ground.let_in())
    await asyncio.sleep(30.0)
    assert not before.done() and not after.done() and ground.gate.waiting == 2
    ground.may_start.set()
    second = await before
    assert ground.deaths == 1 and not after.done()
    ground.gate.leave(second)
    await after
    await ground.supervisor.close()


@virtual
async def test_when_it_does_not_start_everybody_is_told_until_it_does() -> None:
    ground = Ground()
    ground.refusals = len(module.AGAIN_S) + 2
    ground.may_start.clear()
    ground.supervisor.mark_dead()
    waiting = asyncio.create_task(ground.let_in())
    await asyncio.sleep(0)
    ground.may_start.set()
    with pytest.raises(Unavailable) as told:
        await waiting
    assert told.value.retryable and ground.supervisor.refusal is ground.supervisor.unavailable is told.value
    await ground.supervisor.restarted()
    assert ground.starts == 1 and ground.supervisor.refusal is None
    await ground.let_in()
    await ground.supervisor.close()


@virtual
async def test_closed_while_it_begins_again_it_stays_closed() -> None:
    ground = Ground()
    ground.may_start.clear()
    ground.supervisor.mark_dead()
    waiting = asyncio.create_task(ground.let_in())
    await asyncio.sleep(0)
    closing = asyncio.create_task(ground.supervisor.close())
    with pytest.raises(Unavailable) as told:
        await waiting
    assert "closed" in told.value.public_message
    ground.may_start.set()
    await closing
    assert ground.starts == 0 and ground.supervisor.refusal is told.value


# -- crash isolation
async def test_who_ran_when_it_died_begins_again_one_at_a_time() -> None:
    isolation, began, go_on = CrashIsolation(), list[str](), asyncio.Event()
    isolation.suspect([key("a"), key("b")])

    async def run(name: str, *, speaks: bool) -> None:
        async with isolation.of(key(name)) as passed:
            began.append(name)
            if speaks:
                passed()
            await go_on.wait()

    first = asyncio.create_task(run("a", speaks=False))
    tasks = [asyncio.create_task(run("b", speaks=True)), asyncio.create_task(run("c", speaks=True))]
    await asyncio.sleep(0)
    assert began == ["a", "c"], "b waits until a has said something or ended; c was not there"
    first.cancel()
    await asyncio.wait([first])
    await asyncio.sleep(0)
    assert began == ["a", "c", "b"]
    assert key("a") in isolation and key("b") not in isolation
    go_on.set()
    await asyncio.gather(*tasks)
    await run("a", speaks=True)
    assert key("a") not in isolation


async def test_a_suspect_that_is_cancelled_while_it_waits_leaves_nothing() -> None:
    isolation = CrashIsolation()
    isolation.suspect([key("a"), key("b")])
    async with isolation.of(key("a")) as passed:
        waiting = asyncio.create_task(isolation.of(key("b")).__aenter__())
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
        passed()
    isolation.forget(key("b"))
    async with isolation.of(key("b")):
        assert key("b") not in isolation


# -- worker events
async def test_reports_arrive_and_nonsense_is_passed_over(tmp_path: Path) -> None:
    heard: list[Report] = []
    reports: list[Report] = []
    arrived = asyncio.Event()

    def hear(report: Report) -> None:
        heard.append(report)
        if reports == heard:
            arrived.set()

    listener = WorkerEventListener(tmp_path, hear)
    sender = WorkerEventSender(tmp_path)
    for number in range(1000):  # nobody reads yet: what has no room is not waited for
        sender.mention(BlocksSaved("r", 0, number, False))
    listener._read(listener._sockets[tmp_path / MENTIONS_NAME])
    assert [report.num_blocks for report in heard if isinstance(report, BlocksSaved)] == list(range(len(heard))) != []
    heard.clear()
    reports += [BlocksSaved("r", 0, 3, True), BlocksLoaded("r", 0, 10, 0.5, 0, "bad_chunk")]
    sender.send(reports[0])
    sender._socket.sendto(b"\xc1", str(tmp_path / "front.sock"))
    sender.send(reports[1])
    async with asyncio.timeout(60):
        await arrived.wait()
    assert heard == reports
    listener.close()
    sender.send(reports[0])  # nobody listens: nothing happens
    sender.close()


async def test_the_end_of_a_file_waits_for_a_front_that_is_slow_to_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[Report] = []
    listener = WorkerEventListener(tmp_path, heard.append)
    asyncio.get_running_loop().remove_reader(listener._sockets[tmp_path / SOCKET_NAME])  # it does not read for now
    sender = WorkerEventSender(tmp_path)
    sender._socket.setblocking(False)
    told = 0
    with contextlib.suppress(BlockingIOError):
        while True:
            sender._socket.sendto(msgspec.msgpack.encode(BlocksSaved("r", 0, told, False)), str(tmp_path / SOCKET_NAME))
            told += 1
    full, tries = threading.Event(), 0

    class Impatient:
        """A socket whose every wait for room is over at once."""

        def sendto(self, data: bytes, path: str) -> None:
            nonlocal tries
            try:
                real.sendto(data, path)
            except BlockingIOError:
                tries += 1
                if tries == 100:
                    full.set()
                raise TimeoutError from None

        def close(self) -> None:
            real.close()

    real = sender._socket
    monkeypatch.setattr(sender, "_socket", Impatient())
    closing = asyncio.create_task(asyncio.to_thread(sender.send, BlocksSaved("r", 0, told, True)))
    assert await asyncio.to_thread(full.wait, 60)
    while not closing.done():
        listener._read(listener._sockets[tmp_path / SOCKET_NAME])
        await asyncio.sleep(0)
    listener._read(listener._sockets[tmp_path / SOCKET_NAME])
    assert heard[-1] == BlocksSaved("r", 0, told, True) and len(heard) == told + 1
    sender.close()
    sender.send(heard[-1])  # nobody waits for room any more
    listener.close()


# -- parent watchdog
ROOT = Path(__file__).resolve().parents[4]
WATCHING = """
import os, sys
from inference.vllm.parent_watchdog import exit_with_parent
exit_with_parent({front})
print(os.getpid(), flush=True)
sys.stdin.read()
"""
LATE = """
import multiprocessing, os
from inference.vllm.parent_watchdog import exit_with_parent
front, gate = os.getpid(), os.dup(0)
def begin():
    print(os.getpid(), flush=True)
    os.read(gate, 1)
    exit_with_parent(front)
    os.read(gate, 1)
multiprocessing.get_context("fork").Process(target=begin).start()
"""
PARENT = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]])"


def gone(process: int, patience_s: float) -> bool:
    poll = select.poll()
    poll.register(process, select.POLLIN)
    return bool(poll.poll(1000 * patience_s))


@contextlib.contextmanager
def killed_parent(*arguments: str) -> Iterator[tuple[IO[bytes], int]]:
    """A parent that tells its child's number and is killed then: what is the child's input too, and the child as a
    descriptor. In the end the input is closed, and nobody is left."""
    command = [sys.executable, "-c", *arguments]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdin is not None and parent.stdout is not None
        child = os.pidfd_open(int(parent.stdout.readline()))
        try:
            parent.send_signal(signal.SIGKILL)
            parent.wait(10)
            yield parent.stdin, child
        finally:
            parent.stdin.close()
            assert gone(child, 10)
            os.close(child)


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="Linux only")
@pytest.mark.parametrize(("front", "ends"), [("os.getppid()", True), ("1 << 30", False)])
def test_a_watching_process_ends_with_its_parent(front: str, ends: bool) -> None:
    with killed_parent(PARENT, WATCHING.format(front=front)) as (_, child):
        assert gone(child, 10 if ends else 0.2) is ends  # its input is still open: only the watch ends it


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="Linux only")
def test_one_whose_parent_was_killed_before_it_could_watch_ends_too() -> None:
    with killed_parent(LATE) as (input, child):
        input.write(b"x")
        input.flush()
        assert gone(child, 10)  # its input is still open


# -- standby
START_S = 15.0


class Core:
    """Two flags and what was done to it."""

    def __init__(self) -> None:
        self.is_dead = False
        self.closed = 0
        self.reaped = 0

    async def close(self) -> None:
        self.closed += 1

    async def reap(self) -> None:
        self.reaped += 1


class StandbyGround:
    def __init__(self) -> None:
        self.cores: list[Core] = []
        self.refusals = 0
        self.standby = Standby(self._make, self._start)
        self.standby.begin()

    def _make(self) -> Core:
        self.cores.append(Core())
        return self.cores[-1]

    async def _start(self, core: Core) -> None:
        await asyncio.sleep(START_S)
        if self.refusals:
            self.refusals -= 1
            raise OSError("no memory")


@virtual
async def test_one_that_is_being_started_is_waited_for() -> None:
    ground = StandbyGround()
    await asyncio.sleep(START_S - 1)
    begun = asyncio.get_running_loop().time()
    assert await ground.standby.take() is ground.cores[0]
    assert 0.9 < asyncio.get_running_loop().time() - begun < 1.1
    await ground.standby.close()


@virtual
async def test_one_that_dies_while_it_waits_is_never_given_and_another_one_is_made() -> None:
    ground = StandbyGround()
    await asyncio.sleep(START_S + 1)
    ground.cores[0].is_dead = True
    assert not ground.standby.is_ready and await ground.standby.take() is None
    await asyncio.sleep(standby_module.WATCH_S + standby_module.REST_S + START_S + 1)
    assert ground.cores[0].reaped == 1
    assert await ground.standby.take() is ground.cores[1]
    await ground.standby.close()


@virtual
async def test_one_that_cannot_start_is_tried_again_after_pauses_and_nobody_waits_for_it() -> None:
    ground = StandbyGround()
    ground.refusals = 2
    await asyncio.sleep(START_S - 1)
    assert await ground.standby.take() is None, "it was waited for, and did not come"
    await asyncio.sleep(sum(standby_module.AGAIN_S[:2]) + 2 * START_S + 1)
    assert [core.closed for core in ground.cores] == [1, 1, 0]
    assert await ground.standby.take() is ground.cores[2]
    await ground.standby.close()


@virtual
async def test_what_nobody_has_taken_is_closed_also_where_it_was_being_started() -> None:
    for after_s in (START_S + 1, START_S - 1):
        ground = StandbyGround()
        await asyncio.sleep(after_s)
        await ground.standby.close()
        assert [core.closed for core in ground.cores] == [1]
        await asyncio.sleep(100)
        assert len(ground.cores) == 1


# -- process environment
SECRETS = {
    "SESSILE_API_KEY": "a",
    "SESSILE_JOURNAL": "postgresql://user:password@127.0.0.1/db",
    "AWS_SECRET_ACCESS_KEY": "b",
    "HF_TOKEN": "c",
    "VLLM_API_KEY": "d",
    "HTTPS_PROXY": "http://user:password@127.0.0.1",
}


def test_a_process_that_is_spawned_meanwhile_has_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    for name in ("VLLM_FLAG", "HF_HUB_OFFLINE"):
        monkeypatch.setenv(name, "1")
    with only_handed_over(os.environ):
        os.environ["VLLM_LATER"] = "2"
        seen = subprocess.run([sys.executable, "-c", "import os; print(*os.environ)"], capture_output=True, text=True)
    names = set(seen.stdout.split())
    assert {"PATH", "VLLM_FLAG", "VLLM_LATER", "HF_HUB_OFFLINE"} <= names and not names & set(SECRETS)
    assert {name: os.environ[name] for name in SECRETS} == SECRETS and os.environ.pop("VLLM_LATER") == "2"


def test_what_was_put_away_comes_back_where_the_start_fails() -> None:
    environment = dict(SECRETS)
    with pytest.raises(RuntimeError), only_handed_over(environment):
        assert not environment
        raise RuntimeError
    assert environment == SECRETS
