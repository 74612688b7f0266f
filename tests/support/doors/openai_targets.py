"""Servers for the suites that pass anywhere: simulated in this process, or real ones as their commands start them.

SESSILE_TEST_OPENAI_BASE_URL (with `/v1`, and SESSILE_TEST_OPENAI_KEY where the server needs one) adds a server that
runs already, for example a gateway of a cluster; SESSILE_TEST_OPENAI_BLOCK is the size in tokens of the blocks in which
it reuses KV (vLLM: 32).
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import openai

from inference.simulated import SimulatedOptions
from tests.support.doors.openai_server import serving

ROOT = Path(__file__).resolve().parents[3]
READY = "Sessile is ready: "
PATIENCE_S = 60.0
# The template that is built in, because the small model's own does not render tools.
LLAMA = ("--engine", "llama", "--chat-template", "chatml", "--threads", "1", "--slots", "2", "--context", "2048")
ELSEWHERE = os.environ.get("SESSILE_TEST_OPENAI_BASE_URL")
BLOCK = int(os.environ.get("SESSILE_TEST_OPENAI_BLOCK", "1"))


class Target(NamedTuple):
    base_url: str
    key: str = "none"
    num_lacks: int | None = None  # of the capabilities that the suites try, where that is known

    def client(self) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(base_url=self.base_url, api_key=self.key, max_retries=0)


@asynccontextmanager
async def printed(*command: str, last: str) -> AsyncIterator[list[str]]:
    """A process of ours, and what it printed up to the line that begins with `last`. It is asked to stop at the end."""
    process = await asyncio.create_subprocess_exec(sys.executable, *command, cwd=ROOT, stdout=PIPE, stdin=DEVNULL)
    try:
        assert process.stdout is not None
        lines: list[str] = []
        async with asyncio.timeout(PATIENCE_S):
            while line := (await process.stdout.readline()).decode():
                lines.append(line.rstrip())
                if line.startswith(last):
                    break
        assert lines and lines[-1].startswith(last), f"it ended before it was ready: {lines}"
        yield lines
    finally:
        if process.returncode is None:
            process.terminate()
            async with asyncio.timeout(PATIENCE_S):
                await process.wait()


@asynccontextmanager
async def target(name: str) -> AsyncIterator[Target]:
    async with AsyncExitStack() as stack:
        if name == "elsewhere":
            assert ELSEWHERE is not None
            yield Target(ELSEWHERE, os.environ.get("SESSILE_TEST_OPENAI_KEY", "none"))
            return
        if name == "simulated":
            # Only its limit ends an answer: one that is to be cancelled is surely still written.
            server = await stack.enter_async_context(serving(SimulatedOptions(step_base_s=0.002, answer_tokens_mean=0)))
            yield Target(f"{server.server.url}/v1", num_lacks=1)
            return
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sessile-openai-")))
        folder.chmod(0o755)  # PostgreSQL enters it under an account of its own
        if name == "cluster":
            command = ("deploy/cluster.py", "--port", "0", "--replicas", "2", "--gateways", "1", "--data", str(folder))
            lines = await stack.enter_async_context(
                printed(*command, "--", "--log-level", "error", *LLAMA, last="The cluster is ready")
            )
            (said,) = [line for line in lines if line.startswith("gateway-1: ")]
            url = said.partition(READY)[2].split()[0]
        else:
            flags = ("--port", "0", "--data", str(folder), "--log-level", "error", *LLAMA)
            (*_, said) = await stack.enter_async_context(printed("app.py", "serve", *flags, last=READY))
            url = said.removeprefix(READY)
        yield Target(f"{url.rstrip('/')}/v1", num_lacks=0)
