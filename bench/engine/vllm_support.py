"""vLLM's own server, which benches measure against: `vllm.entrypoints.openai.api_server` with prefix caching, and with
as many blocks and engine threads as ours has."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path

import httpx

from bench.support import ROOT
from deploy.cluster import free_port

MODEL = ROOT / ".cache" / "models" / "SmolLM2-135M-Instruct.Q4_1-vllm-fp32"
BLOCK = 32


@contextlib.asynccontextmanager
async def peer(
    blocks: int, slots: int, window: int, threads: int = 1, dtype: str = "bfloat16"
) -> AsyncIterator[httpx.AsyncClient]:
    port = free_port()
    environment = os.environ | {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_NO_USAGE_STATS": "1",
        "OMP_NUM_THREADS": str(threads),
        "VLLM_LOGGING_LEVEL": "WARNING",
    }
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(MODEL), "--port", str(port)]
    command += ["--host", "127.0.0.1", "--dtype", dtype, "--enforce-eager", "--block-size", str(BLOCK)]
    command += ["--num-gpu-blocks-override", str(blocks), "--kv-cache-memory-bytes", str(1 << 30)]
    command += ["--max-model-len", str(window), "--max-num-seqs", str(slots)]
    command += ["--enable-prefix-caching", "--enable-prompt-tokens-details"]
    command += ["--distributed-executor-backend", "uni", "--served-model-name", "m", "--disable-log-stats"]
    async with _healthy(command, port, environment) as client:
        yield client


@contextlib.asynccontextmanager
async def _healthy(command: list[str], port: int, environment: dict[str, str]) -> AsyncIterator[httpx.AsyncClient]:
    """A server of its own, once it says that it is well; ended afterwards."""
    log_path = Path(tempfile.gettempdir()) / f"bench-vllm-{port}.log"
    with log_path.open("w") as log:
        server = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=300) as client:
            deadline = time.monotonic() + 150
            while True:
                with contextlib.suppress(httpx.TransportError):
                    if (await client.get("/health")).status_code == 200:
                        break
                if server.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"{command[0]} did not start: {log_path.read_text()[-2000:]}")
                await asyncio.sleep(0.5)
            yield client
    finally:
        server.terminate()
        server.wait(20)
        log_path.unlink(missing_ok=True)
