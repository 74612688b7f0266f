"""N-gram speculation and KV in 8 bits, beside the same engine without: tokens/s, the same text, bytes, agreement.

    python -m bench.engine.speculation ngram --pairs 10
    .venv-vllm/bin/python -m bench.engine.speculation ngram --engine vllm --pairs 10
    python -m bench.engine.speculation kv8 --prompts 20

`ngram`: both engines are up and take turns (`bench.pairs`), on text that repeats its question (lists with new numbers)
and on stories; prompts are resident, so that decoding is measured. Every answer must be the other side's, token for
token. What is continued from behind `CUTS` of its places, as another replica does after a failure, must be the rest of
the same engine's answer; how often it is not without speculation is shown beside.
`kv8`: the bytes of a parked session's KV, and how greedy answers agree: the share of answers that are equal, and of
tokens before the first difference.
"""

from __future__ import annotations

import argparse
import contextlib
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

from bench.pairs import ORDER
from bench.peer import MODEL
from bench.support import Option, lower_bound, report, run_bench
from inference.llama import LlamaEngine, LlamaOptions
from tests.support.engines.engines import Answer, ask, key, prompt_of, until

TOKENS: Final = 120
CUTS: Final = 6
REPETITIVE_MIN: Final = 1.3
OTHER_MIN: Final = 0.97
KV_MAX: Final = 0.55
COLOURS: Final = ["red", "green", "blue", "white", "black", "brown", "pink", "grey"]


def repetitive(number: int) -> str:
    lines = [
        f"{n}. item number {n + number} has the colour {colour} and the price {n * 7} euros"
        for n, colour in enumerate(COLOURS, 1)
    ]
    return "Repeat this list exactly, and write nothing else:\n" + "\n".join(lines)


def other(number: int) -> str:
    topics = ("a sailor who finds an island", "a clock that runs backwards", "two sisters", "the last train", "a well")
    return f"Write a long story about {topics[number % len(topics)]}, chapter {number}."


KINDS: Final = {"repetitive": repetitive, "other": other}


@contextlib.asynccontextmanager
async def running(name: str, folder: Path, slots: int, **more: Any) -> AsyncIterator[Any]:
    if name == "vllm":
        from bench.engine import vllm_support

        options = vllm_support.options(folder, "float32", slots=slots, **more)
        async with vllm_support.running(options) as vllm:
            yield vllm
        return
    llama = LlamaEngine(
        LlamaOptions(model_path=MODEL, slots=slots, context_window=2048, disk_folder=folder / "kv", **more)
    )
    await llama.start()
    try:
        yield llama
    finally:
        await llama.close()


async def timed(engine: Any, who: str, prompt: tuple[int, ...]) -> tuple[float, Answer]:
    begun = time.perf_counter()
    answer = await ask(engine, key(who), prompt, max_tokens=TOKENS)
    return len(answer.tokens) / (time.perf_counter() - begun), answer


async def goes_on(engine: Any, who: str, prompt: tuple[int, ...], whole: tuple[int, ...], cut: int) -> bool:
    """Whether an answer that is continued behind its first `cut` tokens is the whole one."""
    rest = await ask(engine, key(who), (*prompt, *whole[:cut]), max_tokens=TOKENS - cut, emitted=whole[:cut])
    await engine.release(key(who))
    return (*whole[:cut], *rest.tokens) == whole


async def ngram(given: argparse.Namespace, folder: Path) -> tuple[dict[str, Any], bool]:
    ratios: dict[str, list[float]] = {kind: [] for kind in KINDS}
    rates: dict[tuple[str, str], list[float]] = {}
    differing = dict.fromkeys(("answers", "continued, ours", "continued, theirs"), 0)
    cuts = 0
    async with contextlib.AsyncExitStack() as stack:
        sides = {
            side: await stack.enter_async_context(running(given.engine, folder / side, 1, speculation=how))
            for side, how in (("theirs", "off"), ("ours", "ngram"))
        }
        for kind, text in KINDS.items():
            for pair in range(given.pairs):
                took = {"ours": 0.0, "theirs": 0.0}
                answers: dict[str, Answer] = {}
                prompt = await prompt_of(sides["ours"], text(pair))
                for engine in sides.values():  # from now on the prompt is resident
                    await ask(engine, key(f"{kind}{pair}"), prompt, max_tokens=1)
                for side in ORDER:
                    rate, answers[side] = await timed(sides[side], f"{kind}{pair}", prompt)
                    took[side] += 1 / rate
                    rates.setdefault((kind, side), []).append(rate)
                ratios[kind].append(took["theirs"] / took["ours"])
                differing["answers"] += answers["ours"].tokens != answers["theirs"].tokens
                for cut in range(1, CUTS + 1) if pair < 2 else ():
                    cuts += 1
                    for side, engine in sides.items():
                        whole = answers[side].tokens
                        same = await goes_on(
                            engine, f"cut{kind}{pair}{cut}", prompt, whole, cut * len(whole) // (CUTS + 1)
                        )
                        differing[f"continued, {side}"] += not same
                for engine in sides.values():
                    await engine.release(key(f"{kind}{pair}"))
        drafted = sides["ours"].stats().counters
    figures: dict[str, Any] = {"engine": given.engine, "pairs": given.pairs, "continued": cuts}
    figures |= {f"other texts, {what}": count for what, count in differing.items()}
    for kind, found in ratios.items():
        figures |= {f"{kind}, mean": sum(found) / len(found), f"{kind}, LB": lower_bound(found)}
        for side in ("ours", "theirs"):
            each = rates[kind, side]
            figures[f"{kind}, {side}, tokens/s"] = sum(each) / len(each)
    figures |= {name: drafted[name] for name in ("drafted_tokens", "accepted_tokens") if name in drafted}
    met = (
        figures["repetitive, mean"] >= REPETITIVE_MIN
        and figures["other, mean"] >= OTHER_MIN
        and not differing["answers"] + differing["continued, ours"]
    )
    return figures, met


async def kv8(given: argparse.Namespace, folder: Path) -> tuple[dict[str, Any], bool]:
    answers: dict[str, list[Answer]] = {}
    held: dict[str, float] = {}
    for dtype in ("auto", "8bit"):
        async with running(given.engine, folder / dtype, 1, kv_dtype=dtype) as engine:
            answers[dtype] = []
            for number in range(given.prompts):
                prompt = await prompt_of(engine, other(number))
                answers[dtype].append(await ask(engine, key(f"s{number}"), prompt, max_tokens=TOKENS))
                await engine.release(key(f"s{number}"))
            who = key("kept")
            prompt = await prompt_of(engine, " ".join(repetitive(number) for number in range(4)))
            await ask(engine, who, prompt, max_tokens=2)
            before = engine.stats().gauges["host_bytes"]
            await engine.park(who)
            await ask(engine, key("beside"), await prompt_of(engine, "Hello."), max_tokens=1)
            await until(lambda: engine.place(who).tier != "device")  # noqa: B023 - awaited in this round
            held[dtype] = engine.stats().gauges["host_bytes"] - (0 if given.engine == "llama" else before)
    equal, shared, total = 0, 0, 0
    for one, two in zip(answers["auto"], answers["8bit"], strict=True):
        equal += one.tokens == two.tokens
        same = next((n for n, (a, b) in enumerate(zip(one.tokens, two.tokens, strict=False)) if a != b), None)
        shared += len(one.tokens) if same is None else same
        total += len(one.tokens)
    ratio = held["8bit"] / held["auto"]
    figures = {
        "engine": given.engine,
        "bytes of a session, 8 bits against full (bar 0.55)": ratio,
        "answers": given.prompts,
        "equal answers": equal,
        "share of tokens before the first difference": shared / total,
    }
    return figures, ratio <= KV_MAX


async def main(given: argparse.Namespace) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        figures, met = await (ngram if given.part == "ngram" else kv8)(given, Path(folder))
    report(f"speculation {given.part}", figures)
    return met


if __name__ == "__main__":
    run_bench(
        main,
        __doc__,
        ("part", "ngram", "kv8"),
        engine=Option("llama", "", ("llama", "vllm")),
        pairs=10,
        prompts=20,
    )
