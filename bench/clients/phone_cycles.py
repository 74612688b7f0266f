"""A phone in Hermes through pockets and tunnels: no gap, no repeat, no command lost or doubled, and how fast it wakes.

    python -m bench.clients.phone_cycles --cycles 1000 --phones 8 --seed 1

Each phone is the engine itself with the React Native client and React Native's own WebSocket class; this process is
the platform below it: sockets (real ones, to a server with the simulated engine), a slow disk, timers, app and network
states. In a cycle something is said, and then the app goes to the background and returns, is killed, is cut off, or
gets another address. Waking is from the line that says so (`active`, a network, the start of a killed app) to the
session being live.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import itertools
import json
import random
import subprocess
import time
from typing import Any

import msgspec
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from bench.clients.crash_rounds import CrashReader, compare
from bench.support import ROOT, is_faultless, report, run_bench, spread
from tests.support.doors.server_process import ServerProcess
from tests.support.doors.wire_client import connected

CLIENT = ROOT / "clients" / "react-native"


def app() -> tuple[str, bytes]:
    """The engine, and the line with which it becomes the app."""
    made = subprocess.run(
        [str(ROOT / "deploy" / "with_node.sh"), "node", "scripts/cycles.mjs"],
        cwd=CLIENT,
        capture_output=True,
        check=True,
    )
    told = json.loads(made.stdout)
    return told["engine"], told["line"].encode() + b"\n"


class PhoneBelow:
    """What is below the JavaScript of one app: the disk outlives it."""

    def __init__(self, name: str, url: str, session: str, chance: random.Random, program: tuple[str, bytes]) -> None:
        self.name, self.url, self.session, self.chance, self.program = name, url, session, chance, program
        self.disk: dict[str, str] = {}
        self.network: dict[str, Any] = {"type": "wifi", "isConnected": True, "details": {"ipAddress": "10.0.0.2"}}
        self.reader = CrashReader()
        self.ids: dict[str, str] = {}  # word -> the command that says it
        self.kept: set[str] = set()  # words whose command was on the disk: from then on it may not be lost
        self.shown = 0
        self.phase, self.woken = "", 0.0
        self.wakings: list[float] = []
        self.live = asyncio.Event()
        self.calls: dict[str, asyncio.Future[dict[str, Any]]] = {}
        self.sockets: dict[int, ClientConnection] = {}
        self.tasks: set[asyncio.Task[None]] = set()
        self.timers: set[asyncio.TimerHandle] = set()

    async def launch(self) -> None:
        """The app starts with what the disk holds."""
        self.process = await asyncio.create_subprocess_exec(
            self.program[0], "-w", "-Xmicrotask-queue", "-prompt=", "-prompt2=",
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, limit=1 << 26,
        )  # fmt: skip
        assert self.process.stdin is not None
        self.process.stdin.write(self.program[1])
        ready = asyncio.get_running_loop().create_future()
        self.calls["ready"] = ready
        self.spawn(self.read(self.process))
        await asyncio.wait_for(ready, 30)
        stored = json.loads(self.disk.get(f"sessile:session:{self.session}", '{"offset": 0}'))["offset"]
        self.reader.applied = {last: each for last, each in self.reader.applied.items() if last <= stored}
        self.reader.position = stored
        self.wake()
        where = {"url": self.url, "session": self.session, "device": self.name, "network": self.network}
        self.hand_up({"is": "start", "encoding": self.chance.choice(("json", "msgpack")), **where})

    async def kill(self) -> None:
        """Without a goodbye: of what was on its way to the disk, some arrives."""
        self.process.kill()
        for timer in self.timers:
            timer.cancel()
        self.timers.clear()
        for socket in self.sockets.values():
            socket.transport.abort()
        await self.process.wait()
        tasks = list(self.tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self.sockets.clear()
        self.live.clear()

    def spawn(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    def hand_up(self, what: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        if self.process.returncode is None:
            self.process.stdin.write(b"__heard(" + json.dumps(what).encode() + b");\n")

    def wake(self) -> None:
        self.live.clear()
        self.woken = time.monotonic()

    async def answer_to(self, what: str) -> dict[str, Any]:
        """What the app answers to one of the bench's own questions."""
        self.calls[what] = asyncio.get_running_loop().create_future()
        self.hand_up({"is": what})
        return await asyncio.wait_for(self.calls[what], 30)

    async def read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        async for line in process.stdout:
            if not line.endswith(b"\n"):
                return  # killed while it spoke
            if b"\x01" in line:
                self.take(msgspec.json.decode(line[line.index(b"\x01") + 1 :]))
            elif b"Error" in line:
                self.reader.faults.append(line.decode()[:300])

    def take(self, told: dict[str, Any]) -> None:
        match told["is"]:
            case "timer":
                later = asyncio.get_running_loop().call_later(
                    told["ms"] / 1000, lambda: self.hand_up({"is": "timer", "id": told["id"]})
                )
                self.timers.add(later)
            case "get" | "set":
                self.spawn(self.store(told))
            case "connect":
                self.spawn(self.connection(told["id"], told["url"], told["protocols"]))
            case "send":
                self.send(told)
            case "close":
                if (socket := self.sockets.pop(told["id"], None)) is not None:
                    self.spawn(socket.close(told["code"], told["reason"]))
            case "shown":
                self.reader.apply(told["frame"])
                self.shown = max(self.shown, told["frame"]["offset"])
            case "phase":
                self.phase = told["phase"]
                if self.phase == "live" and not self.live.is_set():
                    self.wakings.append((time.monotonic() - self.woken) * 1000)
                    self.live.set()
            case "fault":
                self.reader.faults.append(told["why"])
            case name if name in self.calls and not self.calls[name].done():
                self.calls[name].set_result(told)

    async def store(self, told: dict[str, Any]) -> None:
        key, value = told["key"], told.get("value")
        if told["is"] == "set":
            if key.startswith("sessile:session:") and value is not None and json.loads(value)["offset"] > self.shown:
                self.reader.faults.append("a position was stored before it was shown")
            await asyncio.sleep(self.chance.uniform(0, 0.02))
            if value is None:
                self.disk.pop(key, None)
            else:
                self.disk[key] = value
                if key == "sessile:outbox":
                    self.kept |= self.words(json.loads(value))
        self.hand_up({"is": "answer", "n": told["n"], "value": self.disk.get(key) if told["is"] == "get" else None})

    def words(self, frames: list[dict[str, Any]]) -> set[str]:
        said = {frame["content"]: frame["id"] for frame in frames if frame["type"] == "message.create"}
        for word, command in said.items():
            if self.ids.setdefault(word, command) != command:
                self.reader.faults.append(f"{word} under two ids")
        return set(said)

    def send(self, told: dict[str, Any]) -> None:
        socket = self.sockets.get(told["id"])
        data = told["text"] if "text" in told else base64.b64decode(told["base64"])
        decoded = msgspec.json.decode(data) if "text" in told else msgspec.msgpack.decode(data)
        self.words(decoded if isinstance(decoded, list) else [decoded])
        if socket is not None:
            self.spawn(self.written(socket, data))

    async def written(self, socket: ClientConnection, data: str | bytes) -> None:
        with contextlib.suppress(ConnectionClosed):
            await socket.send(data)

    async def connection(self, number: int, url: str, protocols: list[str]) -> None:
        def event(name: str, **fields: Any) -> None:
            self.hand_up({"is": "socket", "event": name, "id": number, **fields})

        if not self.network["isConnected"]:
            return event("websocketFailed", message="Failed to connect")
        try:
            socket = await connect(url, subprotocols=protocols, compression=None, close_timeout=1)  # type: ignore[arg-type]
        except OSError as error:
            return event("websocketFailed", message=str(error))
        self.sockets[number] = socket
        event("websocketOpen", protocol=protocols[0])
        with contextlib.suppress(ConnectionClosed):
            async for data in socket:
                if isinstance(data, str):
                    event("websocketMessage", type="text", data=data)
                else:
                    event("websocketMessage", type="binary", data=base64.b64encode(data).decode())
        if self.sockets.pop(number, None) is not None:  # not hung up by the app, nor muted
            event("websocketFailed", message="Software caused connection abort")

    def cut(self, *, silently: bool) -> None:
        """The line is gone; `silently`: and the platform does not know it yet."""
        for number, socket in list(self.sockets.items()):
            if silently:
                del self.sockets[number]
            socket.transport.abort()


class PhoneCycles:
    """One phone and what happens to it."""

    def __init__(self, platform: PhoneBelow, chance: random.Random) -> None:
        self.it, self.chance = platform, chance
        self.said = self.killed = self.addresses = self.cuts = 0

    def say(self) -> None:
        self.said += 1
        self.it.hand_up({"is": "say", "word": f"word {self.said}"})

    def app(self, state: str) -> None:
        if state == "active":
            self.it.wake()
        self.it.hand_up({"is": "app", "state": state})

    def net(self, **state: Any) -> None:
        self.it.network = {**self.it.network, **state}
        self.it.hand_up({"is": "network", "state": self.it.network})

    async def pause(self, up_to: float) -> None:
        await asyncio.sleep(self.chance.uniform(0, up_to))

    async def cycle(self) -> None:
        """Something is said, something happens, the app comes back and catches up."""
        it, chance = self.it, self.chance
        self.say()
        await self.pause(0.15)
        dice = chance.random()
        if dice < 0.35:
            if chance.random() < 0.5:
                self.cuts += 1
                it.cut(silently=chance.random() < 0.5)
            self.app("background")
            await self.pause(0.2)
            self.app("active")
        elif dice < 0.6:
            self.app("background")
            await self.pause(0.05)
            await self.relaunch()
        elif dice < 0.7:
            await self.relaunch()  # killed in the foreground, in mid-answer
        elif dice < 0.85:
            self.addresses += 1
            it.cut(silently=True)
            it.wake()
            self.net(type=chance.choice(("wifi", "cellular")), details={"ipAddress": f"10.{self.addresses}.0.2"})
        else:
            it.cut(silently=False)
            self.net(type="none", isConnected=False, details=None)
            for _ in range(chance.randrange(1, 4)):
                self.say()
            await self.pause(0.1)
            if chance.random() < 0.4:
                await self.relaunch(is_online=False)
            it.wake()
            self.net(type="wifi", isConnected=True, details={"ipAddress": f"10.0.{self.said % 250}.2"})
        await asyncio.wait_for(it.live.wait(), 60)

    async def relaunch(self, *, is_online: bool = True) -> None:
        self.killed += 1
        await self.it.kill()
        await self.it.launch()
        if is_online:
            await asyncio.wait_for(self.it.live.wait(), 60)

    async def settle(self) -> None:
        """Until every word was answered and the log is at rest."""
        offset, quiet = -1, 0
        async with asyncio.timeout(120):
            while quiet < 5:
                how = await self.it.answer_to("how")
                is_still = how["unanswered"] == 0 and how["phase"] == "live" and how["offset"] == offset
                quiet, offset = (quiet + 1 if is_still else 0), how["offset"]
                await asyncio.sleep(0.2)


def check(it: PhoneBelow) -> None:
    """Every word that was kept or sent is in the log once, in the order of its ids."""
    words = [
        event["item"]["content"][0]["text"]
        for _, (_, event) in sorted(it.reader.applied.items())
        if event["type"] == "item.created" and event["item"].get("role") == "user"
    ]
    doubled = {word for word in words if words.count(word) > 1}
    for what, which in (("doubled", doubled), ("lost", it.kept - set(words)), ("unknown", set(words) - set(it.ids))):
        if which:
            it.reader.faults.append(f"{what}: {sorted(which)[:5]}")
    ids = [(word, it.ids[word]) for word in words if word in it.ids]
    pairs = list(itertools.pairwise(ids))
    if any(after[1] < before[1] for before, after in pairs):
        late = next((word, after) for (word, one), (after, two) in pairs if two < one)
        it.reader.faults.append(f"{late[1]} was said before {late[0]} and stands after it")


async def main(arguments: argparse.Namespace) -> bool:
    chance = random.Random(arguments.seed)
    program = await asyncio.to_thread(app)
    with ServerProcess("--engine", "sim", "--sim-tokens-per-s", "100", "--slots", "64") as server:
        benches = []
        async with connected(server.url) as wire:
            for number in range(arguments.phones):
                session = (await wire.command("session.create"))["session"]
                own = random.Random(chance.random())
                benches.append(PhoneCycles(PhoneBelow(f"phone-{number}", server.url, session, own, program), own))

        async def drive(bench: PhoneCycles) -> None:
            await bench.it.launch()
            await asyncio.wait_for(bench.it.live.wait(), 60)
            for _ in range(arguments.cycles // arguments.phones):
                await bench.cycle()
            await bench.settle()
            await bench.it.kill()

        started = time.monotonic()
        await asyncio.gather(*(drive(bench) for bench in benches))
        took = time.monotonic() - started
        for bench in benches:
            check(bench.it)
            await compare(server, bench.it.reader, bench.it.session)
        faults = [f"{bench.it.name}: {fault}" for bench in benches for fault in bench.it.reader.faults]
        wakings = [waking for bench in benches for waking in bench.it.wakings]
        report(
            "phone_cycles",
            {
                "seed": arguments.seed,
                "cycles": arguments.cycles // arguments.phones * arguments.phones,
                "phones": arguments.phones,
                "seconds": took,
                **{
                    name: sum(getattr(each, name) for each in benches)
                    for name in ("said", "killed", "cuts", "addresses")
                },
                "commands kept": sum(len(bench.it.kept) for bench in benches),
                "gaps, repeats, lost, doubled, out of order, stored too early": len(faults),
                **spread("waking to live {} ms (bar 300)", wakings, "p50 p95 p99 max"),
            },
        )
        return is_faultless(faults)


if __name__ == "__main__":
    run_bench(main, __doc__, cycles=1000, phones=4, seed=1)
