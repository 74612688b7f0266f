"""How many events a second the journal makes durable, how long an append waits, and what an event costs.

    python -m bench.journal --journal sqlite --sessions 400 --rate 25 --seconds 10

Each session appends one delta at a time, as an answer does, `rate` times a second (0: as fast as it can), and waits for
each append before its next. A latency is measured from the moment when the event was due: a journal that falls
behind cannot hide it. A turn's first and last append carry a head patch, a command and a usage row, as they do in the
server; each session is somewhere in a turn when the clock starts, as people are. CPU is that of this process
(PostgreSQL's own comes on top), less what the same load costs on a journal that does nothing. `postgres` starts a
server of its own from its wheel.
Bodies are encrypted, as a server does it by itself; `--plain` leaves that out.
`--readers` replays the last 64 records of random sessions beside it; `--busy` keeps the event loop occupied for that
share of the time, as a server's other work does. The interpreter is set as it is in a server
(`transport.ops.process_tuning.tune_process`).
"""

from __future__ import annotations

import argparse
import asyncio
import random
import secrets
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from bench.support import Option, report, run_bench, spread
from persistence.memory.journal import MemoryJournal
from persistence.open_store import make_stores
from sessions.model.commands import Ok
from sessions.model.events import OutputTextDelta, Private, Record
from sessions.model.journal_types import Append, CommandRecord, HeadPatch, UsageRow
from sessions.model.types import (
    LOCAL_PRINCIPAL,
    CommandId,
    Epoch,
    ItemId,
    ResponseId,
    SessionId,
    SessionKey,
    TenantId,
    UnixMs,
    Usage,
    pack_tokens,
)
from sessions.ports import Journal
from testbed.postgres_server import PostgresServer
from transport.cli.settings import Settings
from transport.ops.process_tuning import tune_process

EVENTS_PER_TURN = 64
TOKENS = [pack_tokens([number, number * 7, number * 131]) for number in range(256)]  # of a delta


class NoJournal(MemoryJournal):
    """Takes everything and keeps nothing: what the load generator costs by itself."""

    async def append(self, append: Append) -> None:
        await asyncio.sleep(0)


def now_ms() -> UnixMs:
    return UnixMs(time.time_ns() // 1_000_000)


def a_delta(rng: random.Random, response: str, top: int, number: int) -> Record:
    event = OutputTextDelta(
        response_id=ResponseId(response),
        sequence_number=number,
        item_id=ItemId("msg_" + response[5:]),
        output_index=0,
        content_index=0,
        delta=" a word or two" if number % 2 else " and another",
    )
    return Record(top + 1, now_ms(), event, Private(tokens=rng.choice(TOKENS)))


class Load:
    """The sessions, and what was measured while they ran."""

    def __init__(self, journal: Journal, arguments: argparse.Namespace) -> None:
        self.journal = journal
        self.arguments = arguments
        self.rng = random.Random(arguments.seed)
        self.keys = [
            SessionKey(TenantId("local"), SessionId(f"ses_{self.rng.getrandbits(128):032x}"))
            for _ in range(arguments.sessions)
        ]
        self.tops = dict.fromkeys(self.keys, 0)
        self.latencies_s: list[float] = []
        self.reads_s: list[float] = []

    async def one_session(self, key: SessionKey, start_s: float, end_s: float) -> None:
        loop = asyncio.get_running_loop()
        period_s = 1 / self.arguments.rate if self.arguments.rate else 0.0
        due_s = start_s + self.rng.random() * period_s
        head = await self.journal.grant(key, expected_fence=None, owner="bench", new_epoch=Epoch("e"), now_ms=UnixMs(0))
        number = self.rng.randrange(EVENTS_PER_TURN)
        response = self.response()
        while True:
            if period_s:
                wait_s = due_s - loop.time()
                if wait_s > 0:
                    await asyncio.sleep(wait_s)
            else:
                due_s = loop.time()
            if due_s >= end_s:
                return
            number %= EVENTS_PER_TURN
            if number == 0:
                response = self.response()
            top = self.tops[key]
            beside = self.beside(key, response, number) if number in (0, EVENTS_PER_TURN - 1) else {}
            record = a_delta(self.rng, response, top, number)
            await self.journal.append(
                Append(key=key, fence=head.fence, top=top, records=(record,), at=record.at, **beside)
            )
            self.latencies_s.append(loop.time() - due_s)
            self.tops[key] = top + 1
            number += 1
            due_s += period_s

    def response(self) -> str:
        return f"resp_{self.rng.getrandbits(96):024x}"

    def beside(self, key: SessionKey, response: str, number: int) -> dict[str, Any]:
        now = now_ms()
        patch = HeadPatch(open=number == 0, user=None, model="m", title="A conversation", metadata={})
        if number == 0:
            id = CommandId(f"{self.rng.getrandbits(130):026x}")
            answer = Ok(id=id, offset=1, response_id=ResponseId(response))
            command = CommandRecord(principal_id="local", command_id=id, digest=bytes(16), answer=answer, at=now)
            return {"head": patch, "commands": (command,)}
        usage = UsageRow(
            response_id=ResponseId(response),
            principal=LOCAL_PRINCIPAL,
            model="m",
            usage=Usage(input_tokens=100, output_tokens=64),
            status="completed",
            recomputed_tokens=0,
            withheld_tokens=0,
            at=now,
        )
        return {"head": patch, "usage": (usage,)}

    async def one_reader(self, end_s: float) -> None:
        loop = asyncio.get_running_loop()
        while loop.time() < end_s:
            await asyncio.sleep(0.01)
            key = self.rng.choice(self.keys)
            started_s = loop.time()
            await self.journal.read(key, after=max(0, self.tops[key] - 64), limit=256, bytes_max=262_144)
            self.reads_s.append(loop.time() - started_s)

    async def keep_busy(self, end_s: float) -> None:
        """Pure Python in slices of half a millisecond, for a share of the time."""
        loop = asyncio.get_running_loop()
        slice_s = 0.0005
        while loop.time() < end_s:
            until = time.perf_counter() + slice_s
            while time.perf_counter() < until:
                pass
            await asyncio.sleep(slice_s / self.arguments.busy - slice_s)

    async def run(self, seconds: float) -> float:
        """Runs the load; returns the CPU seconds of the process."""
        loop = asyncio.get_running_loop()
        start_s = loop.time() + 0.5
        end_s = start_s + seconds
        async with asyncio.TaskGroup() as tasks:
            for key in self.keys:
                tasks.create_task(self.one_session(key, start_s, end_s))
            await asyncio.sleep(start_s - loop.time())
            self.latencies_s.clear()
            cpu_s = time.process_time()
            for _ in range(self.arguments.readers):
                tasks.create_task(self.one_reader(end_s))
            if self.arguments.busy:
                tasks.create_task(self.keep_busy(end_s))
        return time.process_time() - cpu_s


async def measure(journal: Journal, arguments: argparse.Namespace) -> tuple[Load, float]:
    tune_process()
    load = Load(journal, arguments)
    return load, await load.run(arguments.seconds)


async def main(arguments: argparse.Namespace) -> None:
    async with AsyncExitStack() as stack:
        folder = Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="sessile-bench-", dir=arguments.data or None))
        )
        url = arguments.journal
        if url == "postgres":
            server = PostgresServer()
            stack.callback(server.remove)
            server.start()
            url = server.dsn
        master_key = folder / "master"
        master_key.write_text(secrets.token_hex(32))
        master_key.chmod(0o600)
        plain = arguments.plain or url == "memory"
        settings = Settings(
            journal=url, master_key=str(master_key), journal_encryption="off" if plain else "on", data=str(folder)
        )
        async with make_stores(settings, folder=folder, now_ms=now_ms).opened() as store:
            load, cpu_s = await measure(store.journal, arguments)
        nothing = NoJournal()
        await nothing.open()
        idle, idle_cpu_s = await measure(nothing, arguments)
    events = len(load.latencies_s)
    figures: dict[str, Any] = {
        "journal": arguments.journal,
        "sessions": arguments.sessions,
        "bodies": "plain" if plain else "encrypted",
        "rate per session": arguments.rate,
        "durable events/s": events / arguments.seconds,
        **spread("append {} ms", load.latencies_s, "p50 p99 max", times=1e3),
        "journal CPU us/event": cpu_s / events * 1e6 - idle_cpu_s / len(idle.latencies_s) * 1e6,
        "load generator CPU us/event": idle_cpu_s / len(idle.latencies_s) * 1e6,
    }
    if load.reads_s:
        figures |= {"reads": len(load.reads_s), **spread("read {} ms", load.reads_s, times=1e3)}
    report("journal", figures)


if __name__ == "__main__":
    run_bench(
        main,
        __doc__,
        journal=Option("sqlite", choices=["memory", "sqlite", "postgres"]),
        sessions=400,
        rate=Option(25.0, "events per second and session; 0: as fast as it goes"),
        seconds=10.0,
        plain=Option(False, "bodies are not encrypted"),
        readers=Option(0, "replays beside it, each 100 times a second at most"),
        busy=Option(0.0, "share of the time that the loop does other work"),
        data=Option("", "a folder on the disk to measure"),
        seed=1,
    )
