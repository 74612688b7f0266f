"""vLLM with sessions whose KV outlives the device, in vLLM's own environment:

    .venv-vllm/bin/python -m bench.vllm_kv restore        # a 4k-token session: cold, resident, restored; fp32
    .venv-vllm/bin/python -m bench.vllm_kv write-through  # tokens/s with writing through against without
    .venv-vllm/bin/python -m bench.vllm_kv fleet          # more sessions than the device holds, against vLLM itself

`restore` runs cold and restored turns alternately on one engine whose device cache is emptied before each; the last
line is a restart that finds the session on disk. `fleet` runs the same prompts, token for token, through the engine and
through `vllm.entrypoints.openai.api_server` with prefix caching and as many blocks, one after the other.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import random
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import httpx

from bench.support import lower_bound, percentile, report
from inference.vllm.core import VllmCore
from inference.vllm.engine import VllmEngine, VllmOptions
from sessions.ports import Chunk, Finish, GenerationRequest
from sessions.types import ResponseId, Sampling, SessionId, SessionKey, TenantId

MODEL = Path(__file__).resolve().parent.parent / ".cache" / "models" / "SmolLM2-135M-Instruct.Q4_1-vllm-fp32"
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
async def running(wanted: VllmOptions) -> AsyncIterator[VllmEngine]:
    engine = VllmEngine(wanted)
    await engine.start()
    try:
        yield engine
    finally:
        await engine.close()


class Turn:
    """One answer: its tokens, when the first came, how long all took, and what was not computed."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.ttft_s = 0.0
        self.total_s = 0.0
        self.cached = 0


def words(chance: random.Random, count: int) -> list[int]:
    """Tokens that nobody else's prompt begins with."""
    return [chance.randrange(100, VOCABULARY) for _ in range(count)]


async def ask(engine: VllmEngine, session: str, prompt: Sequence[int], max_tokens: int) -> Turn:
    request = GenerationRequest(
        key=SessionKey(TenantId("bench"), SessionId(session)),
        response_id=ResponseId("r"),
        generation=1,
        prompt=tuple(prompt),
        sampling=Sampling(temperature=0),
        seed=1,
        max_tokens=max_tokens,
    )
    turn, begun = Turn(), time.perf_counter()
    async for item in engine.generate(request):
        match item:
            case Chunk():
                turn.ttft_s = turn.ttft_s or time.perf_counter() - begun
                turn.tokens.extend(item.tokens)
            case Finish():
                turn.cached = item.cached_tokens
    turn.total_s = time.perf_counter() - begun
    turn.ttft_s = turn.ttft_s or turn.total_s
    return turn


async def settle(engine: VllmEngine) -> None:
    assert engine._spill is not None
    await engine._spill.settled()
    await engine._spill.tiers._settle()


async def empty(engine: VllmEngine) -> None:
    assert isinstance(engine._core, VllmCore)
    assert await engine._core.reset()


# -- restore -------------------------------------------------------------------------------------------------


async def restore(folder: Path, pairs: int, tokens: int) -> None:
    chance = random.Random(4)
    cold: list[Turn] = []
    restored: list[Turn] = []
    async with running(options(folder, "float32")) as engine:
        first = words(chance, tokens)
        opened = await ask(engine, "s", first, 16)
        later = [*first, *opened.tokens, *words(chance, 40)]
        resident = await ask(engine, "s", later, 16)
        await settle(engine)
        await empty(engine)
        same = (await ask(engine, "alone", later, 16)).tokens == resident.tokens
        for number in range(pairs):
            await settle(engine)
            await empty(engine)
            cold.append(await ask(engine, f"cold{number}", words(chance, len(later)), 16))
            await engine.release(SessionKey(TenantId("bench"), SessionId(f"cold{number}")))
            await settle(engine)
            await empty(engine)
            restored.append(await ask(engine, "s", later, 16))
            same = same and restored[-1].tokens == resident.tokens
    ratios = [c.ttft_s / r.ttft_s for c, r in zip(cold, restored, strict=True)]
    report(
        "vllm restore",
        {
            "tokens": len(later),
            "pairs": pairs,
            "cold_ttft_s_p50": percentile([t.ttft_s for t in cold], 0.5),
            "restored_ttft_s_p50": percentile([t.ttft_s for t in restored], 0.5),
            "resident_ttft_s": resident.ttft_s,
            "cold_over_restored_mean": sum(ratios) / len(ratios),
            "cold_over_restored_lower_bound": lower_bound(ratios),
            "restored_tokens_cached": restored[-1].cached,
            "fp32_cold_resident_restored_equal": same,
        },
    )
    async with running(options(folder, "float32")) as engine:
        disk = await ask(engine, "s", later, 16)
    figures = {"ttft_s": disk.ttft_s, "tokens_cached": disk.cached, "equal": disk.tokens == resident.tokens}
    report("vllm restore from disk after a restart", figures)


# -- write-through -------------------------------------------------------------------------------------------


async def write_through(folder: Path, pairs: int, streams: int, tokens: int) -> None:
    chance = random.Random(5)
    ratios = []
    rates: dict[bool, list[float]] = {True: [], False: []}
    async with running(options(folder, "bfloat16", disk_folder=None)) as engine:
        assert engine._spill is not None

        async def round_(number: int, saves: bool) -> float:
            assert engine._spill is not None
            engine._spill.saves = saves
            prompts = [words(chance, 96) for _ in range(streams)]
            begun = time.perf_counter()
            turns = await asyncio.gather(
                *(ask(engine, f"{saves}-{number}-{n}", prompt, tokens) for n, prompt in enumerate(prompts))
            )
            elapsed = time.perf_counter() - begun
            await settle(engine)
            return sum(len(turn.tokens) for turn in turns) / elapsed

        await round_(-1, True)
        for number in range(pairs):
            order = (True, False) if number % 2 else (False, True)
            got = {saves: await round_(number, saves) for saves in order}
            for saves, rate in got.items():
                rates[saves].append(rate)
            ratios.append(got[True] / got[False])
        saved = engine.stats().counters["saves"]
    report(
        "vllm write-through",
        {
            "pairs": pairs,
            "streams": streams,
            "tokens_each": tokens,
            "tokens_per_s_with": sum(rates[True]) / pairs,
            "tokens_per_s_without": sum(rates[False]) / pairs,
            "ratio_mean": sum(ratios) / pairs,
            "ratio_lower_bound": lower_bound(ratios),
            "snapshots_saved": saved,
        },
    )


# -- fleet ---------------------------------------------------------------------------------------------------


class Conversation:
    def __init__(self, chance: random.Random, opening: int, turns: int) -> None:
        self.prompt = words(chance, opening)
        self.additions = [words(chance, 40) for _ in range(turns - 1)]


def fleet_of(sessions: int, turns: int, opening: int) -> list[Conversation]:
    chance = random.Random(6)
    return [Conversation(chance, opening, turns) for _ in range(sessions)]


async def play(conversations: list[Conversation], turns: int, one: Any) -> dict[str, Any]:
    """Every session's turn k before anybody's turn k+1, two at a time."""
    follow_ups: list[Turn] = []
    reusable = reused = produced = 0
    begun = time.perf_counter()
    for number in range(turns):
        queue = list(enumerate(conversations))

        async def worker(number: int, queue: list[tuple[int, Conversation]]) -> None:
            nonlocal reusable, reused, produced
            while queue:
                index, conversation = queue.pop(0)
                before = len(conversation.prompt)
                if number:
                    conversation.prompt = [*conversation.prompt, *conversation.additions[number - 1]]
                turn = await one(f"s{index}", conversation.prompt, 32)
                conversation.prompt = [*conversation.prompt, *turn.tokens]
                produced += len(turn.tokens)
                if number:
                    follow_ups.append(turn)
                    reusable += (before - 1) // BLOCK * BLOCK
                    reused += turn.cached

        await asyncio.gather(worker(number, queue), worker(number, queue))
    elapsed = time.perf_counter() - begun
    return {
        "ttft_ms_p50": 1000 * percentile([turn.ttft_s for turn in follow_ups], 0.5),
        "ttft_ms_p95": 1000 * percentile([turn.ttft_s for turn in follow_ups], 0.95),
        "tokens_per_s": produced / elapsed,
        "recomputed_share": 1 - reused / reusable,
    }


async def ours(folder: Path, sessions: int, turns: int, opening: int, blocks: int) -> dict[str, Any]:
    wanted = options(folder, "bfloat16", disk_folder=None, device_blocks=blocks, context_window=8192, slots=2)
    async with running(wanted) as engine:

        async def one(session: str, prompt: Sequence[int], max_tokens: int) -> Turn:
            return await ask(engine, session, prompt, max_tokens)

        return await play(fleet_of(sessions, turns, opening), turns, one)


async def theirs(sessions: int, turns: int, opening: int, blocks: int) -> dict[str, Any]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = os.environ | {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_NO_USAGE_STATS": "1",
        "OMP_NUM_THREADS": "1",
        "VLLM_LOGGING_LEVEL": "WARNING",
    }
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(MODEL), "--port", str(port)]
    command += ["--host", "127.0.0.1", "--dtype", "bfloat16", "--enforce-eager", "--block-size", str(BLOCK)]
    command += ["--num-gpu-blocks-override", str(blocks), "--kv-cache-memory-bytes", str(1 << 30)]
    command += ["--max-num-seqs", "2", "--enable-prefix-caching", "--enable-prompt-tokens-details"]
    command += ["--distributed-executor-backend", "uni", "--served-model-name", "m", "--disable-log-stats"]
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
                    raise RuntimeError(f"vLLM's own server did not start: {log_path.read_text()[-2000:]}")
                await asyncio.sleep(0.5)

            async def one(session: str, prompt: Sequence[int], max_tokens: int) -> Turn:
                return await served(client, prompt, max_tokens)

            return await play(fleet_of(sessions, turns, opening), turns, one)
    finally:
        server.terminate()
        server.wait(20)
        log_path.unlink(missing_ok=True)


async def served(client: httpx.AsyncClient, prompt: Sequence[int], max_tokens: int) -> Turn:
    import json

    body = {
        "model": "m",
        "prompt": list(prompt),
        "max_tokens": max_tokens,
        "temperature": 0,
        "stream": True,
        "return_token_ids": True,
        "ignore_eos": False,
        "stream_options": {"include_usage": True},
    }
    turn, begun = Turn(), time.perf_counter()
    async with client.stream("POST", "/v1/completions", json=body) as answer:
        answer.raise_for_status()
        async for line in answer.aiter_lines():
            if not line.startswith("data: ") or line.endswith("[DONE]"):
                continue
            event = json.loads(line[6:])
            for choice in event.get("choices", ()):
                turn.ttft_s = turn.ttft_s or time.perf_counter() - begun
                turn.tokens.extend(choice.get("token_ids") or ())
            usage = event.get("usage") or {}
            turn.cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    turn.total_s = time.perf_counter() - begun
    return turn


async def fleet(folder: Path, sessions: int, turns: int, opening: int) -> None:
    total = sessions * (opening + turns * 32 + (turns - 1) * 40)
    blocks = 1 + total // BLOCK // 4
    own = await ours(folder, sessions, turns, opening, blocks)
    peer = await theirs(sessions, turns, opening, blocks)
    figures: dict[str, Any] = {"sessions": sessions, "turns": turns, "opening_tokens": opening, "blocks": blocks}
    figures |= {f"ours_{name}": value for name, value in own.items()}
    figures |= {f"vllm_{name}": value for name, value in peer.items()}
    figures |= {
        "ttft_p50_lower_by": peer["ttft_ms_p50"] / own["ttft_ms_p50"],
        "ttft_p95_lower_by": peer["ttft_ms_p95"] / own["ttft_ms_p95"],
        "tokens_per_s_higher_by": own["tokens_per_s"] / peer["tokens_per_s"],
    }
    report("vllm fleet", figures)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("restore", "write-through", "fleet"))
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--tokens", type=int, default=4096, help="restore: of the session")
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--answer", type=int, default=96, help="write-through: tokens of each answer")
    parser.add_argument("--sessions", type=int, default=8)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--opening", type=int, default=2500)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sessile-bench-") as scratch:
        folder = Path(scratch)
        match arguments.what:
            case "restore":
                asyncio.run(restore(folder, arguments.pairs, arguments.tokens))
            case "write-through":
                asyncio.run(write_through(folder, arguments.pairs, arguments.streams, arguments.answer))
            case _:
                asyncio.run(fleet(folder, arguments.sessions, arguments.turns, arguments.opening))


if __name__ == "__main__":
    main()
