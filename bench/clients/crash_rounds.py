"""kill -9 of the server in mid-answer, again and again: nothing lost, repeated or changed, and each answer goes on.

    python -m bench.clients.crash_rounds --rounds 100 --seed 1 [--engine llama]

Each round: a client asks, the server is killed at a random moment after the command was sent, started again on the same
data, and the client resumes from its position. What the client applied is then held against the log, read from offset 0
by a device that never saw any of it. A command without an answer is repeated by its id, as an SDK does.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import time
from typing import Any

from bench.support import Option, is_faultless, report, run_bench
from testbed.server_process import ServerProcess
from testbed.wire_client import TERMINAL, WireClient, connected, new_ulid


class CrashReader:
    """A client that keeps its position and checks every frame against it."""

    def __init__(self) -> None:
        self.epoch = ""
        self.position = 0
        self.applied: dict[int, Any] = {}
        self.faults: list[str] = []
        self.ended: dict[str, int] = {}

    def apply(self, frame: dict[str, Any]) -> None:
        first, last = frame.get("first_offset", frame["offset"]), frame["offset"]
        if self.epoch and frame["epoch"] != self.epoch:
            self.faults.append(f"epoch changed at {last}")
        self.epoch = frame["epoch"]
        if first != self.position + 1:
            self.faults.append(f"{first} after {self.position}")
        self.position = last
        self.applied[last] = (first, frame["event"])
        if frame["event"]["type"] in TERMINAL:
            response = frame["event"]["response_id"]
            self.ended[response] = self.ended.get(response, 0) + 1


async def send_until_killed(
    server: ServerProcess, reader: CrashReader, session: str, ask: dict[str, Any], kill_after: float
) -> None:
    """Sends the command and reads until the server dies `kill_after` seconds later."""
    async with connected(server.url) as wire:
        await subscribe(wire, session, reader)
        pending = asyncio.create_task(wire.command("message.create", **ask))
        killer = asyncio.get_running_loop().call_later(kill_after, server.kill)
        with contextlib.suppress(asyncio.CancelledError):
            reading = asyncio.create_task(read(wire, reader))
            await wire.socket.wait_closed()
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
        killer.cancel()
        await asyncio.gather(pending, return_exceptions=True)
        while not wire.events.empty():
            reader.apply(wire.events.get_nowait())


async def subscribe(wire: WireClient, session: str, reader: CrashReader) -> None:
    position = {"epoch": reader.epoch, "offset": reader.position} if reader.epoch else {"offset": 0}
    await wire.command("subscribe", session=session, **position)
    resumed = await wire.others.get()
    if resumed.get("mode") != "replay":
        reader.faults.append(f"resumed by {resumed}")


async def read(wire: WireClient, reader: CrashReader) -> None:
    while True:
        reader.apply(await wire.events.get())


async def finish(server: ServerProcess, reader: CrashReader, session: str, ask: dict[str, Any]) -> None:
    """Resumes, repeats the command by its id, and reads to the end of its response."""
    async with connected(server.url) as wire:
        await subscribe(wire, session, reader)
        answer = await wire.command("message.create", **ask)
        async with asyncio.timeout(120):
            while not reader.ended.get(answer["response_id"]):
                reader.apply(await wire.events.get())


async def compare(server: ServerProcess, reader: CrashReader, session: str) -> None:
    """Another device reads the whole log: what the first one applied must be it, piece by piece."""
    fresh = CrashReader()
    async with connected(server.url) as wire:
        await subscribe(wire, session, fresh)
        async with asyncio.timeout(60):
            while fresh.position < reader.position:
                fresh.apply(await wire.events.get())
    reader.faults += [f"second device: {fault}" for fault in fresh.faults]
    if story(fresh) != story(reader):
        reader.faults.append("the second device was told another story")


def story(reader: CrashReader) -> list[Any]:
    """The log without its division into deltas, which may be laid together."""
    told: list[Any] = []
    for _, event in sorted(reader.applied.values(), key=lambda each: each[0]):
        event = {name: value for name, value in event.items() if name != "sequence_number"}
        last = told[-1] if told else {}
        same = (last.get("type"), last.get("item_id")) == (event["type"], event.get("item_id"))
        if event["type"].endswith(".delta") and same:
            last["delta"] += event["delta"]
        else:
            told.append(event)
    return told


async def rounds(arguments: argparse.Namespace) -> bool:
    chance = random.Random(arguments.seed)
    flags = ["--engine", arguments.engine]
    if arguments.engine == "llama":
        flags += ["--threads", "1", "--slots", "2"]
    faults: list[str] = []
    continued = turns = 0
    restarts: list[float] = []
    server = ServerProcess(*flags)
    server.start()
    try:
        async with connected(server.url) as wire:
            session = (await wire.command("session.create"))["session"]
        reader = CrashReader()
        for number in range(arguments.rounds):
            if number % arguments.turns_a_session == 0 and number:
                await compare(server, reader, session)
                faults += reader.faults
                async with connected(server.url) as wire:
                    session = (await wire.command("session.create"))["session"]
                reader = CrashReader()
            ask = {
                "id": new_ulid(),
                "session": session,
                "content": f"Tell me story number {number}.",
                "max_output_tokens": 60,
            }
            before = reader.position
            await send_until_killed(server, reader, session, ask, chance.uniform(0.0, arguments.kill_within))
            began = any(
                event["type"] == "response.output_text.delta"
                for first, event in reader.applied.values()
                if first > before
            )
            started = time.monotonic()
            server.start()
            restarts.append(time.monotonic() - started)
            await finish(server, reader, session, ask)
            turns += 1
            continued += began
            twice = [response for response, count in reader.ended.items() if count != 1]
            if twice:
                reader.faults.append(f"ended more than once: {twice}")
            if len(reader.ended) != number % arguments.turns_a_session + 1:
                reader.faults.append(
                    f"{len(reader.ended)} responses for {number % arguments.turns_a_session + 1} turns"
                )
        await compare(server, reader, session)
        faults += reader.faults
    finally:
        if server.process is not None and server.process.poll() is None:
            server.stop()
    report(
        "crash_rounds",
        {
            "engine": arguments.engine,
            "seed": arguments.seed,
            "rounds": turns,
            "killed after the first word": continued,
            "faults": len(faults),
            "ready again p50 s": sorted(restarts)[len(restarts) // 2],
        },
    )
    return is_faultless(faults)


if __name__ == "__main__":
    engines = Option("llama", choices=("llama", "sim"))
    run_bench(rounds, __doc__, rounds=100, seed=1, engine=engines, kill_within=1.2, turns_a_session=5)
