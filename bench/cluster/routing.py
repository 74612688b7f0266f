"""What routing adds to a command: from the gateway's call to the replica's, and back with the answer.

    python -m bench.cluster.routing [--rate 200] [--seconds 10]

Replicas as processes on a real Valkey and PostgreSQL; this process is the gateway. Commands come at a steady rate,
whatever happens to those before. What is added to each is its time at the gateway less its time inside the replica's
runtime: both ways over the link, twice the coding, and waiting for a turn in two event loops. `met` are commands of
sessions that the gateway has met; `unmet` ones are looked up in the directory first.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec

from actors.routing.router import Router
from bench.support import report, run_bench, spread
from sessions.model import commands as cm
from sessions.model.request import request_of
from sessions.model.types import CommandId, SessionKey
from tests.support.cluster.processes import processes
from tests.support.cluster.real import ALICE, create, new_id

NOTES = "SESSILE_BENCH_NOTES"

Noted = dict[str, float]


def replica(arguments: list[str]) -> None:
    """A replica that notes how long each command was inside its runtime, and writes that down when it ends."""
    from actors.hosting.runtime import Runtime
    from tests.support.cluster import node

    inside: Noted = {}
    execute = Runtime.execute

    async def noted(self: Runtime, request: Any, *, instead_of: Any = None) -> Any:
        began = time.perf_counter()
        try:
            return await execute(self, request, instead_of=instead_of)
        finally:
            inside[request.command.id] = time.perf_counter() - began

    Runtime.execute = noted  # type: ignore[method-assign]
    node.main(arguments)
    Path(os.environ[NOTES], f"{os.getpid()}.json").write_bytes(msgspec.json.encode(inside))


async def titled(router: Router, key: SessionKey, took: Noted) -> None:
    """One command, as its gateway sees it."""
    command = cm.SessionUpdate(id=CommandId(new_id()), session=key.session, title=new_id())
    began = time.perf_counter()
    await router.execute(request_of(ALICE, command))
    took[command.id] = time.perf_counter() - began


async def steadily(router: Router, keys: list[SessionKey], took: Noted, rate: float, seconds: float) -> None:
    loop = asyncio.get_running_loop()
    began = loop.time()
    async with asyncio.TaskGroup() as tasks:
        for number in range(int(rate * seconds)):
            await asyncio.sleep(max(0.0, began + number / rate - loop.time()))
            tasks.create_task(titled(router, keys[number % len(keys)], took))


async def run(rate: float, seconds: float, sessions: int, folder: Path) -> None:
    met: Noted = {}
    unmet: Noted = {}
    async with processes("--log", "error", module="bench.cluster.routing") as made:
        async with made.gateway("g1") as (first, _), made.gateway("g2") as (second, _):
            keys = [await create(first, f"s{number}") for number in range(sessions)]
            for number in range(8):  # the second one's links
                await create(second, f"links{number}")
            for key in keys:
                await titled(second, key, unmet)
            await steadily(first, keys, met, rate, seconds)
        for each in made.replicas.values():
            each.signal(signal.SIGTERM)
            await each.process.wait()
    inside: Noted = {}
    for path in folder.iterdir():
        inside |= msgspec.json.decode(path.read_bytes())
    figures: dict[str, float] = {"commands_per_s": rate, "commands": len(met)}
    for name, took in (("met", met), ("unmet", unmet)):
        figures |= spread(name + "_ms_{}", [seconds - inside[id] for id, seconds in took.items()], times=1000)
    figures |= spread("command_ms_{}", list(met.values()), times=1000)
    report("cluster_routing", figures)


async def main(given: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory(prefix="sessile-bench-") as folder:
        os.environ[NOTES] = folder  # the replicas inherit it
        await run(given.rate, given.seconds, given.sessions, Path(folder))


if __name__ == "__main__":
    if sys.argv[1:2] == ["replica"]:
        replica(sys.argv[1:])
    else:
        run_bench(main, __doc__, rate=200.0, seconds=10.0, sessions=200)
