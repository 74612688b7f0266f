"""A session of 120,000 tokens in a window of 128K, on a model cut small: prefilled, spilled, restored, moved.

    python -m bench.kv.long_window --engine llama
    .venv-vllm/bin/python -m bench.kv.long_window --engine vllm
    python -m bench.kv.long_window --engine llama --part doors      # WebSocket and OpenAI door of the whole server

`kv`: two replicas and a gateway in one process on loopback gRPC with a journal on disk. A message of so many tokens is
answered; then one question is sent from the same place again and again, each time on a branch of its own, while the
session's KV is on the device, in host memory, on disk, and on the other replica. `doors`: the same message by
WebSocket, and by `/v1/chat/completions`, whose client resends everything with its next question.

The model has random weights, `--layers` layers of one narrow head, and positions scaled to the window: what it writes
is worth nothing, but depends on every block of what it has read. Bars: after each, at most a block is computed again
and the greedy answer is the same; nothing on the way holds the event loop for more than 50 ms of processor time
(`loop_cpu_ms_max`; `loop_ms_max` is how late its timers ran, beside an engine that wants the processors too). Exits
with 1 where one is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import httpx
import msgspec
import psutil

from actors.routing.router import Router
from bench.engine.random_model import RandomShape, write_folder, write_gguf
from bench.kv.compaction import CompactedTalk
from bench.support import Option, report, run_bench
from persistence.sqlite.database import SqliteDatabase
from persistence.sqlite.store import SqliteStore
from sessions.model import commands as cm
from sessions.model.events import OutputTextDelta, ResponseBody, ResponseCompleted, ResponseIncomplete
from sessions.model.request import request_of
from sessions.model.types import CommandId, ItemId, SessionKey
from sessions.ports import Engine
from tests.support.cluster.real import ALICE, RealCluster, RealReplica, Story, create, new_id, real_cluster
from tests.support.doors.server_process import ROOT, ServerProcess
from tests.support.doors.wire_client import connected

WINDOW: Final = 131_072
GGUF: Final = ROOT / ".cache/models/SmolLM2-135M-Instruct.Q4_1.gguf"
FOLDER: Final = ROOT / ".cache/models/SmolLM2-135M-Instruct.Q4_1-vllm-fp32"
WORDS: Final = (
    *("river", "stone", "amber", "cloud", "train", "paper", "winter", "garden", "signal", "copper", "lemon", "horse"),
    *("bridge", "candle", "forest", "island", "market", "needle", "orange", "pepper", "silver", "tunnel", "valley"),
)
QUESTION: Final = "And what follows from all of this, in a few words?"
ANSWER: Final = 24
ENDS: Final = ("0", "2")  # what the small model ends its answers with
BLOCK: Final = 32
LOOP_S: Final = 0.05
PATIENCE_S: Final = 1_500.0


def long_text(words: int, seed: int) -> str:
    return " ".join(random.Random(seed).choices(WORDS, k=words))


class LoopLag:
    """How late the loop's timers run, and how much processor time its thread takes between two of them."""

    def __init__(self) -> None:
        self._late_s = self._busy_s = 0.0
        self._task = asyncio.create_task(self._beat())

    async def _beat(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due, used = loop.time() + 0.005, time.thread_time()
            await asyncio.sleep(0.005)
            self._late_s = max(self._late_s, loop.time() - due)
            self._busy_s = max(self._busy_s, time.thread_time() - used)

    def taken(self, stage: str) -> dict[str, float]:
        """The worst since the last call."""
        found = {f"{stage}_loop_ms_max": 1000 * self._late_s, f"{stage}_loop_cpu_ms_max": 1000 * self._busy_s}
        self._late_s = self._busy_s = 0.0
        return found

    def close(self) -> None:
        self._task.cancel()


class Side(ABC):
    """What a bench has to know of an engine: how its KV leaves the device."""

    block: int

    def __init__(self, shape: RandomShape, folder: Path, threads: int) -> None:
        self.shape = shape
        self.folder = folder
        self.threads = threads

    @abstractmethod
    def make(self, name: str) -> Engine: ...

    @abstractmethod
    async def spill(self, engine: Any, key: SessionKey) -> None:
        """Returns when what the device holds of a session is in host memory."""

    @abstractmethod
    async def empty(self, engine: Any, key: SessionKey) -> None:
        """The device holds nothing of it any more."""

    @abstractmethod
    def tiers(self, engine: Any) -> Any: ...

    async def sink(self, engine: Any, key: SessionKey) -> None:
        """What is in host memory is on disk alone."""
        tiers = self.tiers(engine)
        await tiers.host.settle()
        for snapshot in list(tiers.host.of(key)):
            await tiers.host.drop(snapshot)


class LlamaSide(Side):
    block = 1

    def make(self, name: str) -> Engine:
        from inference.llama import LlamaEngine, LlamaOptions

        model = self.folder / "model.gguf"
        if not model.exists():
            write_gguf(GGUF, model, self.shape)
        return LlamaEngine(
            LlamaOptions(
                model_path=model,
                slots=2,
                threads=self.threads,
                context_window=WINDOW,
                host_bytes_max=2 << 30,
                disk_folder=self.folder / name,
            )
        )

    async def spill(self, engine: Any, key: SessionKey) -> None:
        for slot in engine._table.of(key):
            await engine._slot_kv.save(slot)

    async def empty(self, engine: Any, key: SessionKey) -> None:
        for slot in engine._table.of(key):
            engine._table.forget(slot)

    def tiers(self, engine: Any) -> Any:
        return engine._slot_kv.tiers


class VllmSide(Side):
    block = BLOCK

    def make(self, name: str) -> Engine:
        from inference.vllm.engine import VllmEngine, VllmOptions

        model = self.folder / "model"
        if not model.exists():
            write_folder(FOLDER, model, self.shape)
        return VllmEngine(
            VllmOptions(
                model_path=model,
                slots=2,
                threads=self.threads,
                context_window=WINDOW,
                block_tokens=BLOCK,
                device_kv_bytes=2 * 2 * self.shape.kv_bytes_per_token * (WINDOW + 4_096),  # in 32 bits
                host_bytes_max=2 << 30,
                disk_folder=self.folder / name,
                engine_args={"dtype": "float32"},
            )
        )

    async def spill(self, engine: Any, key: SessionKey) -> None:
        await engine._offload.settled(key)
        await engine._offload.tiers.host.settle()

    async def empty(self, engine: Any, key: SessionKey) -> None:
        assert await engine._core.reset()
        engine._block_usage.clear(engine._core.device_tokens)

    def tiers(self, engine: Any) -> Any:
        return engine._offload.tiers


class LongTurn(NamedTuple):
    ttft_s: float
    tokens: bytes  # that the engine wrote
    body: ResponseBody

    @property
    def usage(self) -> dict[str, Any]:
        assert self.body.usage is not None
        return self.body.usage

    @property
    def cached(self) -> int:
        return int(self.usage["input_tokens_details"]["cached_tokens"])

    @property
    def known(self) -> int:
        """Tokens whose KV is there behind it: from its last one nothing was computed."""
        return int(self.usage["input_tokens"] + self.usage["output_tokens"]) - 1


class LongSession:
    def __init__(self, made: RealCluster, router: Router, key: SessionKey) -> None:
        self.made = made
        self.router = router
        self.key = key
        self.story = Story(router, key)

    @property
    def replica(self) -> RealReplica:
        return self.made.owner(self.key)

    @property
    def engine(self) -> Any:
        return self.replica.replica.engine

    async def turn(self, text: str, parent: ItemId | None) -> LongTurn:
        command = cm.MessageCreate(
            id=CommandId(new_id()),
            session=self.key.session,
            content=text,
            parent_id=parent,
            max_output_tokens=ANSWER,
            temperature=0.0,
            logit_bias=dict.fromkeys(ENDS, -100.0),
        )
        begun = time.perf_counter()
        ok = await self.router.execute(request_of(ALICE, command))
        response = ok.response_id
        assert response is not None

        def begins() -> bool:
            records = self.story.records.values()
            return any(isinstance(r.event, OutputTextDelta) and r.event.response_id == response for r in records)

        await self.story.until(lambda: begins() or self.story.ended(response), PATIENCE_S)
        ttft_s = time.perf_counter() - begun
        await self.story.ends(response, PATIENCE_S)
        page = await self.made.journal.read(self.key, after=ok.offset or 0, limit=10_000, bytes_max=1 << 26)
        assert page is not None
        mine = [each for each in page.records if getattr(each.event, "response_id", None) == response]
        tokens = b"".join(each.private.tokens for each in mine if each.private is not None)
        (body,) = [
            each.event.response for each in mine if isinstance(each.event, ResponseCompleted | ResponseIncomplete)
        ]
        return LongTurn(ttft_s, tokens, body)

    async def move(self) -> float:
        """To the other replica; what the first one had of it is gone then. Returns the seconds."""
        source = self.replica
        target = next(each for each in self.made.replicas.values() if each is not source)
        begun = time.perf_counter()
        await source.replica.handoff.hand_off(self.key, target.member)
        seconds = time.perf_counter() - begun
        await source.replica.engine.release(self.key)
        return seconds


def memory_bytes() -> int:
    """Resident, of this process and of those that it has started."""
    process = psutil.Process()
    return sum(each.memory_info().rss for each in (process, *process.children(recursive=True)))


@asynccontextmanager
async def cluster(side: Side) -> AsyncIterator[tuple[RealCluster, Router]]:
    async with real_cluster(0, store=SqliteStore(SqliteDatabase(side.folder / "journal"))) as made:
        for name in ("r1", "r2"):
            await made.add_replica(name, side.make(name))
        yield made, await made.add_gateway("g1")


async def words_for(engine: Engine, tokens: int) -> int:
    sample = long_text(400, 1)
    return round(400 * tokens / len(await engine.tokenizer.text(sample)))


class Stages:
    """What one question costs, by where the session's KV is."""

    def __init__(self, session: LongSession, first: LongTurn, block: int, lag: LoopLag) -> None:
        self.session = session
        self.first = first
        self.block = block
        self.lag = lag
        self.figures: dict[str, Any] = {}
        self.faults: list[str] = []
        self.answer = b""

    async def measure(self, stage: str) -> None:
        parent = self.first.body.output[-1].id
        self.lag.taken("")
        turn = await self.session.turn(QUESTION, parent)
        lag = self.lag.taken(stage)
        again = max(0, self.first.known - turn.cached)
        self.answer = self.answer or turn.tokens
        same = turn.tokens == self.answer
        self.figures |= {
            f"{stage}_ttft_s": turn.ttft_s,
            f"{stage}_computed_again": again,
            f"{stage}_same_answer": same,
            **lag,
        }
        show(**{stage: turn.ttft_s, "again": again, "same": same, **lag})
        if again > self.block:
            self.faults.append(f"{stage}: {again} tokens were computed again")
        if not same:
            self.faults.append(f"{stage}: the answer is another one")
        self.judge(lag)

    def judge(self, lag: dict[str, float]) -> None:
        self.faults += [
            f"{name}: {value:.0f}"
            for name, value in lag.items()
            if name.endswith("_cpu_ms_max") and value > 1000 * LOOP_S
        ]


def show(**seen: Any) -> None:
    """Writes to standard error what was seen just now: a run takes minutes."""
    parts = (f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}" for name, value in seen.items())
    print("  " + ", ".join(parts), file=sys.stderr, flush=True)


async def through_tiers(arguments: argparse.Namespace, side: Side) -> bool:
    figures: dict[str, Any] = {}
    async with cluster(side) as (made, router):
        lag = LoopLag()
        session = LongSession(made, router, await create(router, "long"))
        await session.turn("Hello.", None)  # everything has been used once, and its owner is known
        engine = session.engine
        words = await words_for(engine, arguments.tokens)
        memory = memory_bytes()
        lag.taken("")
        first = await session.turn(long_text(words, 7), None)
        prefill = lag.taken("prefill")
        figures |= {
            "prompt_tokens": first.usage["input_tokens"],
            "prefill_s": first.ttft_s,
            "prefill_tokens_per_s": first.usage["input_tokens"] / first.ttft_s,
            **prefill,
            "memory_mb": memory_bytes() / 1e6,
            "memory_grown_mb": (memory_bytes() - memory) / 1e6,
        }
        show(**figures)
        stages = Stages(session, first, side.block, lag)
        stages.judge(prefill)
        await stages.measure("resident")
        begun = time.perf_counter()
        await side.spill(engine, session.key)
        figures["spill_s"] = time.perf_counter() - begun
        figures["host_mb"] = side.tiers(engine).host.bytes / 1e6
        await side.empty(engine, session.key)
        await stages.measure("restored")
        await side.spill(engine, session.key)
        await side.empty(engine, session.key)
        await side.sink(engine, session.key)
        await stages.measure("from_disk")
        lag.taken("")
        figures["move_s"] = await session.move()
        moving = lag.taken("move")
        figures |= moving
        stages.judge(moving)
        show(spill_s=figures["spill_s"], host_mb=figures["host_mb"], move_s=figures["move_s"])
        await stages.measure("moved")
        lag.close()
    report("long_window", {**about(arguments, side.shape), **figures, **stages.figures, "faults": len(stages.faults)})
    for fault in stages.faults:
        print("  fault:", fault, file=sys.stderr)
    return not stages.faults


# -- doors -----------------------------------------------------------------------------------------------------------


async def at_the_openai_door(http: httpx.AsyncClient, messages: list[dict[str, str]]) -> tuple[float, str, Any]:
    """Seconds to the first text, the answer, and what was used."""
    body = {"model": "long", "messages": messages, "stream": True, "max_tokens": ANSWER, "temperature": 0.0}
    body |= {"stream_options": {"include_usage": True}, "logit_bias": dict.fromkeys(ENDS, -100)}
    begun, first_s, text, usage = time.perf_counter(), 0.0, "", None
    async with http.stream("POST", "/v1/chat/completions", json=body) as answer:
        if answer.status_code != 200:
            raise RuntimeError((await answer.aread()).decode())
        async for line in answer.aiter_lines():
            if not line.startswith("data: ") or line == "data: [DONE]":
                continue
            event = msgspec.json.decode(line[6:])
            usage = event.get("usage") or usage
            for choice in event["choices"]:
                if choice["delta"].get("content"):
                    first_s = first_s or time.perf_counter() - begun
                    text += choice["delta"]["content"]
    return first_s, text, usage


async def loop_stalls(http: httpx.AsyncClient) -> int:
    """How often the server's event loop stood still (for `--loop-stall-ms`)."""
    lines = (await http.get("/metrics")).text.splitlines()
    return round(sum(float(line.split()[-1]) for line in lines if line.startswith("sessile_loop_stalls_total")))


async def through_doors(arguments: argparse.Namespace, side: Side) -> bool:
    engine, name = arguments.engine, "model.gguf" if arguments.engine == "llama" else "model"
    model = side.folder / name
    (write_gguf if engine == "llama" else write_folder)(GGUF if engine == "llama" else FOLDER, model, side.shape)
    flags = ["--engine", engine, "--model", str(model), "--context", str(WINDOW), "--slots", "2"]
    flags += [
        "--served-model-name",
        "long",
        "--threads",
        str(arguments.threads),
        "--loop-stall-ms",
        str(round(1000 * LOOP_S)),
    ]
    if engine == "vllm":
        room = 2 * 2 * side.shape.kv_bytes_per_token * (WINDOW + 4_096)
        flags += ["--vllm-args", msgspec.json.encode({"dtype": "float32", "kv_cache_memory_bytes": room}).decode()]
    figures: dict[str, Any] = {}
    faults: list[str] = []
    with ServerProcess(*flags) as server:
        base = server.url.replace("ws", "http", 1).removesuffix("/v1/ws")
        async with httpx.AsyncClient(base_url=base, timeout=PATIENCE_S) as http, connected(server.url) as wire:
            count = (await http.post("/tokenize", json={"model": "long", "prompt": long_text(400, 1)})).json()["count"]
            words = round(400 * arguments.tokens / count)
            begun, stalls = time.perf_counter(), await loop_stalls(http)
            talk = CompactedTalk(wire, await wire.create(max_output_tokens=ANSWER))
            for stage, text in (("ws", long_text(words, 8)), ("ws_later", QUESTION)):
                turn = await talk.say(text)
                later = await loop_stalls(http)
                figures |= {f"{stage}_ttft_s": turn.ttft_s, f"{stage}_computed": turn.computed}
                figures[f"{stage}_stalls"], stalls = later - stalls, later
                show(**figures)
            messages = [{"role": "user", "content": long_text(words, 9)}]
            for stage in ("openai", "openai_resent"):
                first_s, text, usage = await at_the_openai_door(http, messages)
                computed = usage["prompt_tokens"] - usage["prompt_tokens_details"]["cached_tokens"]
                later = await loop_stalls(http)
                figures |= {f"{stage}_ttft_s": first_s, f"{stage}_computed": computed}
                figures[f"{stage}_prompt_tokens"] = usage["prompt_tokens"]
                figures[f"{stage}_stalls"], stalls = later - stalls, later
                show(**figures)
                messages += [{"role": "assistant", "content": text}, {"role": "user", "content": QUESTION}]
            figures["seconds"] = time.perf_counter() - begun
            process = psutil.Process(server.pid)
            figures["memory_mb"] = sum(p.memory_info().rss for p in (process, *process.children(recursive=True))) / 1e6
    for stage in ("ws_later", "openai_resent"):
        if figures[f"{stage}_computed"] > ANSWER + 2 * BLOCK:
            faults.append(f"{stage}: {figures[f'{stage}_computed']} tokens were computed")
    faults += [f"{name}: {value}" for name, value in figures.items() if name.endswith("_stalls") and value]
    report("long_window_doors", {**about(arguments, side.shape), **figures, "faults": len(faults)})
    for fault in faults:
        print("  fault:", fault, file=sys.stderr)
    return not faults


def about(arguments: argparse.Namespace, shape: RandomShape) -> dict[str, Any]:
    return {
        "engine": arguments.engine,
        "tokens": arguments.tokens,
        "window": shape.window,
        "layers": shape.layers,
        "heads": shape.heads,
        "kv_bytes_per_token_16_bits": shape.kv_bytes_per_token,
        "threads": arguments.threads,
    }


async def main(arguments: argparse.Namespace) -> bool:
    shape = RandomShape(WINDOW, arguments.layers, arguments.heads)
    right = True
    for part, measured in (("kv", through_tiers), ("doors", through_doors)):
        if arguments.part in ("both", part):
            with tempfile.TemporaryDirectory(prefix="sessile-bench-") as folder:
                side = (LlamaSide if arguments.engine == "llama" else VllmSide)(shape, Path(folder), arguments.threads)
                right = await measured(arguments, side) and right
    return right


if __name__ == "__main__":
    run_bench(
        main,
        __doc__,
        engine=Option("llama", choices=["llama", "vllm"]),
        part=Option("kv", choices=["kv", "doors", "both"]),
        tokens=120_000,
        layers=2,
        heads=1,
        threads=2,
    )
