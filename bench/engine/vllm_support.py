"""What the benches of vLLM share: our engine as it is measured, and vLLM's own server beside it.

The server is `vllm.entrypoints.openai.api_server` with prefix caching, as many blocks and engine threads; it is
given the same token ids and gives token ids back, so that both compute the same. Several of them stand behind
`vllm-router`, which sends what carries the same `X-Session-ID` to the same one (`consistent_hash`).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import msgspec

from deploy.cluster import free_port
from inference.vllm.async_llm import VllmCore
from inference.vllm.engine import VllmEngine, VllmOptions
from sessions.model.generation import Chunk, Finish, GenerationRequest
from sessions.model.types import ResponseId, Sampling, SessionId, SessionKey, TenantId
from sessions.ports import Keys

ROOT = Path(__file__).resolve().parents[2]
MODEL = ROOT / ".cache" / "models" / "SmolLM2-135M-Instruct.Q4_1-vllm-fp32"
ROUTER = ROOT / ".venv-router" / "bin" / "vllm-router"
BLOCK = 32
VOCABULARY = 40_000


def options(folder: Path, dtype: str, **others: Any) -> VllmOptions:
    settings: dict[str, Any] = {
        "model_path": MODEL,
        "slots": 8,
        "block_tokens": BLOCK,
        "device_kv_bytes": 1 << 30,
        "host_bytes_max": 6 << 30,
        "disk_folder": folder / "kv",
        "engine_args": {"dtype": dtype},
    }
    return VllmOptions(**(settings | others))


@contextlib.asynccontextmanager
async def running(wanted: VllmOptions, keys: Keys | None = None) -> AsyncIterator[VllmEngine]:
    engine = VllmEngine(wanted, keys)
    await engine.start()
    try:
        yield engine
    finally:
        await engine.close()


class VllmTurn:
    """One answer: its tokens, when the first came, how long all took, and what was not computed."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.ttft_s = 0.0
        self.total_s = 0.0
        self.cached = 0

    @classmethod
    async def of(cls, engine: VllmEngine, asked: GenerationRequest) -> VllmTurn:
        turn, begun = cls(), time.perf_counter()
        async for item in engine.generate(asked):
            match item:
                case Chunk():
                    turn.ttft_s = turn.ttft_s or time.perf_counter() - begun
                    turn.tokens.extend(item.tokens)
                case Finish():
                    turn.cached = item.cached_tokens
        turn.total_s = time.perf_counter() - begun
        turn.ttft_s = turn.ttft_s or turn.total_s
        return turn


def words(chance: random.Random, count: int) -> list[int]:
    """Tokens that nobody else's prompt begins with."""
    return [chance.randrange(100, VOCABULARY) for _ in range(count)]


def request(
    session: str, prompt: Sequence[int], max_tokens: int, banned: dict[str, float] | None = None
) -> GenerationRequest:
    """Greedy. `banned`: `endings`, to keep an answer from ending before it has all its tokens."""
    return GenerationRequest(
        key=SessionKey(TenantId("bench"), SessionId(session)),
        response_id=ResponseId("r"),
        generation=1,
        prompt=tuple(prompt),
        sampling=Sampling(temperature=0, logit_bias=banned),
        seed=1,
        max_tokens=max_tokens,
    )


async def answer_to(
    engine: VllmEngine, session: str, prompt: Sequence[int], max_tokens: int, banned: dict[str, float] | None = None
) -> VllmTurn:
    """Takes what `request` takes."""
    return await VllmTurn.of(engine, request(session, prompt, max_tokens, banned))


def endings(engine: VllmEngine) -> dict[str, float]:
    return {str(token): -100.0 for token in engine._ends}


async def settle(engine: VllmEngine) -> None:
    assert engine._offload is not None
    await engine._offload.settled()
    await engine._offload.tiers.host.settle()


async def empty(engine: VllmEngine) -> None:
    assert isinstance(engine._core, VllmCore)
    assert await engine._core.reset()


# -- vLLM's own server -----------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def peer(blocks: int, slots: int, window: int, threads: int = 1) -> AsyncIterator[httpx.AsyncClient]:
    port = free_port()
    environment = os.environ | {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_NO_USAGE_STATS": "1",
        "OMP_NUM_THREADS": str(threads),
        "VLLM_LOGGING_LEVEL": "WARNING",
    }
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(MODEL), "--port", str(port)]
    command += ["--host", "127.0.0.1", "--dtype", "bfloat16", "--enforce-eager", "--block-size", str(BLOCK)]
    command += ["--num-gpu-blocks-override", str(blocks), "--kv-cache-memory-bytes", str(1 << 30)]
    command += ["--max-model-len", str(window), "--max-num-seqs", str(slots)]
    command += ["--enable-prefix-caching", "--enable-prompt-tokens-details"]
    command += ["--distributed-executor-backend", "uni", "--served-model-name", "m", "--disable-log-stats"]
    async with _healthy(command, port, environment) as client:
        yield client


@contextlib.asynccontextmanager
async def routed(servers: int, blocks: int, slots: int, window: int) -> AsyncIterator[httpx.AsyncClient]:
    """So many of them behind vLLM's router."""
    if not ROUTER.exists():
        raise SystemExit(f"There is no {ROUTER}: python3.11 deploy/setup_env.py --venv .venv-router router")
    async with contextlib.AsyncExitStack() as stack:
        peers = [await stack.enter_async_context(peer(blocks, slots, window)) for _ in range(servers)]
        port = free_port()
        command = [str(ROUTER), "--host", "127.0.0.1", "--port", str(port), "--policy", "consistent_hash"]
        command += ["--prometheus-port", str(free_port())]
        command += ["--worker-urls", *(str(each.base_url).rstrip("/") for each in peers)]
        yield await stack.enter_async_context(_healthy(command, port, dict(os.environ)))


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


async def served(
    client: httpx.AsyncClient,
    prompt: Sequence[int],
    max_tokens: int,
    banned: dict[str, float] | None = None,
    session: str = "",
) -> VllmTurn:
    body = {
        "model": "m",
        "prompt": list(prompt),
        "max_tokens": max_tokens,
        "temperature": 0,
        "stream": True,
        "return_token_ids": True,
        "ignore_eos": False,
        "logit_bias": banned,
        "stream_options": {"include_usage": True},
    }
    turn, begun = VllmTurn(), time.perf_counter()
    named = {"x-session-id": session} if session else {}
    async with client.stream("POST", "/v1/completions", json=body, headers=named) as answer:
        answer.raise_for_status()
        async for line in answer.aiter_lines():
            if not line.startswith("data: ") or line.endswith("[DONE]"):
                continue
            event = msgspec.json.decode(line[6:])
            for choice in event.get("choices", ()):
                turn.ttft_s = turn.ttft_s or time.perf_counter() - begun
                turn.tokens.extend(choice.get("token_ids") or ())
            usage = event.get("usage") or {}
            turn.cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    turn.total_s = time.perf_counter() - begun
    return turn
