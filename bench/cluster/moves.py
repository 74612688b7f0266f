"""What a reader waits when a session is handed off, against computing it anew in the same run.

    python -m bench.cluster.moves --moves 20 [--model PATH] [--only idle|mid]
    .venv-vllm/bin/python -m bench.cluster.moves --only mid --mid-tokens 8000 --model FOLDER     # bar: p95 200 ms

Two replicas and a gateway in one process, on loopback gRPC and a journal on disk; engines are simulated (at 330
prefilled tokens a second, 50 decoded), llama.cpp, or vLLM in bfloat16, whose model's window is made long enough. A
session goes back and forth, and each time the replica that it leaves forgets its KV, so that the next one to come finds
nothing. `blackout` of an idle session: from its seal to the target's word. `stall` of an answer: the longest silence of
its reader around the move, less what the engine usually takes for the tokens that ended it (some are parts of a
character and are told with the next, so there are silences of several tokens at any time).
`re_prefill`: the time to the first token of the same conversation on an engine that has never seen it.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager
from pathlib import Path

from actors.routing.router import Router
from bench.engine.stretched_model import stretched_model
from bench.support import Option, filler, percentile, report, run_bench, spread
from inference.simulated import SimulatedEngine, SimulatedOptions
from persistence.sqlite.database import SqliteDatabase
from persistence.sqlite.store import SqliteStore
from sessions.model import commands as cm
from sessions.model.events import OutputTextDelta, SessionMigrated
from sessions.model.generation import Chunk, Finish, GenerationRequest
from sessions.model.request import request_of
from sessions.model.types import CommandId, ResponseId, SessionKey
from sessions.ports import Engine, Owner
from testbed.real_cluster import ALICE, RealCluster, RealReplica, Story, create, new_id, real_cluster, say

MOVES_A_SESSION = {"idle": 10, "mid": 4}
ANSWER_TOKENS = 4000
ENDS = ("0", "2")  # the token ids with which the small model ends what it says


def llama(path: str, folder: str) -> Engine:
    from inference.llama import LlamaEngine, LlamaOptions

    return LlamaEngine(LlamaOptions(model_path=Path(path), slots=2, threads=1, disk_folder=Path(folder)))


def vllm(path: str, folder: str, tokens: int, layers: int) -> Engine:
    from inference.vllm.engine import VllmEngine, VllmOptions

    window = tokens + MOVES_A_SESSION["mid"] * 200 + ANSWER_TOKENS
    model = Path(folder).parent / "model"
    if not model.exists():
        stretched_model(Path(path), model, window=window, layers=layers)
    return VllmEngine(
        VllmOptions(
            model_path=model,
            context_window=window,
            slots=2,
            device_kv_bytes=1 << 30,
            disk_folder=Path(folder),
            engine_args={"dtype": "bfloat16"},
        )
    )


def made_engine(path: str, folder: str, tokens: int, layers: int) -> Engine:
    if not path:
        return simulated()
    return vllm(path, folder, tokens, layers) if Path(path).is_dir() else llama(path, folder)


def simulated() -> Engine:
    return SimulatedEngine(
        SimulatedOptions(step_base_s=0.02, answer_tokens_mean=0, slots=8, prefill_tokens_per_s=330.0)
    )


async def text_of(tokens: int, engine: Engine, seed: int) -> str:
    """About so many tokens of text."""
    sample = filler(200, seed)
    return filler(round(200 * tokens / len(await engine.tokenizer.text(sample))), seed)


class Bench:
    def __init__(self, made: RealCluster, router: Router, tokens: int) -> None:
        self.made = made
        self.router = router
        self.tokens = tokens
        self.prefills: list[float] = []

    async def begun(self, name: str, number: int, answer: int) -> tuple[SessionKey, Story, ResponseId]:
        """A new session with an answer that has begun; notes how long its first token took."""
        engine = self.made.replicas["r1"].replica.engine
        text = await text_of(self.tokens, engine, number * 17)
        key = await create(self.router, f"{name}{number}")
        story = Story(self.router, key)
        began = time.perf_counter()
        response = await self.answered(key, text, answer, endless=engine.info.model != "simulated")
        await story.until(lambda: any(isinstance(r.event, OutputTextDelta) for r in story.records.values()), 120.0)
        self.prefills.append(time.perf_counter() - began)
        return key, story, response

    async def answered(self, key: SessionKey, text: str, tokens: int, *, endless: bool) -> ResponseId:
        """Begins an answer that only its limit ends: one that ends by itself has no stall to measure."""
        command = cm.MessageCreate(
            id=CommandId(new_id()),
            session=key.session,
            content=text,
            max_output_tokens=tokens,
            logit_bias=dict.fromkeys(ENDS, -100.0) if endless else None,
        )
        ok = await self.router.execute(request_of(ALICE, command))
        assert ok.response_id is not None
        return ok.response_id

    async def cancelled(self, key: SessionKey, story: Story, response: ResponseId) -> None:
        await self.router.execute(
            request_of(ALICE, cm.ResponseCancel(id=CommandId(new_id()), session=key.session, response_id=response))
        )
        await story.ends(response)

    async def stall_s(self, story: Story, before: int) -> float:
        """The longest silence since the reader had been told `before` things, beyond its tokens' usual time."""
        gaps, offsets = story.gaps_s(), [offset for _, offset in story.told[1:]]
        page = await self.made.journal.read(
            story.key, after=offsets[before - 30] - 1, limit=len(offsets), bytes_max=1 << 24
        )
        assert page is not None
        tokens = {each.offset: len(each.private.tokens) // 4 if each.private else 0 for each in page.records}
        usual = statistics.median(
            gap / tokens[offset]
            for gap, offset in zip(gaps[before - 30 : before], offsets[before - 30 :], strict=False)
            if tokens[offset]
        )
        since = zip(gaps[before - 1 :], offsets[before - 1 :], strict=True)
        return max(0.0, *(gap - usual * tokens[offset] for gap, offset in since))

    def where(self, key: SessionKey) -> tuple[RealReplica, RealReplica]:
        source = self.made.owner(key)
        return source, next(each for each in self.made.replicas.values() if each is not source)

    async def moved(self, key: SessionKey) -> tuple[float, dict[str, float]]:
        """Hands a session off, has its source forget it, and returns when that began and when each stage came."""
        source, target = self.where(key)
        with noted_stages(source, target, key) as stages:
            begun_at = time.perf_counter()
            await source.replica.handoff.hand_off(key, target.member)
            await source.replica.engine.release(key)
        return begun_at, stages


@contextmanager
def noted_stages(source: RealReplica, target: RealReplica, key: SessionKey) -> Iterator[dict[str, float]]:
    """Notes when a session is to be sealed, is sealed, is to be taken, is taken, runs, has its first token. What runs
    when the block ends goes on noting."""
    actor = source.replica.runtime.actor(key)
    assert actor is not None
    runtime, engine = target.replica.runtime, target.replica.engine
    seal, adopt, generate = actor.seal, runtime.adopt, engine.generate
    stages: dict[str, float] = {}

    async def noted_seal() -> None:
        stages["seal"] = time.perf_counter()
        await seal()
        stages["sealed"] = time.perf_counter()

    async def noted_adopt(key: SessionKey, source: Owner) -> Owner:
        stages["adopt"] = time.perf_counter()
        taken = await adopt(key, source)
        stages["taken"] = time.perf_counter()
        return taken

    async def noted_generate(request: GenerationRequest) -> AsyncIterator[Chunk | Finish]:
        engine.generate = generate  # type: ignore[method-assign]
        stages["run"] = time.perf_counter()
        async with aclosing(generate(request)) as items:  # type: ignore[type-var]
            async for item in items:
                stages.setdefault("first_token", time.perf_counter())
                yield item

    actor.seal, runtime.adopt = noted_seal, noted_adopt  # type: ignore[method-assign]
    engine.generate = noted_generate  # type: ignore[method-assign]
    try:
        yield stages
    finally:
        del runtime.adopt


def durations(stages: dict[str, float], first_text: float) -> dict[str, float]:
    """Seconds of what lies between the seal and the target's first text: `run` overlaps `take` where the engine starts
    before the session is taken."""
    ends = [
        ("sealing", "seal", "sealed"),
        ("to_target", "sealed", "adopt"),
        ("take", "adopt", "taken"),
        ("start", "adopt", "run"),
        ("first_step", "run", "first_token"),
    ]
    found = {name: stages[end] - stages[begin] for name, begin, end in ends if begin in stages and end in stages}
    if "first_token" in stages:
        found["to_reader"] = first_text - stages["first_token"]
    return found


def first_text_after_move(story: Story) -> float:
    """When a reader was told what the last target wrote first."""
    moved = max(offset for offset, record in story.records.items() if isinstance(record.event, SessionMigrated))
    texts = (at for at, n in story.told if n > moved and isinstance(story.records[n].event, OutputTextDelta))
    return next(texts)


async def idle(bench: Bench, moves: int) -> dict[str, float]:
    blackouts: list[float] = []
    follow_ups: list[float] = []
    for number in range(-(-moves // MOVES_A_SESSION["idle"])):
        key, story, response = await bench.begun("idle", number, 200)
        await bench.cancelled(key, story, response)
        for _ in range(MOVES_A_SESSION["idle"]):
            _, stages = await bench.moved(key)
            blackouts.append(time.perf_counter() - stages["seal"])
        began = time.perf_counter()
        await story.ends(await say(bench.router, key, "Go on.", tokens=1))
        follow_ups.append(time.perf_counter() - began)
        story.close()
    return {
        "moves": len(blackouts),
        **spread("blackout_ms_{}", blackouts, "p50 p95", times=1000),
        "next_turn_ms_p50": percentile(follow_ups, 0.5) * 1000,
    }


async def mid(bench: Bench, moves: int) -> dict[str, float]:
    stalls: list[float] = []
    ahead: list[float] = []  # seconds from a move's begin to its seal, in which the answer goes on
    switches: list[float] = []  # from there to the target's first text
    parts: list[dict[str, float]] = []  # of that
    for number in range(-(-moves // MOVES_A_SESSION["mid"])):
        key, story, response = await bench.begun("mid", number, ANSWER_TOKENS)
        for _ in range(MOVES_A_SESSION["mid"]):
            await story.grows(30)
            before = len(story.told)
            begun_at, stages = await bench.moved(key)
            sealed_at = stages["seal"]
            await story.grows(5)
            stalls.append(await bench.stall_s(story, before))
            ahead.append(sealed_at - begun_at)
            first_text = first_text_after_move(story)
            switches.append(first_text - sealed_at)
            parts.append(durations(stages, first_text))
            shown = ", ".join(f"{name} {1000 * seconds:.0f}" for name, seconds in parts[-1].items())
            print(
                f"{len(stalls)}: {ahead[-1]:.2f} s ahead, text from the target {1000 * switches[-1]:.0f} ms after the"
                f" seal ({shown}), stall {1000 * stalls[-1]:.0f} ms",
                flush=True,
            )
        await bench.cancelled(key, story, response)
        story.close()
    return {
        "moves": len(stalls),
        **spread("stall_ms_{}", stalls, "p50 p95", times=1000),
        **spread("ahead_s_{}", ahead, "p50 p95"),
        **spread("seal_to_text_ms_{}", switches, "p50 p95", times=1000),
        **{
            f"{name}_ms_p50": 1000 * percentile([each[name] for each in parts if name in each], 0.5)
            for name in dict.fromkeys(name for each in parts for name in each)
        },
    }


@asynccontextmanager
async def two_replicas(model: str, tokens: int, layers: int) -> AsyncIterator[Bench]:
    with tempfile.TemporaryDirectory(prefix="sessile-bench-") as folder:
        async with real_cluster(0, store=SqliteStore(SqliteDatabase(Path(folder)))) as made:
            for name in ("r1", "r2"):
                await made.add_replica(name, made_engine(model, f"{folder}/{name}", tokens, layers))
            yield Bench(made, await made.add_gateway("g1"), tokens)


async def main(given: argparse.Namespace) -> None:
    engine = "simulated" if not given.model else "vllm" if Path(given.model).is_dir() else "llama"
    for name, measured, tokens in (("idle", idle, given.idle_tokens), ("mid", mid, given.mid_tokens)):
        if given.only in ("", name):
            async with two_replicas(given.model, tokens, given.layers) as bench:
                figures = await measured(bench, given.moves) | spread(
                    "re_prefill_ms_{}", bench.prefills, "p50", times=1000
                )
                report(f"cluster_moves_{name}", {"engine": engine, "layers": given.layers, "tokens": tokens, **figures})


if __name__ == "__main__":
    run_bench(
        main,
        __doc__,
        moves=20,
        model=Option("", "a GGUF file, or for vLLM a folder; without it engines are simulated"),
        only=Option("", choices=["", "idle", "mid"]),
        idle_tokens=4000,
        mid_tokens=3000,
        layers=Option(0, "that a model of vLLM's keeps; 0: all"),
    )
