"""A client cut off at random points, resuming on the same and on another device: no gap, no repeat, how fast.

    python -m bench.clients.cuts --cuts 10000 --seed 1

Simulated engine. `--clients` clients hold one streaming session each; each cuts its socket after a random number of
events, connects again as the same device or another one, and resumes by `hello.resume`. Resume time is from
the sent `hello` to the first frame that follows the replay (`caught_up`), connection set-up apart.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import time
from typing import Any

import msgspec
from websockets.asyncio.client import ClientConnection, connect

from bench.clients.crash_rounds import CrashReader, compare
from bench.support import is_faultless, percentile, report, run_bench
from testbed.server_process import ServerProcess
from testbed.wire_client import TERMINAL, connected, new_ulid


class Phone:
    """A device on a bad connection, with one session."""

    def __init__(self, server: ServerProcess, chance: random.Random, session: str) -> None:
        self.server, self.chance, self.session = server, chance, session
        self.reader = CrashReader()
        self.open = False
        self.resumes: list[float] = []
        self.cuts = 0

    async def once(self, *, last: bool = False) -> None:
        """One connection: resume, read a random number of events (asking anew when all is quiet), cut.

        The `last` one reads until the log is at rest."""
        async with asyncio.timeout(60):
            socket = await connect(
                self.server.url,
                subprotocols=["sessile.v1+json"],  # type: ignore[list-item]
                compression=None,
                close_timeout=0,
            )
            position: dict[str, Any] = {"session": self.session, "offset": self.reader.position}
            if self.reader.epoch:
                position["epoch"] = self.reader.epoch
            device = self.chance.choice(("phone", "laptop"))
            started = time.monotonic()
            await send(socket, {"type": "hello", "device": device, "resume": [position]})
            left = self.chance.randrange(1, 20)
            caught_up = False
            while left > 0 if not last else self.open or not caught_up:
                frame = msgspec.json.decode(await socket.recv())
                for each in frame if isinstance(frame, list) else (frame,):
                    left -= self.take(each)
                    if each["type"] == "caught_up":
                        self.resumes.append(time.monotonic() - started)
                        caught_up = True
                if caught_up and not self.open and not last:
                    self.open = True
                    await send(socket, self.question())
            socket.transport.abort()
            self.cuts += 1

    def take(self, frame: dict[str, Any]) -> int:
        if frame["type"] == "resumed" and frame["mode"] != "replay":
            self.reader.faults.append(f"resumed by {frame['mode']}")
        if frame["type"] == "error":
            raise RuntimeError(str(frame))
        if frame["type"] != "event":
            return 0
        self.reader.apply(frame)
        if frame["event"]["type"] in TERMINAL:
            self.open = False
        return 1

    def question(self) -> dict[str, Any]:
        return {
            "type": "message.create",
            "id": new_ulid(),
            "session": self.session,
            "content": "And then?",
            "max_output_tokens": 200,
            "queue": True,
        }


async def send(socket: ClientConnection, frame: dict[str, Any]) -> None:
    await socket.send(msgspec.json.encode(frame).decode())


async def main(arguments: argparse.Namespace) -> bool:
    chance = random.Random(arguments.seed)
    with ServerProcess("--engine", "sim", "--sim-tokens-per-s", "50", "--slots", "64") as server:
        phones = []
        async with connected(server.url) as wire:
            for _ in range(arguments.clients):
                session = (await wire.command("session.create"))["session"]
                phones.append(Phone(server, random.Random(chance.random()), session))

        async def drive(phone: Phone) -> None:
            while phone.cuts < arguments.cuts // arguments.clients:
                await phone.once()
            await phone.once(last=True)

        started = time.monotonic()
        await asyncio.gather(*(drive(phone) for phone in phones))
        took = time.monotonic() - started
        for phone in phones:
            await compare(server, phone.reader, phone.session)
        faults = [fault for phone in phones for fault in phone.reader.faults]
        resumes = [each * 1000 for phone in phones for each in phone.resumes]
        report(
            "cuts",
            {
                "seed": arguments.seed,
                "cuts": sum(phone.cuts for phone in phones),
                "clients": arguments.clients,
                "seconds": took,
                "gaps, repeats, changes": len(faults),
                "resume p50 ms (bar 5)": percentile(resumes, 0.5),
                "resume p99 ms (bar 50)": percentile(resumes, 0.99),
            },
        )
        return is_faultless(faults)


if __name__ == "__main__":
    run_bench(main, __doc__, cuts=10000, clients=10, seed=1)
