"""How long code waits before its first line runs, in a sandbox that is begun for it and in one that stands ready; and
how long a program needs to go on in a process that has never seen it.

    python -m bench.clients.code_tools --starts 60 --rounds 20

A start is from the moment when a sandbox is asked for until the code reads the clock, which all processes share. A
round is a program with 5 calls; before each step all workers of its interpreter go, as they do when their server is
killed, and what is measured is a new pool, the snapshot out of the log, and the run to the next call. In each second
round the version is another, so that the program is run anew on the recorded answers.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from typing import Any

import structlog

from bench.support import is_faultless, report, run_bench, spread
from inference.tools.code.programs import open_interpreter
from inference.tools.code.sandbox_pool import SandboxBounds, SandboxPool, find_kind
from inference.tools.code.scratch import ScratchFolders
from inference.tools.tools_file import CodeTool
from sessions.model.types import CallId, ProgramPoint, ResponseId, SessionId, SessionKey, TenantId
from sessions.server_tools import ProgramCall, ProgramStep, ProgramSuspended, ToolRequest

CLOCK = "import time\nprint(time.clock_gettime(time.CLOCK_MONOTONIC))"
PROGRAM = "total = 0\nfor at in range(5):\n    total += look(at=at)['n']\ntotal"
CALLS = 5


async def starts(count: int) -> dict[str, Any]:
    """Milliseconds of cold and warm starts."""
    bounds = SandboxBounds()
    with tempfile.TemporaryDirectory() as parent:
        folders = ScratchFolders(parent=parent)
        pool = SandboxPool(find_kind(), folders)
        try:
            await _start(pool, bounds)
            cold = [await _start(pool, bounds) for _ in range(count)]
            warm = []
            for _ in range(count):
                pool.keep_ready({bounds: 1})
                await asyncio.gather(*pool._filling.values())
                pool._wanted = {}
                warm.append(await _start(pool, bounds))
        finally:
            await pool.close()
            folders.close()
    return {"kind": pool.kind, **spread("cold_ms_{}", cold, "p50 p95"), **spread("warm_ms_{}", warm, "p50 p95")}


async def _start(pool: SandboxPool, bounds: SandboxBounds) -> float:
    begun_at = time.monotonic()
    sandbox = await pool.take(bounds)
    result = await sandbox.run(CLOCK, 10.0)
    pool.release(sandbox)
    await asyncio.gather(*pool._leaving)
    return (float(result.output) - begun_at) * 1000


async def programs(rounds: int) -> dict[str, Any]:
    """Milliseconds of going on, from snapshots and anew; what came out otherwise is in `findings`."""
    on: list[float] = []
    anew: list[float] = []
    findings, asked = list[str](), 0
    for number in range(rounds):
        done: tuple[ProgramCall, ...] = ()
        point: ProgramPoint | None = None
        while True:
            begun_at = time.monotonic()
            async with open_interpreter() as interpreter:
                came_to = await interpreter.advance(_step(done, point), CodeTool(interpreter="program"))
                if done:
                    (anew if number % 2 else on).append((time.monotonic() - begun_at) * 1000)
            if not isinstance(came_to, ProgramSuspended):
                break
            asked += 1
            done += (ProgramCall(name="look", arguments=came_to.arguments, output=json.dumps({"n": len(done)})),)
            version = "another" if number % 2 else came_to.version
            point = ProgramPoint(version=version, chain=b"", digest=b"", snapshot=came_to.snapshot)
        if came_to.output != "10" or [json.loads(each.arguments)["at"] for each in done] != list(range(CALLS)):
            findings.append(f"round {number}: {came_to}")
    repeated = asked - rounds * CALLS
    return {
        **spread("go_on_ms_{}", on, "p50 max"),
        **spread("run_anew_ms_{}", anew, "p50 max"),
        "calls_repeated": repeated,
        "findings": findings,
    }


def _step(done: tuple[ProgramCall, ...], point: ProgramPoint | None) -> ProgramStep:
    request = ToolRequest(
        key=SessionKey(TenantId("bench"), SessionId("bench")),
        response_id=ResponseId("r"),
        call_id=CallId("c"),
        name="program",
        arguments=json.dumps({"code": PROGRAM}),
        execution_id="call",
    )
    return ProgramStep(request=request, functions={"look": ("at",)}, done=done, point=point)


async def main(arguments: argparse.Namespace) -> bool:
    structlog.configure(processors=[_drop])
    started, ran = await starts(arguments.starts), await programs(arguments.rounds)
    report("code_tools", {**started, **ran, "findings": len(ran["findings"])})
    return is_faultless(ran["findings"])


def _drop(logger: Any, method: str, event: Any) -> Any:
    raise structlog.DropEvent


if __name__ == "__main__":
    run_bench(main, __doc__, starts=60, rounds=20)
