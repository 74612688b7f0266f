"""Programs that the server starts by a fork while calls are under way, as Litestream: gRPC leaves them alone."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FORKS = 300
PROGRAM = f"""
import asyncio, os
import app
from grpc import aio, method_handlers_generic_handler, unary_unary_rpc_method_handler

async def echo(request, context):
    return request

async def main():
    server = aio.server()
    port = server.add_insecure_port("127.0.0.1:0")
    handlers = {{"echo": unary_unary_rpc_method_handler(echo)}}
    server.add_generic_rpc_handlers((method_handlers_generic_handler("test", handlers),))
    await server.start()
    call = aio.insecure_channel(f"127.0.0.1:{{port}}").unary_unary("/test/echo")

    async def callers():
        while True:
            await call(b"x")

    calls = [asyncio.create_task(callers()) for _ in range(8)]
    ends = set()
    for _ in range({FORKS}):
        await call(b"x")
        child = os.fork()
        if child == 0:
            os.closerange(3, 1 << 16)
            os._exit(0)
        ends.add(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    print(*ends, flush=True)
    os._exit(0)

asyncio.run(main())
"""


@pytest.mark.slow
async def test_a_child_that_is_forked_while_calls_are_under_way_is_not_aborted() -> None:
    """gRPC's handlers aborted 14 of 400 children, those of the sandbox's own tests among them."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GRPC_")}
    program = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PROGRAM, cwd=ROOT, env=environment, stdout=subprocess.PIPE
    )
    printed, _ = await asyncio.wait_for(program.communicate(), 120)
    assert printed.split() == [b"0"]
