"""Answers in a fixed format, cut at every token and continued: is the whole valid, is what was released unchanged?

    python -m bench.engine.grammar_cuts --schemas 200 --cuts 20000

Real llama.cpp and the small model. For each schema (made from a seed, see `bench.engine.made_up_schemas`) one
answer is written whole; then it is continued from behind each of its tokens, as another replica does after a kill: a
run that gets the tokens so far and nothing else of the first. Of every third schema the answer is a forced tool call's
object. With fewer `--cuts` than tokens, cuts are evenly spread. Whole texts are judged by `jsonschema_rs`, which is not
the engine's. Bars: 100% valid, 0 refused (`recovery_incompatible`). An answer that its token limit ends is no JSON
and is counted by itself. `replay`: how much longer a grammar takes to where 8,000 tokens were released than to where a
few were (bar 10 ms).
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import jsonschema_rs
import msgspec

from bench.engine.made_up_schemas import schema_of
from bench.support import ROOT, is_faultless, percentile, report, run_bench
from inference.llama import LlamaEngine, LlamaOptions
from inference.llama.grammar_guide import GrammarGuides
from sessions.model.errors import SessileError
from sessions.model.types import Json, Sampling, TextOptions, Tool
from sessions.turn.tool_call_parser import constrained_output
from testbed.engine_client import Answer, ask, key, prompt_of

MODEL = ROOT / ".cache" / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"
ANSWER_TOKENS = 400
ITEM = '{"name": "Ada Lovelace", "born": 1815, "tags": ["red", "gr\u00fcn"]}'
ITEM_TOKENS_MIN = 10
REPLAY_BAR_MS = 10
LIST = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {
            "name": {"type": "string"},
            "born": {"type": "integer"},
            "tags": {"type": "array", "items": {"enum": ["red", "gr\u00fcn"]}},
        },
        "required": ["name", "born", "tags"],
        "additionalProperties": False,
    },
}


class SchemaCase(NamedTuple):
    """A schema's whole answer."""

    seed: int
    schema: Json
    prompt: tuple[int, ...]
    answer: Answer


class CutVerdicts:
    """What became of the continuations."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.faults: list[str] = []

    def judge(self, schema: Json, text: str, reason: str, what: str) -> None:
        if reason == "length":
            self.counts["limited"] += 1
            return
        try:
            jsonschema_rs.validator_for(schema).validate(msgspec.json.decode(text))
        except (msgspec.DecodeError, jsonschema_rs.ValidationError) as error:
            self.counts["invalid"] += 1
            self.faults.append(f"{what}: {error!s:.80} in {text!r}")
        else:
            self.counts["valid"] += 1


def schema_for(seed: int) -> Json:
    """Every third one is what a forced call of a tool with these parameters is held to."""
    schema = schema_of(seed)
    if seed % 3:
        return schema
    made = constrained_output(Sampling(tool_choice="required"), (Tool(name="f", parameters=schema),)).format
    assert made is not None
    return made["schema"]


def sampling_for(schema: Json) -> Sampling:
    return Sampling(temperature=0.9, text=TextOptions({"type": "json_schema", "name": "made", "schema": schema}))


async def written(engine: LlamaEngine, seed: int) -> tuple[SchemaCase, float]:
    """A whole answer, and the seconds that its tokens behind the first took."""
    schema = schema_for(seed)
    prompt = await prompt_of(engine, f"Make up an example, number {seed}, as JSON.")
    session = key(f"s{seed}")
    await engine.warm(session, prompt)
    started = time.perf_counter()
    sampling = sampling_for(schema)
    answer = await ask(engine, session, prompt, max_tokens=ANSWER_TOKENS, sampling=sampling, seed=seed)
    return SchemaCase(seed, schema, prompt, answer), time.perf_counter() - started


async def continued(engine: LlamaEngine, case: SchemaCase, cut: int, verdicts: CutVerdicts) -> None:
    tokens = case.answer.tokens
    emitted = tokens[:cut]
    released = case.answer.text[: _released(case.answer, cut)]
    what = f"schema {case.seed} cut at {cut}"
    try:
        rest = await ask(
            engine,
            key(f"s{case.seed}"),
            (*case.prompt, *emitted),
            max_tokens=ANSWER_TOKENS,
            sampling=sampling_for(case.schema),
            seed=case.seed * 1_000 + cut,
            emitted=emitted,
        )
    except SessileError as error:
        verdicts.counts[error.code] += 1
        verdicts.faults.append(f"{what}: {error.code} behind {released!r}")
    else:
        verdicts.judge(case.schema, released + rest.text, rest.finish.reason, what)


def _cuts(answer: Answer) -> list[int]:
    """How many tokens stand at each place where a run may be broken off: behind every chunk that has text."""
    places, count = [], 0
    for chunk in answer.chunks:
        count += len(chunk.tokens)
        if chunk.text:
            places.append(count)
    return places


def _released(answer: Answer, cut: int) -> int:
    """The length of the text behind so many tokens."""
    length = count = 0
    for chunk in answer.chunks:
        count += len(chunk.tokens)
        if count > cut:
            break
        length += len(chunk.text)
    return length


async def replay_ms(engine: LlamaEngine, tokens: int, rounds: int) -> tuple[int, float]:
    """How much longer it takes to bring a grammar behind so many released tokens than behind a few, at the median."""
    guides = GrammarGuides(engine.options.model_path)
    few = tuple(await engine.tokenizer.text("[" + ITEM))
    many = tuple(await engine.tokenizer.text("[" + ", ".join([ITEM] * (tokens // ITEM_TOKENS_MIN))))[:tokens]
    took: dict[int, list[float]] = {}
    for emitted in (few, many):
        for number in range(rounds + 1):
            started = time.perf_counter()
            await guides.guide({"json_schema": LIST}, emitted)
            if number:  # the first reads the vocabulary
                took.setdefault(len(emitted), []).append(1_000 * (time.perf_counter() - started))
    short, long = (percentile(values, 0.5) for values in took.values())
    return len(many), long - short


async def main(arguments: argparse.Namespace) -> bool:
    engine = LlamaEngine(
        LlamaOptions(
            model_path=Path(arguments.model),
            slots=arguments.slots,
            threads=1,
            context_window=8_192,
            waiting_max=arguments.slots * 4,
            host_bytes_max=0,
        )
    )
    await engine.start()
    whole, verdicts = CutVerdicts(), CutVerdicts()
    try:
        cases, seconds, num_tokens = [], 0.0, 0
        for seed in range(arguments.seed, arguments.seed + arguments.schemas):
            case, took = await written(engine, seed)
            whole.judge(case.schema, case.answer.text, case.answer.finish.reason, f"schema {seed} whole")
            seconds, num_tokens = seconds + took, num_tokens + len(case.answer.tokens)
            cases.append(case)
        every = [(case, cut) for case in cases for cut in _cuts(case.answer)]
        step = max(1.0, len(every) / arguments.cuts) if arguments.cuts else 1.0
        chosen = iter([every[int(index * step)] for index in range(int(len(every) / step))])

        async def worker() -> None:
            for case, cut in chosen:
                await continued(engine, case, cut, verdicts)

        await asyncio.gather(*(worker() for _ in range(arguments.slots)))
        length, replay = await replay_ms(engine, arguments.replay, arguments.rounds)
    finally:
        await engine.close()
    counts = verdicts.counts
    judged = counts["valid"] + counts["invalid"]
    figures: dict[str, Any] = {
        "schemas": len(cases),
        "whole answers valid": whole.counts["valid"],
        "whole answers invalid (bar 0)": whole.counts["invalid"],
        "whole answers ended by the token limit": whole.counts["limited"],
        "constrained tokens/s, one at a time": num_tokens / seconds if seconds else 0.0,
        "cuts": sum(counts.values()),
        "valid share of those that ended (bar 1)": counts["valid"] / judged if judged else 0.0,
        "ended by the token limit": counts["limited"],
        "recovery_incompatible (bar 0)": counts["recovery_incompatible"],
        "other errors": sum(counts.values()) - judged - counts["limited"] - counts["recovery_incompatible"],
        f"replay of {length} tokens, ms (bar {REPLAY_BAR_MS} at 8,000)": replay,
    }
    report("grammar_cuts", figures)
    return is_faultless(whole.faults + verdicts.faults) and replay <= REPLAY_BAR_MS


if __name__ == "__main__":
    run_bench(main, __doc__, schemas=20, cuts=200, seed=1, slots=4, replay=8_000, rounds=5, model=str(MODEL))
