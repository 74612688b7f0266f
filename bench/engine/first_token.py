"""From a fresh clone to the first streamed token with `make serve`, installation included; then later starts.

    python -m bench.engine.first_token

Clones this repository into an empty folder, runs `make serve` there (its own environment, model and data), asks a
question as soon as the ready line is printed, and waits for the first delta; then starts it again. Bars: ≤ 3 min, and
later starts ready in ≤ 5 s. Package caches of the machine are used if there are any: say so with the result.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import subprocess
import tempfile
import time
from pathlib import Path

from bench.support import report, run_bench
from deploy.cluster import free_port
from tests.support.doors.server_process import READY, ROOT
from tests.support.doors.wire_client import connected


async def first_delta(port: int) -> None:
    async with connected(f"ws://127.0.0.1:{port}/v1/ws") as wire:
        session = await wire.create()
        await wire.command("message.create", session=session, content="Hello!", max_output_tokens=16)
        async with asyncio.timeout(60):
            while (await wire.events.get())["event"]["type"] != "response.output_text.delta":
                continue


def served(folder: Path) -> tuple[float, float]:
    """Runs `make serve` once; seconds until ready, and until the first token."""
    port = free_port()
    started = time.monotonic()
    environment = {name: value for name, value in os.environ.items() if name != "SESSILE_MODEL"}  # the default one
    process = subprocess.Popen(
        ["make", "serve", f"PORT={port}", "ARGS=--threads 1 --log-level error"],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        for line in process.stdout:
            print("   ", line.rstrip(), flush=True)
            if line.startswith(READY):
                break
        else:
            raise RuntimeError("make serve ended before it was ready")
        ready = time.monotonic() - started
        asyncio.run(first_delta(port))
        return ready, time.monotonic() - started
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(timeout=60)


def main(_: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory(prefix="sessile-fresh-") as scratch:
        folder = Path(scratch) / "sessile"
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(folder)], check=True)
        ready, first = served(folder)
        later = [served(folder)[0] for _ in range(3)]
    report(
        "first_token",
        {
            "fresh clone to ready s": ready,
            "fresh clone to first token s (bar 180)": first,
            "later starts ready s, worst of 3 (bar 5)": max(later),
        },
    )


if __name__ == "__main__":
    run_bench(main, __doc__)
