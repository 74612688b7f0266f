"""How long code waits before its first line runs, in a sandbox that is begun for it and in one that stands ready.

    python -m bench.clients.code_tools --starts 60

A start is from the moment when a sandbox is asked for until the code reads the clock, which all processes share.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from typing import Any

import structlog

from bench.support import report, run_bench, spread
from inference.tools.code.sandbox_pool import SandboxBounds, SandboxPool, find_kind
from inference.tools.code.scratch import ScratchFolders

CLOCK = "import time\nprint(time.clock_gettime(time.CLOCK_MONOTONIC))"


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


async def main(arguments: argparse.Namespace) -> None:
    structlog.configure(processors=[_drop])
    report("code_tools", await starts(arguments.starts))


def _drop(logger: Any, method: str, event: Any) -> Any:
    raise structlog.DropEvent


if __name__ == "__main__":
    run_bench(main, __doc__, starts=60)
