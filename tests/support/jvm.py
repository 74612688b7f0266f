"""The Kotlin client's program for tests (`clients/jvm/test/Journey.kt`) as a process, steered and answered by lines."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[2]
CLIENT: Final = ROOT / "clients" / "jvm"
STDLIB: Final = CLIENT / "node_modules" / "kotlin-compiler" / "lib" / "kotlin-stdlib.jar"
CLASSES: Final = (
    CLIENT / "build" / "sessile-client.jar",
    CLIENT / "build" / "sessile-client-sockets.jar",
    CLIENT / "build" / "test",
    STDLIB,
)
WAIT_S: Final = 60


def compiled() -> None:
    """`make jvm` has done it, or it is done here; nothing where nothing has changed."""
    commands = [[str(ROOT / "deploy" / "ensure_jdk.sh")], [str(CLIENT / "scripts" / "build.sh")]]
    if not STDLIB.exists():
        node = str(ROOT / "deploy" / "with_node.sh")
        commands.insert(1, [node, "npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"])
    for command in commands:
        subprocess.run(command, cwd=CLIENT, check=True, timeout=600)


class Program:
    """One run. `told` is every line so far; who waits for one gets those that came before it too."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.told: list[dict[str, Any]] = []

    async def say(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line.encode() + b"\n")
        await self._process.stdin.drain()

    async def next(self, key: str) -> dict[str, Any]:
        """The next line that has the key."""
        assert self._process.stdout is not None
        async with asyncio.timeout(WAIT_S):
            while line := await self._process.stdout.readline():
                told: dict[str, Any] = json.loads(line)
                self.told.append(told)
                if "failed" in told and key != "failed":
                    raise AssertionError(told)
                if key in told:
                    return told
        raise AssertionError(f"it ended before it told of {key}: {self.told[-5:]}")

    async def asked(self, line: str, key: str) -> dict[str, Any]:
        await self.say(line)
        return await self.next(key)

    def text(self) -> str:
        """What its user has seen of the answers that it read, one behind the other."""
        return "".join(told["piece"] for told in self.told if "piece" in told)

    async def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()


@contextlib.asynccontextmanager
async def program(url: str, folder: Path, encoding: str, transport: str, *options: str) -> AsyncIterator[Program]:
    """`transport`: `http` (the JDK's own WebSocket) or `sockets`. `options` are the JVM's."""
    process = await asyncio.create_subprocess_exec(
        "java",
        *("-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", ":".join(map(str, CLASSES))),
        *options,
        *("sessile.test.JourneyKt", url, str(folder), encoding, transport),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=4 * 1024 * 1024,
    )
    run = Program(process)
    try:
        yield run
    finally:
        await run.kill()
