"""What the benches share: where they ran, a server as its own process, a plain client, percentiles.

The client here is deliberately not the SDK: it speaks frames, so that a bench measures the server and nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import platform
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import psutil
from websockets.asyncio.client import ClientConnection, connect

ROOT = Path(__file__).resolve().parent.parent
READY = "Sessile is ready: "


def where() -> dict[str, Any]:
    """Hardware and commit, for every result."""
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    dirty = subprocess.run(["git", "status", "--porcelain", "-uno"], cwd=ROOT, capture_output=True, text=True)
    model = next(
        (line.split(":", 1)[1].strip() for line in _cpuinfo() if line.startswith("model name")), platform.processor()
    )
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30),
        "python": platform.python_version(),
        "commit": commit.stdout.strip() + ("+changes" if dirty.stdout.strip() else ""),
    }


def _cpuinfo() -> list[str]:
    path = Path("/proc/cpuinfo")
    return path.read_text().splitlines() if path.exists() else []


def report(name: str, figures: dict[str, Any]) -> None:
    """Prints a result, one line of JSON for machines after a table for people."""
    print(f"\n== {name}")
    for key, value in {**figures, **where()}.items():
        shown = f"{value:.3f}" if isinstance(value, float) else value
        print(f"  {key:<36} {shown}")
    print(msgspec.json.encode({"bench": name, **figures, **where()}).decode(), flush=True)


def percentile(values: Sequence[float], share: float) -> float:
    """The value that `share` of `values` do not exceed (nearest rank)."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, round(share * len(ordered) + 0.5) - 1))]


def lower_bound(ratios: Sequence[float]) -> float:
    """One-sided 95% lower bound of the mean of paired ratios (Student's t; 10 pairs have t = 1.833)."""
    count = len(ratios)
    t = {3: 2.920, 4: 2.353, 5: 2.132, 6: 2.015, 7: 1.943, 8: 1.895, 9: 1.860, 10: 1.833}.get(count, 1.645)
    mean = sum(ratios) / count
    spread = (sum((ratio - mean) ** 2 for ratio in ratios) / (count - 1)) ** 0.5
    return mean - t * spread / count**0.5


def new_ulid() -> str:
    """An id for a command: unique is all that a bench needs."""
    return f"{int(time.time() * 1000):012X}{secrets.token_hex(7).upper()}"


class Server:
    """`app.py serve` (or another module that takes its flags) as a process of its own."""

    def __init__(self, *flags: str, data: str | None = None, program: Sequence[str] = ("app.py", "serve")) -> None:
        self._scratch = tempfile.TemporaryDirectory(prefix="sessile-bench-") if data is None else None
        self.data = data or self._scratch.name if self._scratch else str(data)
        self.flags = flags
        self.program = tuple(program)
        self.port = 0
        self.process: subprocess.Popen[str] | None = None

    def start(self) -> float:
        """Starts it and waits for the line that says ready; returns the seconds that took."""
        started = time.monotonic()
        command = [sys.executable, *self.program, "--data", self.data, "--port", str(self.port), *self.flags]
        if "--log-level" not in self.flags:
            command += ["--log-level", "error"]
        self.process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith(READY):
                self.port = int(line.removeprefix(READY).strip().rstrip("/").rsplit(":", 1)[1])
                return time.monotonic() - started
        raise RuntimeError(f"the server ended with {self.process.wait()} before it was ready")

    @property
    def url(self) -> str:
        return f"ws://127.0.0.1:{self.port}/v1/ws"

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def kill(self) -> None:
        """kill -9: nothing is said goodbye to."""
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self) -> int:
        """SIGTERM; returns the exit status."""
        assert self.process is not None
        self.process.terminate()
        return self.process.wait(timeout=60)

    def __enter__(self) -> Server:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.process is not None and self.process.poll() is None:
            self.stop()
        if self._scratch is not None:
            self._scratch.cleanup()


class Wire:
    """One connection: commands with their answers, events in order of arrival."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.events: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.others: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._answers: dict[str, asyncio.Future[dict[str, Any]]] = {}
        self._last: dict[str, int] = {}
        self._unacked = 0
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        with contextlib.suppress(Exception):
            async for data in self.socket:
                arrived = time.monotonic()
                frame = msgspec.json.decode(data)
                for each in frame if isinstance(frame, list) else (frame,):
                    await self._take(each, arrived)
        for future in self._answers.values():
            if not future.done():
                future.set_exception(ConnectionError("the connection ended"))

    async def _take(self, frame: dict[str, Any], arrived: float) -> None:
        kind = frame["type"]
        if kind == "event":
            frame["arrived"] = arrived
            self._last[frame["session"]] = frame["offset"]
            self._unacked += 1
            if self._unacked >= 256:
                self._unacked = 0
                for session, offset in self._last.items():
                    await self.send({"type": "ack", "session": session, "offset": offset})
            self.events.put_nowait(frame)
        elif kind in ("ok", "error") and frame.get("id") in self._answers:
            future = self._answers.pop(frame["id"])
            if not future.done():
                future.set_result(frame)
        elif kind == "ping":
            await self.send({"type": "pong"})
        else:
            self.others.put_nowait(frame)

    async def send(self, frame: dict[str, Any]) -> None:
        await self.socket.send(msgspec.json.encode(frame).decode())

    async def command(self, kind: str, **fields: Any) -> dict[str, Any]:
        """Sends a command and returns its answer; raises RuntimeError when that is an error."""
        id = fields.pop("id", None) or new_ulid()
        self._answers[id] = asyncio.get_running_loop().create_future()
        future = self._answers[id]
        await self.send({"type": kind, "id": id, **fields})
        answer = await future
        if answer["type"] == "error":
            raise RuntimeError(str(answer["error"]))
        return answer

    async def create(self, **fields: Any) -> str:
        """A new session, subscribed to from its start."""
        session = str((await self.command("session.create", **fields))["session"])
        await self.command("subscribe", session=session, offset=0)
        return session

    async def until_end(self, response_id: str) -> list[dict[str, Any]]:
        """The events up to and with the response's terminal one."""
        seen = []
        while True:
            frame = await self.events.get()
            seen.append(frame)
            event = frame["event"]
            if event.get("response_id") == response_id and event["type"] in TERMINAL:
                return seen

    async def close(self) -> None:
        await self.socket.close()
        await self._reading


TERMINAL = frozenset({"response.completed", "response.incomplete", "response.failed"})


@contextlib.asynccontextmanager
async def connected(url: str, **hello: Any) -> AsyncIterator[Wire]:
    async with connect(url, subprotocols=["sessile.v1+json"], compression=None, max_size=None) as socket:  # type: ignore[list-item]
        wire = Wire(socket)
        await wire.send({"type": "hello", **hello})
        ready = await wire.others.get()
        if ready["type"] != "ready":
            raise RuntimeError(f"not ready: {ready}")
        try:
            yield wire
        finally:
            await wire.close()


def text_of(frames: Sequence[dict[str, Any]]) -> str:
    return "".join(f["event"]["delta"] for f in frames if f["event"]["type"] == "response.output_text.delta")


def filler(tokens: int, seed: int = 0) -> str:
    """English of about `tokens` tokens that differs from seed to seed from its first word on."""
    words = ("river", "stone", "amber", "cloud", "train", "paper", "winter", "garden", "signal", "copper", "lemon")
    return " ".join(words[(index * 7 + seed * 3 + index // 11 + (seed >> 3)) % len(words)] for index in range(tokens))
