"""An answer in a fixed format is cut at every token and goes on, on vLLM; what its grammar's replay costs.

    .venv-vllm/bin/python -m bench.engine.vllm_grammar cuts --schemas 200
    .venv-vllm/bin/python -m bench.engine.vllm_grammar model --schemas 8
    .venv-vllm/bin/python -m bench.engine.vllm_grammar replay
    .venv-vllm/bin/python -m bench.engine.vllm_grammar speed --pairs 10

`cuts` is without the model: chance chooses among the tokens that the mask of vLLM's grammar allows, so that answers go
where no model would. Each answer is cut behind every token that may have been released (never inside a character), and
as the call of a function behind code points, whose text is tokenised anew. A new grammar of the same schema is compiled
by vLLM's backend, what was written is replayed by the scheduler's code, and chance goes on. The whole is held against
the schema by another validator (jsonschema-rs), and the mask at the cut against that of the uncut answer.

`model` does so with the whole engine: the model writes, greedily, and the rest must be the uncut answer's.
`speed` compares constrained tokens/s under our scheduler with those under vLLM's own, both engines up, in turns,
half of the pairs with ours started first.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import jsonschema_rs
import msgspec
import numpy as np
import torch
from vllm.config import StructuredOutputsConfig
from vllm.tokenizers import get_tokenizer
from vllm.v1.structured_output.backend_guidance import GuidanceBackend
from vllm.v1.structured_output.backend_types import StructuredOutputOptions

from bench.engine.vllm_support import MODEL, options, request, running
from bench.pairs import ORDER
from bench.support import is_faultless, lower_bound, report, run_bench, spread
from inference.vllm.engine import VllmEngine
from inference.vllm.scheduling.grammar_replay import EMITTED, GrammarReplays
from sessions.model.generation import Chunk
from sessions.model.types import Json, Sampling, TextOptions, Tool
from sessions.turn.tool_call_parser import constrained_output
from tests.support.engines.made_up_schemas import schema_of

LONG: Final = 80  # tokens: from there on an answer makes for its end
TOKENS_MAX: Final = 400
ANSWER_MAX: Final = 120  # of the model's
REPLAY_BAR_MS: Final = 10.0
REPLAYED: Final = 8_000
SPEED_BAR: Final = 0.99
TOOL_EACH: Final = 3  # of so many schemas one is a function's
_CLOSING: Final = ("}", "]", '"', "n", ",", ":", "0", "1", "t", "f")


class GrammarVocabulary:
    """The model's tokens, and vLLM's grammars over them."""

    def __init__(self) -> None:
        self.tokenizer: Any = get_tokenizer(str(MODEL))
        config = SimpleNamespace(structured_outputs_config=StructuredOutputsConfig(backend="guidance"))
        self.size = len(self.tokenizer)
        self.backend = GuidanceBackend(config, tokenizer=self.tokenizer, vocab_size=self.size)
        self.end = int(self.backend.ll_tokenizer.eos_token)
        self._mask = self.backend.allocate_token_bitmask(1)
        self._closing = self._by_closing()

    def _by_closing(self) -> np.ndarray[Any, Any]:
        """Token id -> how soon an answer ends that takes it: smaller is sooner."""
        texts = [self.bytes_of([token]).decode(errors="replace") for token in range(self.size)]
        ranks = [
            next((rank for rank, begin in enumerate(_CLOSING) if text.startswith(begin)), len(_CLOSING)) * 100
            + min(len(text), 99)
            + (2_000 if not text.strip() else 0)
            for text in texts
        ]
        ranks[self.end] = -1
        return np.array(ranks)

    def bytes_of(self, tokens: Sequence[int]) -> bytes:
        return bytes(self.backend.ll_tokenizer.decode_bytes(list(tokens)))

    def grammar(self, schema: Json) -> Any:
        return self.backend.compile_grammar(StructuredOutputOptions.JSON, json.dumps(schema), {self.end})

    def allowed(self, grammar: Any) -> np.ndarray[Any, Any]:
        """The ids that may come next."""
        grammar.fill_bitmask(self._mask, 0)
        bits = np.unpackbits(self._mask[0].numpy().view(np.uint8), bitorder="little")
        return np.flatnonzero(bits[: self.size])

    def go_on(self, grammar: Any, written: list[int], rng: random.Random) -> list[int]:
        """The rest of an answer, its end left out."""
        made: list[int] = []
        while len(written) + len(made) < TOKENS_MAX:
            ids = self.allowed(grammar)
            if len(written) + len(made) < LONG and rng.random() < 0.4:
                token = int(ids[rng.randrange(len(ids))])
            else:
                token = int(ids[np.argmin(self._closing[ids])])
            if token == self.end:
                return made
            if not grammar.accept_tokens("bench", [token]):
                raise AssertionError("the grammar refuses what its mask allows")
            made.append(token)
        raise AssertionError("an answer that does not end")


def replayed(schema_grammar: Any, prompt: Sequence[int], tokens: Sequence[int], replays: GrammarReplays) -> Any:
    """The grammar of a request that continues, as the scheduler has it once it is ready. Raises GrammarRefusal."""
    structured = SimpleNamespace(_grammar=schema_grammar, grammar=schema_grammar)
    params = SimpleNamespace(extra_args={EMITTED: len(tokens)})
    replays.prepare(
        SimpleNamespace(
            request_id="bench",
            prompt_token_ids=[*prompt, *tokens],
            sampling_params=params,
            structured_output_request=structured,
        )
    )
    found = structured.grammar
    return found.result() if isinstance(found, Future) else found


def cut_points(words: GrammarVocabulary, answer: Sequence[int]) -> Iterator[int]:
    """Behind every token that ends a character: the others are released with those that complete them."""
    for cut in range(1, len(answer) + 1):
        with contextlib.suppress(UnicodeDecodeError):
            words.bytes_of(answer[:cut]).decode()
            yield cut


class GrammarCuts:
    def __init__(self, words: GrammarVocabulary, seed: int) -> None:
        self.words = words
        self.rng = random.Random(seed)
        self.replays = GrammarReplays(lambda _: None, speculates=False)
        self.faults: list[str] = []
        self.cuts = self.of_calls = 0
        self.kept = self.written = 0

    def of(self, number: int, stride: int) -> None:
        words, is_call, schema = self.words, number % TOOL_EACH == 0, schema_of(number)
        if is_call:
            wrapped = constrained_output(Sampling(), (Tool(name="f", parameters=schema),)).format
            assert isinstance(wrapped, dict)
            schema = wrapped["schema"]
        valid = jsonschema_rs.validator_for(schema).is_valid
        grammar = words.grammar(schema)
        answer = words.go_on(grammar, [], self.rng)
        text = words.bytes_of(answer).decode()
        if not valid(json.loads(text)):
            self.faults.append(f"schema {number}: the uncut answer {text!r} is not valid")
            return
        self.written += len(answer)
        uncut = words.grammar(schema)
        fed = 0
        for cut in list(cut_points(words, answer))[::stride]:
            uncut.accept_tokens("bench", list(answer[fed:cut]))
            fed = cut
            self._one(number, schema, valid, answer[:cut], words.allowed(uncut))
        if is_call:
            for end in range(1, len(text) + 1, stride):
                tokens = words.tokenizer.encode(text[:end], add_special_tokens=False)
                self.of_calls += 1
                self._one(number, schema, valid, tokens, None)

    def _one(self, number: int, schema: Json, valid: Any, written: Sequence[int], mask: Any) -> None:
        words = self.words
        self.cuts += 1
        before = words.bytes_of(written).decode()
        try:
            grammar = replayed(words.grammar(schema), (1, 2, 3), written, self.replays)
            if mask is not None and not np.array_equal(words.allowed(grammar), mask):
                self.faults.append(f"schema {number}, cut at {len(written)}: another mask than uncut")
            rest = words.go_on(grammar, list(written), self.rng)
            whole = words.bytes_of([*written, *rest]).decode()
            if not whole.startswith(before):
                self.faults.append(f"schema {number}, cut at {len(written)}: {before!r} became {whole!r}")
            if not valid(json.loads(whole)):
                self.faults.append(f"schema {number}, cut at {len(written)}: {whole!r} is not valid")
        except (ValueError, AssertionError) as exc:  # a refusal is a ValueError, as are bytes and JSON that are none
            self.faults.append(f"schema {number}, cut behind {before!r}: {type(exc).__name__} {exc}")


def cuts(arguments: argparse.Namespace) -> bool:
    bench = GrammarCuts(GrammarVocabulary(), arguments.seed)
    begun = time.monotonic()
    done = 0
    for number in range(arguments.schemas):
        bench.of(arguments.seed + number, arguments.stride)
        done += 1
        if time.monotonic() - begun > arguments.seconds:
            break
    report(
        "vllm_grammar_cuts",
        {
            "schemas": done,
            "tokens of answers": bench.written,
            "cuts": bench.cuts,
            "of them in calls' text": bench.of_calls,
            "not valid, changed or refused (bar 0)": len(bench.faults),
            "s": time.monotonic() - begun,
        },
    )
    return is_faultless(bench.faults)


def replay(arguments: argparse.Namespace) -> bool:
    """The time from a compiled grammar to one that has all tokens."""
    words, rng = GrammarVocabulary(), random.Random(arguments.seed)
    schema: Json = {
        "type": "array",
        "items": {
            "type": "object",
            "properties": {"n": {"type": "integer"}, "t": {"type": "string"}, "k": {"enum": ["a", "b"]}},
            "required": ["n", "t", "k"],
            "additionalProperties": False,
        },
    }
    rows = [{"n": rng.randrange(10**6), "t": "a line of a poem " * rng.randint(1, 4), "k": "b"} for _ in range(2_000)]
    tokens = words.tokenizer.encode(json.dumps(rows), add_special_tokens=False)[:REPLAYED]
    replays = GrammarReplays(lambda _: None, speculates=False)
    took = []
    for _ in range(arguments.rounds):
        grammar = words.grammar(schema)
        begun = time.perf_counter()
        replayed(grammar, (1, 2, 3), tokens, replays)
        took.append(time.perf_counter() - begun)
    figures = spread("{} ms", took, "p50 p95 max", times=1000)
    report("vllm_grammar_replay", {"tokens": len(tokens), "rounds": len(took), "bar ms": REPLAY_BAR_MS, **figures})
    return figures["p50 ms"] <= REPLAY_BAR_MS


def formatted(schema: Json) -> Sampling:
    return Sampling(temperature=0, text=TextOptions({"type": "json_schema", "name": "x", "schema": schema}))


async def written(engine: VllmEngine, session: str, prompt: Sequence[int], schema: Json, emitted: int) -> list[int]:
    """What a run writes behind a prompt whose last `emitted` tokens are its answer's."""
    asked = msgspec.structs.replace(
        request(session, prompt, ANSWER_MAX - emitted),
        sampling=formatted(schema),
        emitted=tuple(prompt[len(prompt) - emitted :]),
    )
    tokens: list[int] = []
    async for item in engine.generate(asked):
        if isinstance(item, Chunk):
            tokens.extend(item.tokens)
    return tokens


async def model(arguments: argparse.Namespace) -> bool:
    faults: list[str] = []
    count = valid = same = ended = 0
    words = GrammarVocabulary()
    with tempfile.TemporaryDirectory() as folder:
        async with running(options(Path(folder), "float32", waiting_max=10_000)) as engine:
            prompt = list(words.tokenizer.encode("Write a short example as JSON.\n", add_special_tokens=False))
            numbers = range(arguments.seed, arguments.seed + arguments.schemas)
            wholes = await asyncio.gather(*(written(engine, f"w{n}", prompt, schema_of(n), 0) for n in numbers))
            for number, whole in zip(numbers, wholes, strict=True):
                schema = schema_of(number)
                is_valid = jsonschema_rs.validator_for(schema).is_valid
                if len(whole) >= ANSWER_MAX:
                    continue  # the small model does not come to an end of its own: nothing to hold it against
                ended += 1
                points = list(cut_points(words, whole))[:: arguments.stride]
                rests = await asyncio.gather(
                    *(written(engine, f"c{number}-{cut}", [*prompt, *whole[:cut]], schema, cut) for cut in points),
                    return_exceptions=True,
                )
                for cut, rest in zip(points, rests, strict=True):
                    count += 1
                    if isinstance(rest, BaseException):
                        faults.append(f"schema {number}, cut at {cut}: {rest!r}")
                        continue
                    text = words.bytes_of([*whole[:cut], *rest]).decode()
                    same += [*whole[:cut], *rest] == whole
                    if is_valid(json.loads(text)):
                        valid += 1
                    else:
                        faults.append(f"schema {number}, cut at {cut}: {text!r}")
    figures = {
        "schemas": arguments.schemas,
        "whose answers ended": ended,
        "cuts": count,
        "valid": valid,
        "as the uncut answer": same,
        "faults (bar 0)": len(faults),
    }
    report("vllm_grammar_model", figures)
    return is_faultless(faults) and count > 0


async def speed(arguments: argparse.Namespace) -> bool:
    """Strings with a length, in as many streams as there are slots. Whoever starts first is slower by some percent on
    a small machine, so half of the pairs are of engines that were started the other way round."""
    starts = (("ours", "theirs"), ("theirs", "ours"))
    ratios: list[float] = []
    rates: dict[str, list[float]] = {side: [] for side in starts[0]}
    with tempfile.TemporaryDirectory() as folder:
        for number, started in enumerate(starts):
            pairs = arguments.pairs // 2 + (arguments.pairs % 2 if number == 0 else 0)
            ratios += await speeds(Path(folder) / str(number), started, pairs, rates)
    mean = sum(ratios) / len(ratios)
    figures = {f"{side} tokens/s": sum(found) / len(found) for side, found in rates.items()}
    report(
        "vllm_grammar_speed",
        {"pairs": len(ratios), **figures, "mean": mean, "LB": lower_bound(ratios), "bar": SPEED_BAR},
    )
    return mean >= SPEED_BAR


async def speeds(folder: Path, started: Sequence[str], pairs: int, rates: dict[str, list[float]]) -> list[float]:
    """Our rate in theirs, pair by pair, of two engines that are up together; `rates` gets all tokens/s."""
    schema: Json = {"type": "array", "items": {"type": "string", "minLength": 40, "maxLength": 40}, "minItems": 40}
    theirs = {"engine_args": {"dtype": "float32", "scheduler_cls": "vllm.v1.core.sched.scheduler.Scheduler"}}
    more: dict[str, dict[str, Any]] = {"ours": {}, "theirs": theirs}
    async with contextlib.AsyncExitStack() as stack:
        engines = {
            side: await stack.enter_async_context(
                running(options(folder / side, "float32", slots=4, spill=False, **more[side]))
            )
            for side in started
        }

        async def once(side: str, number: int) -> float:
            begun = time.perf_counter()
            prompts = [[100 + number, 200 + stream, 300] for stream in range(4)]
            runs = await asyncio.gather(
                *(limited(engines[side], f"{number}-{n}", prompt, schema) for n, prompt in enumerate(prompts))
            )
            return sum(runs) / (time.perf_counter() - begun)

        for side in engines:
            await once(side, 0)
        ratios = []
        for pair in range(pairs):
            took = {"ours": 0.0, "theirs": 0.0}
            for place, side in enumerate(ORDER):
                rate = await once(side, 1 + pair * len(ORDER) + place)
                rates[side].append(rate)
                took[side] += 1 / rate
            ratios.append(took["theirs"] / took["ours"])
    return ratios


async def limited(engine: VllmEngine, session: str, prompt: Sequence[int], schema: Json) -> int:
    asked = msgspec.structs.replace(request(session, prompt, 64), sampling=formatted(schema))
    count = 0
    async for item in engine.generate(asked):
        if isinstance(item, Chunk):
            count += len(item.tokens)
    return count


def main(arguments: argparse.Namespace) -> Any:
    torch.set_num_threads(1)
    parts = {"cuts": cuts, "replay": replay, "model": model, "speed": speed}
    return parts[arguments.part](arguments)


if __name__ == "__main__":
    run_bench(
        main,
        __doc__,
        ("part", "cuts", "model", "replay", "speed"),
        schemas=200,
        stride=1,
        seed=0,
        rounds=30,
        pairs=10,
        seconds=3_000.0,
    )
