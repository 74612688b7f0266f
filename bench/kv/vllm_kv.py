"""vLLM with sessions whose KV outlives the device, in vLLM's own environment:

    .venv-vllm/bin/python -m bench.kv.vllm_kv restore        # a 4k-token session: cold, resident, restored; fp32
    .venv-vllm/bin/python -m bench.kv.vllm_kv fresh          # the same on engines that have just started, from disk
    .venv-vllm/bin/python -m bench.kv.vllm_kv edit           # turn 5 of 10 in a 4k-token conversation
    .venv-vllm/bin/python -m bench.kv.vllm_kv move           # a 4k-token session leaves in mid-answer
    .venv-vllm/bin/python -m bench.kv.vllm_kv write-through  # tokens/s with writing through against without
    .venv-vllm/bin/python -m bench.kv.vllm_kv fleet          # more sessions than the device holds, against vLLM itself
    .venv-vllm/bin/python -m bench.kv.vllm_kv fleet --servers 2    # two engines, against two servers behind vllm-router

`restore` runs cold and restored turns alternately on one engine whose device cache is emptied before each. `fresh`
starts two engines for each pair, in turns which first: one finds the session on disk, encrypted under its key, one does
not. Bar of both: first token 10 times sooner, in fp32 the same output.

`edit` asks turn 5 again, in other words, while the conversation is on the device, in host memory, and on disk after a
restart. Bar: only tokens after the fork are computed, in whole blocks, and the output is that of computing it all.

`move` has one engine write a long answer, and brings another one to where it can go on: with what the first has written
of the session's KV, or from the token ids alone, in turns which first. No bar; the output must be what the first says.

`fleet` runs the same prompts, token for token, through the engine and through `vllm.entrypoints.openai.api_server` with
prefix caching and as many blocks, a quarter of what all tokens need: both up, one works at a time, other sessions in
each of `--pairs` pairs, in turns which first. With two servers there are two engines, each session on one of them by
its hash, and each engine and server has as many blocks as the one had. Bars for follow-ups, over all pairs: first token
8 times sooner at the median, 4 times at the 95th percentile, twice the tokens/s (the pairs' mean), 5% of reusable
tokens computed.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import tempfile
import time
import zlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

from bench.engine.vllm_support import (
    BLOCK,
    VllmTurn,
    answer_to,
    empty,
    endings,
    options,
    peer,
    request,
    routed,
    running,
    served,
    settle,
    words,
)
from bench.support import Option, lower_bound, report, run_bench, spread
from inference.tokens import as_tokens
from inference.vllm.engine import VllmEngine
from persistence.keys import MemoryKeyStore
from sessions.model.generation import Chunk, Finish
from sessions.model.types import SessionId, SessionKey, TenantId

WINDOW = 4096  # of the fleet: vLLM starts with no fewer blocks than one context takes


# -- restore -------------------------------------------------------------------------------------------------


async def second_turn(engine: VllmEngine, chance: random.Random, tokens: int) -> tuple[list[int], VllmTurn]:
    """A session's second prompt, and how it was answered while the first one was resident; its KV is saved."""
    first = words(chance, tokens)
    opened = await answer_to(engine, "s", first, 16)
    later = [*first, *opened.tokens, *words(chance, 40)]
    resident = await answer_to(engine, "s", later, 16)
    await settle(engine)
    return later, resident


async def restore(folder: Path, given: argparse.Namespace) -> None:
    chance = random.Random(4)
    cold: list[VllmTurn] = []
    restored: list[VllmTurn] = []
    async with running(options(folder, given.dtype)) as engine:
        later, resident = await second_turn(engine, chance, given.tokens)
        await empty(engine)
        same = (await answer_to(engine, "alone", later, 16)).tokens == resident.tokens
        for number in range(given.pairs):
            await settle(engine)
            await empty(engine)
            cold.append(await answer_to(engine, f"cold{number}", words(chance, len(later)), 16))
            await engine.release(SessionKey(TenantId("bench"), SessionId(f"cold{number}")))
            await settle(engine)
            await empty(engine)
            restored.append(await answer_to(engine, "s", later, 16))
            same = same and restored[-1].tokens == resident.tokens
    figures = {"dtype": given.dtype, "tokens": len(later), **restored_figures(cold, restored, resident)}
    report("vllm restore", {**figures, "cold_resident_restored_equal": same})


def restored_figures(cold: list[VllmTurn], restored: list[VllmTurn], resident: VllmTurn) -> dict[str, Any]:
    """Pairs of a cold turn and the same one from what was kept, beside the turn that found everything in place."""
    ratios = [c.ttft_s / r.ttft_s for c, r in zip(cold, restored, strict=True)]
    return {
        "pairs": len(ratios),
        **spread("cold_ttft_s_{}", [t.ttft_s for t in cold], "p50"),
        **spread("restored_ttft_s_{}", [t.ttft_s for t in restored], "p50"),
        "resident_ttft_s": resident.ttft_s,
        **ratio_figures("cold_over_restored", ratios),
        "cold_over_restored_least": min(ratios),
        "bar": 10.0,
        "restored_tokens_cached": restored[-1].cached,
    }


def ratio_figures(name: str, ratios: list[float]) -> dict[str, float]:
    return {
        f"{name}_mean": sum(ratios) / len(ratios),
        f"{name}_lower_bound": lower_bound(ratios) if len(ratios) > 1 else 0.0,
    }


# -- on engines that have just started -------------------------------------------------------------------------


async def fresh(folder: Path, given: argparse.Namespace) -> None:
    chance, keys = random.Random(4), MemoryKeyStore()
    async with running(options(folder, given.dtype), keys) as engine:
        later, resident = await second_turn(engine, chance, given.tokens)
    cold: list[VllmTurn] = []
    restored: list[VllmTurn] = []
    for number in range(given.pairs):
        for side in (restored, cold) if number % 2 else (cold, restored):
            kept = {} if side is restored else {"disk_folder": None}
            async with running(options(folder, given.dtype, **kept), keys) as engine:
                side.append(await answer_to(engine, "s", later, 16))
    figures = {"dtype": given.dtype, "tokens": len(later), **restored_figures(cold, restored, resident)}
    same = all(t.tokens == resident.tokens for t in (*cold, *restored))
    report("vllm restore on a fresh engine, from disk, encrypted", {**figures, "cold_resident_restored_equal": same})


# -- edit ----------------------------------------------------------------------------------------------------


async def edit(folder: Path, given: argparse.Namespace) -> None:
    chance, keys = random.Random(8), MemoryKeyStore()
    turns, answer, fork, each = 10, 40, 0, 0
    prompts: list[list[int]] = []
    figures: dict[str, Any] = {"dtype": given.dtype, "turns": turns}

    async def answer_again(engine: VllmEngine, place: str) -> None:
        """Turn 5, in other words."""
        edited = [*prompts[4][:fork], *words(chance, each)]
        got = await answer_to(engine, "s", edited, answer)
        await settle(engine)
        alone = await answer_to(engine, f"alone {place}", edited, answer)
        await settle(engine)
        figures[f"{place}_computed"] = len(edited) - got.cached
        figures[f"{place}_only_after_the_fork"] = got.cached == fork // BLOCK * BLOCK
        figures[f"{place}_ttft_s"] = got.ttft_s
        figures[f"{place}_all_computed_ttft_s"] = alone.ttft_s
        figures[f"{place}_equal"] = alone.cached == 0 and got.tokens == alone.tokens

    async with running(options(folder, given.dtype), keys) as engine:
        conversation: list[int] = []
        each = given.tokens // turns - answer
        for number in range(turns):
            if number == 4:
                fork = len(conversation)
            conversation += words(chance, each)
            prompts.append(list(conversation))
            conversation += (await answer_to(engine, "s", conversation, answer, endings(engine))).tokens
        await settle(engine)
        figures |= {"conversation_tokens": len(conversation), "fork_at": fork, "prompt_tokens": len(prompts[4])}
        await answer_again(engine, "device")
        await empty(engine)
        await answer_again(engine, "host")
    async with running(options(folder, given.dtype), keys) as engine:
        await answer_again(engine, "disk")
    report("vllm edit of turn 5 of 10", figures)


# -- move ----------------------------------------------------------------------------------------------------


async def move(folder: Path, given: argparse.Namespace) -> None:
    chance, key = random.Random(9), SessionKey(TenantId("bench"), SessionId("s"))
    took: dict[str, list[float]] = {"moved": [], "computed": []}
    same, missing = True, []
    async with (
        running(options(folder / "source", given.dtype)) as source,
        running(options(folder / "target", given.dtype, disk_folder=None)) as target,
    ):
        banned = endings(source)
        conversation = words(chance, given.tokens)
        for number in range(given.pairs):
            said: list[int] = []
            async with contextlib.aclosing(
                cast(AsyncGenerator[Any], source.generate(request("s", conversation, 600, banned)))
            ) as written:
                await hear(written, said, 64)
                ledger = as_tokens([*conversation, *said])
                for side in ("moved", "computed") if number % 2 else ("computed", "moved"):
                    begun = time.perf_counter()
                    if side == "moved":
                        export = await source.export_kv(key, ledger)
                        assert export is not None
                        missing.append(len(ledger) - await target.import_kv(key, export.chunks))
                    await target.warm(key, ledger)
                    took[side].append(time.perf_counter() - begun)
                    if side == "moved":
                        there = (await answer_to(target, "s", ledger, 16, banned)).tokens
                    await target.release(key)
                    await settle(target)
                    await empty(target)
                await hear(written, said, 64 + 16)
                same = same and there == said[64 : 64 + 16]
            await settle(source)
            conversation += [*said, *words(chance, 40)]
    ratios = [computed / moved for computed, moved in zip(took["computed"], took["moved"], strict=True)]
    report(
        "vllm session that moves in mid-answer",
        {
            "dtype": given.dtype,
            "tokens": len(ledger),
            "pairs": given.pairs,
            **spread("moved_s_{}", took["moved"], "p50 max"),
            **spread("computed_s_{}", took["computed"], "p50"),
            **ratio_figures("computed_over_moved", ratios),
            "tokens_not_moved_max": max(missing),
            "goes_on_as_the_first": same,
        },
    )


async def hear(stream: AsyncIterator[Chunk | Finish], said: list[int], enough: int) -> None:
    """Reads on until `said` has at least so many tokens."""
    while len(said) < enough:
        item = await anext(stream)
        assert isinstance(item, Chunk)
        said.extend(item.tokens)


# -- write-through -------------------------------------------------------------------------------------------


async def write_through(folder: Path, given: argparse.Namespace) -> None:
    chance, pairs, streams, tokens = random.Random(5), given.pairs, given.streams, given.answer
    ratios = []
    rates: dict[bool, list[float]] = {True: [], False: []}
    async with running(options(folder, "bfloat16", disk_folder=None)) as engine:
        assert engine._offload is not None

        async def round_(number: int, saves: bool) -> float:
            assert engine._offload is not None
            engine._offload.saves = saves
            prompts = [words(chance, 96) for _ in range(streams)]
            begun = time.perf_counter()
            turns = await asyncio.gather(
                *(answer_to(engine, f"{saves}-{number}-{n}", prompt, tokens) for n, prompt in enumerate(prompts))
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
            **ratio_figures("ratio", ratios),
            "snapshots_saved": saved,
        },
    )


# -- fleet ---------------------------------------------------------------------------------------------------


class FleetConversation:
    def __init__(self, chance: random.Random, opening: int, turns: int) -> None:
        self.prompt = words(chance, opening)
        self.additions = [words(chance, 40) for _ in range(turns - 1)]


One = Callable[[str, Sequence[int], int], Awaitable[VllmTurn]]  # a session's next turn: its prompt, tokens at most


class Fleet(NamedTuple):
    sessions: int
    turns: int
    opening: int  # tokens of a first message

    @property
    def blocks(self) -> int:
        """A quarter of what all tokens need."""
        total = self.sessions * (self.opening + self.turns * 32 + (self.turns - 1) * 40)
        return 1 + total // BLOCK // 4

    def conversations(self, pair: int) -> list[FleetConversation]:
        """The same for both sides of a pair, others in every pair."""
        chance = random.Random(6 + pair)
        return [FleetConversation(chance, self.opening, self.turns) for _ in range(self.sessions)]


class Played(NamedTuple):
    follow_ups_s: list[float]  # the first tokens of follow-ups
    tokens_per_s: float
    reusable: int  # tokens, in whole blocks
    reused: int


def figures_of(name: str, played: list[Played]) -> dict[str, float]:
    firsts = [second for each in played for second in each.follow_ups_s]
    return {
        **spread(name + "_ttft_ms_{}", firsts, "p50 p95", times=1000),
        f"{name}_tokens_per_s": sum(each.tokens_per_s for each in played) / len(played),
        f"{name}_recomputed_share": 1 - sum(each.reused for each in played) / sum(each.reusable for each in played),
    }


async def play(conversations: list[FleetConversation], turns: int, pair: int, one: One) -> Played:
    """Every session's turn k before anybody's turn k+1, two at a time."""
    follow_ups: list[VllmTurn] = []
    reusable = reused = produced = 0
    begun = time.perf_counter()
    for number in range(turns):
        queue = list(enumerate(conversations))

        async def worker(number: int, queue: list[tuple[int, FleetConversation]]) -> None:
            nonlocal reusable, reused, produced
            while queue:
                index, conversation = queue.pop(0)
                before = len(conversation.prompt)
                if number:
                    conversation.prompt = [*conversation.prompt, *conversation.additions[number - 1]]
                turn = await one(f"p{pair}s{index}", conversation.prompt, 32)
                conversation.prompt = [*conversation.prompt, *turn.tokens]
                produced += len(turn.tokens)
                if number:
                    follow_ups.append(turn)
                    reusable += (before - 1) // BLOCK * BLOCK
                    reused += turn.cached

        await asyncio.gather(worker(number, queue), worker(number, queue))
    return Played([turn.ttft_s for turn in follow_ups], produced / (time.perf_counter() - begun), reusable, reused)


@contextlib.asynccontextmanager
async def ours(folder: Path, fleet: Fleet, servers: int) -> AsyncIterator[One]:
    async with contextlib.AsyncExitStack() as stack:
        engines = []
        for number in range(servers):
            wanted = options(
                folder / str(number),
                "bfloat16",
                disk_folder=None,
                device_blocks=fleet.blocks,
                context_window=WINDOW,
                slots=2,
            )
            engines.append(await stack.enter_async_context(running(wanted)))

        async def one(session: str, prompt: Sequence[int], max_tokens: int) -> VllmTurn:
            return await answer_to(engines[zlib.crc32(session.encode()) % servers], session, prompt, max_tokens)

        yield one


@contextlib.asynccontextmanager
async def theirs(fleet: Fleet, servers: int) -> AsyncIterator[One]:
    one_server = peer(fleet.blocks, 2, WINDOW)
    async with one_server if servers == 1 else routed(servers, fleet.blocks, 2, WINDOW) as client:

        async def one(session: str, prompt: Sequence[int], max_tokens: int) -> VllmTurn:
            return await served(client, prompt, max_tokens, session=session)

        yield one


async def fleet_against(folder: Path, given: argparse.Namespace) -> None:
    fleet, servers, pairs = Fleet(given.sessions, given.turns, given.opening), given.servers, given.pairs
    own: list[Played] = []
    vllm: list[Played] = []
    async with ours(folder, fleet, servers) as our_one, theirs(fleet, servers) as their_one:
        sides = ((our_one, own), (their_one, vllm))
        for pair in range(pairs):
            for one, played in sides if pair % 2 else reversed(sides):
                played.append(await play(fleet.conversations(pair), fleet.turns, pair, one))
            print(f"{pair}: {own[-1].tokens_per_s:.1f} against {vllm[-1].tokens_per_s:.1f} tokens/s", flush=True)
    figures: dict[str, Any] = {"servers": servers, "pairs": pairs, "sessions": fleet.sessions, "turns": fleet.turns}
    figures |= {"opening_tokens": fleet.opening, "blocks_each": fleet.blocks}
    figures |= figures_of("ours", own) | figures_of("vllm", vllm)
    rates = [a.tokens_per_s / b.tokens_per_s for a, b in zip(own, vllm, strict=True)]
    figures |= {
        "ttft_p50_lower_by": figures["vllm_ttft_ms_p50"] / figures["ours_ttft_ms_p50"],
        "ttft_p95_lower_by": figures["vllm_ttft_ms_p95"] / figures["ours_ttft_ms_p95"],
        "tokens_per_s_higher_by": sum(rates) / pairs,
        "tokens_per_s_lower_bound": lower_bound(rates) if pairs > 1 else None,
    }
    report("vllm fleet", figures)


RUNS = {
    "restore": restore,
    "fresh": fresh,
    "edit": edit,
    "move": move,
    "write-through": write_through,
    "fleet": fleet_against,
}


async def main(given: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory(prefix="sessile-bench-") as scratch:
        await RUNS[given.what](Path(scratch), given)


if __name__ == "__main__":
    run_bench(
        main,
        __doc__,
        ("what", *RUNS),
        pairs=10,
        dtype=Option("float32", "in bfloat16 outputs may differ at a near-tie"),
        tokens=Option(4096, "of the session"),
        streams=8,
        answer=Option(96, "write-through: tokens of each answer"),
        servers=Option(1, "fleet: engines, and servers behind a router"),
        sessions=8,
        turns=5,
        opening=2500,
    )
