"""An answer in a fixed format goes on where another run left it: valid as a whole, and what was written stays."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import msgspec
import pytest
import torch
from vllm import SamplingParams
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.sampling_params import StructuredOutputsParams
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager
from vllm.v1.structured_output.backend_types import StructuredOutputOptions

from inference.vllm.async_llm import VllmCore
from inference.vllm.scheduling.grammar_replay import EMITTED
from inference.vllm.scheduling.scheduler import AsyncSessileScheduler, SessileScheduler
from sessions.model.errors import BadInput
from sessions.model.types import Json, Sampling, TextOptions, Tool
from sessions.turn.tool_call_parser import constrained_output
from testbed.engine_client import ask, key, prompt_of
from testbed.server_process import ServerProcess
from testbed.wire_client import WireClient, connected, text_of
from tests.support.engines.vllm_world import BLOCK_TOKENS, MODEL, STEP_TOKENS, VllmWorld, start, vllm_options

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(400)]

PERSON: dict[str, Json] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "born": {"type": "string", "pattern": "^19[0-9]{2}-(0[1-9]|1[0-2])$"},
        "kind": {"enum": ["poet", "baker", "Bäcker", "詩人"]},
        "likes": {"type": "array", "items": {"enum": ["tea", "rain", "bread"]}, "minItems": 3, "maxItems": 4},
        "home": {"anyOf": [{"type": "null"}, {"type": "integer", "minimum": 10, "maximum": 99}]},
    },
    "required": ["name", "born", "kind", "likes", "home"],
    "additionalProperties": False,
}
MAX_TOKENS = 200


def formatted(schema: Json, **more: Any) -> Sampling:
    format_: dict[str, Json] = {"type": "json_schema", "name": "x", "schema": schema}
    return Sampling(temperature=0, text=TextOptions(format=format_), **more)


def check(text: str, schema: Json = PERSON) -> None:
    assert jsonschema_rs.validator_for(schema).is_valid(json.loads(text)), text


async def test_at_whatever_token_it_is_cut_the_answer_goes_on_as_if_it_had_not_been(world: VllmWorld) -> None:
    engine = await start(world)
    prompt = await prompt_of(engine, "Describe a person as JSON.")
    whole = await ask(engine, key("a"), prompt, max_tokens=MAX_TOKENS, sampling=formatted(PERSON))
    check(whole.text)
    assert len(whole.tokens) > 30
    for cut in (1, 2, 3, *range(7, len(whole.tokens), 7), len(whole.tokens) - 1):
        written = whole.tokens[:cut]
        rest = await ask(
            engine,
            key(f"cut{cut}"),
            (*prompt, *written),
            max_tokens=MAX_TOKENS,
            sampling=formatted(PERSON),
            emitted=written,
        )
        assert rest.tokens == whole.tokens[cut:], f"cut at {cut}"
        assert rest.finish.reason == "stop"
    ended = await ask(
        engine, key("end"), (*prompt, *whole.tokens), max_tokens=9, sampling=formatted(PERSON), emitted=whole.tokens
    )
    assert ended.text == "" and ended.finish.reason == "stop", "a whole answer can only end"


async def test_an_answer_continues_behind_text_beyond_the_last_whole_token(world: VllmWorld) -> None:
    """So is the call of a function that must be called: the log has no tokens of it, only text."""
    engine = await start(world)
    tool = Tool(name="note", description="Notes a person.", parameters=PERSON)
    sampling = msgspec.structs.replace(formatted({}), text=constrained_output(Sampling(), (tool,)))
    prompt = await prompt_of(engine, "Note a person.")
    whole = await ask(engine, key("a"), prompt, max_tokens=MAX_TOKENS, sampling=sampling)
    rng = random.Random(3)
    for cut in rng.sample(range(1, len(whole.text)), 12):
        text = whole.text[:cut]
        written = tuple(await engine.tokenizer.text(text))
        rest = await ask(
            engine,
            key(f"cut{cut}"),
            (*prompt, *written),
            max_tokens=MAX_TOKENS,
            sampling=sampling,
            emitted=written,
        )
        call = json.loads(text + rest.text)
        assert call["name"] == "note"
        assert jsonschema_rs.validator_for(PERSON).is_valid(call["arguments"]), text + rest.text


async def test_a_continuation_that_the_format_refuses_fails_alone(world: VllmWorld) -> None:
    engine = await start(world)
    prompt = await prompt_of(engine, "Describe a person as JSON.")
    for written in (prompt[-3:], tuple(await engine.tokenizer.text('{"name": 7'))):
        with pytest.raises(BadInput) as refused:
            await ask(engine, key("a"), (*prompt, *written), sampling=formatted(PERSON), emitted=written)
        assert refused.value.code == "recovery_incompatible"
    assert engine.stats().running == 0
    check((await ask(engine, key("a"), prompt, max_tokens=MAX_TOKENS, sampling=formatted(PERSON))).text)


async def test_drafted_tokens_that_are_taken_back_leave_what_was_written(world: VllmWorld) -> None:
    drafts = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3, "prompt_lookup_min": 1}
    engine = await start(
        world,
        engine_args={"dtype": "float32", "max_num_batched_tokens": STEP_TOKENS, "speculative_config": drafts},
    )
    likes = {"type": "array", "items": {"enum": ["tea", "teapot", "tea and rain"]}, "minItems": 8, "maxItems": 12}
    prompt = await prompt_of(engine, 'Repeat: ["tea", "tea", "tea", "tea", "tea", "tea", "tea", "tea"]')
    whole = await ask(engine, key("a"), prompt, max_tokens=MAX_TOKENS, sampling=formatted(likes))
    check(whole.text, likes)
    for cut in range(1, len(whole.tokens), 5):
        written = whole.tokens[:cut]
        rest = await ask(
            engine,
            key(f"cut{cut}"),
            (*prompt, *written),
            max_tokens=MAX_TOKENS,
            sampling=formatted(likes),
            emitted=written,
        )
        assert rest.tokens == whole.tokens[cut:], f"cut at {cut}"


async def test_without_our_scheduler_a_continuation_is_refused(
    world: VllmWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = await start(world)
    prompt = await prompt_of(engine, "Describe a person as JSON.")
    monkeypatch.setattr("inference.vllm.async_llm.BUILD", "vllm/9.9")
    with pytest.raises(BadInput) as refused:
        await ask(engine, key("a"), prompt, sampling=formatted(PERSON), emitted=prompt[-1:])
    assert refused.value.code == "recovery_incompatible"


@pytest.mark.parametrize("asynchronous", [False, True])
def test_both_of_vllms_schedulers_mask_the_first_step_by_what_was_written(asynchronous: bool, tmp_path: Path) -> None:
    arguments = VllmCore(vllm_options(tmp_path))._arguments(256, None)
    config = AsyncEngineArgs(**arguments).create_engine_config()
    config.cache_config.num_gpu_blocks = 16
    config.scheduler_config.async_scheduling = asynchronous  # which a platform says, and a CPU says no
    manager = StructuredOutputManager(config)
    spec = FullAttentionSpec(block_size=BLOCK_TOKENS, num_kv_heads=1, head_size=1, dtype=torch.float32)
    scheduler: Any = config.scheduler_config.get_scheduler_cls()(
        vllm_config=config,
        kv_cache_config=KVCacheConfig(16, [], [KVCacheGroupSpec(["layer"], spec)]),
        structured_output_manager=manager,
        block_size=BLOCK_TOKENS,
    )
    assert type(scheduler) is (AsyncSessileScheduler if asynchronous else SessileScheduler)
    schema = json.dumps(PERSON)
    written = manager.tokenizer.encode('{"name": "Ada", "born": "19', add_special_tokens=False)
    params = SamplingParams(
        max_tokens=9, structured_outputs=StructuredOutputsParams(json=schema), extra_args={EMITTED: len(written)}
    )
    params.structured_outputs._backend = "guidance"  # as vLLM's front half does
    request = Request("r", [5, 6, 7, *written], params, None)
    manager.grammar_init(request)
    scheduler.add_request(request)
    request.structured_output_request._grammar.result(60)
    scheduled = scheduler.schedule()
    assert scheduled.num_scheduled_tokens == {"r": 3 + len(written)}
    mask = scheduler.get_grammar_bitmask(scheduled).grammar_bitmask[0]
    uncut = manager.backend.compile_grammar(StructuredOutputOptions.JSON, schema)
    assert uncut.accept_tokens("uncut", written)
    expected = manager.backend.allocate_token_bitmask(1)
    uncut.fill_bitmask(expected, 0)
    assert (mask == expected.numpy()[0]).all()
    scheduler.shutdown()


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_block_is_found_only_if_the_step_that_fills_it_is_computed(asynchronous: bool, tmp_path: Path) -> None:
    """`low` goes first in a step, and then its place to `high`, which lacks a block."""
    options = vllm_options(tmp_path, slots=2, engine_args={"dtype": "float32", "max_num_batched_tokens": 66})
    config = AsyncEngineArgs(**VllmCore(options)._arguments(256, None)).create_engine_config()
    config.cache_config.num_gpu_blocks = 7  # one is vLLM's own
    config.scheduler_config.async_scheduling = asynchronous
    spec = FullAttentionSpec(block_size=BLOCK_TOKENS, num_kv_heads=1, head_size=1, dtype=torch.float32)
    scheduler: Any = config.scheduler_config.get_scheduler_cls()(
        vllm_config=config,
        kv_cache_config=KVCacheConfig(7, [], [KVCacheGroupSpec(["layer"], spec)]),
        structured_output_manager=StructuredOutputManager(config),
        block_size=BLOCK_TOKENS,
    )
    scheduler._planner = None  # the order is vLLM's
    config.scheduler_config.long_prefill_token_threshold = 33
    algorithm = get_hash_fn_by_name(config.cache_config.prefix_caching_hash_algo)
    init_none_hash(algorithm)
    hasher = get_request_block_hasher(BLOCK_TOKENS, algorithm)
    params = SamplingParams(max_tokens=9, ignore_eos=True)
    low = Request("low", list(range(130)), params, None, priority=1, block_hasher=hasher)
    scheduler.add_request(low)
    compute(scheduler, {"low": 66}, [])
    scheduler.add_request(Request("high", [7] * 32, params, None, priority=0, block_hasher=hasher))
    compute(scheduler, {"low": 33, "high": 32}, ["high"])
    last = scheduler.schedule()
    assert last.num_scheduled_tokens == {"high": 1} and last.preempted_req_ids == {"low"}
    found = scheduler.kv_cache_manager.get_computed_blocks(low)[1]
    assert found == 96, "what was computed is found, and no more"
    scheduler.shutdown()


def test_requests_have_priorities_only_where_our_scheduler_runs(tmp_path: Path) -> None:
    """vLLM's own fails the test above."""
    policies = {"priority": {}, "fcfs": {"scheduler_cls": "another.Scheduler"}}
    for policy, engine_args in policies.items():
        arguments = VllmCore(vllm_options(tmp_path, engine_args=engine_args))._arguments(256, None)
        assert arguments["scheduling_policy"] == policy


def compute(scheduler: Any, tokens: dict[str, int], sampled: list[str]) -> None:
    """The next step, which has so many tokens of each; the `sampled` have an answer's token behind it."""
    output = scheduler.schedule()
    assert output.num_scheduled_tokens == tokens
    names = list(tokens)
    result = ModelRunnerOutput(
        req_ids=names,
        req_id_to_index={name: number for number, name in enumerate(names)},
        sampled_token_ids=[[5] if name in sampled else [] for name in names],
    )
    scheduler.update_from_output(output, result)


# -- the whole server ----------------------------------------------------------------------------------------


@contextlib.contextmanager
def serving(data: Path) -> Iterator[ServerProcess]:
    args = {"dtype": "float32", "kv_cache_memory_bytes": 200_000_000}
    server = ServerProcess(
        *("--engine", "vllm", "--model", str(MODEL), "--threads", "1", "--slots", "2", "--context", "1024"),
        *("--vllm-args", json.dumps(args)),
        data=str(data),
    )
    with server:
        yield server


def kill_engine(server: ServerProcess) -> None:
    """kill -9 of vLLM's process below it."""
    for task in Path(f"/proc/{server.pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            if b"EngineCore" in Path(f"/proc/{child}/cmdline").read_bytes():
                os.kill(int(child), signal.SIGKILL)
                return
    raise AssertionError("no vLLM below it")


async def written(wire: WireClient, frames: list[dict[str, Any]], length: int) -> None:
    """Reads until the answer has so many code points."""
    while len(text_of(frames)) < length:
        frames.append(await wire.events.get())


FORMAT: dict[str, Json] = {"format": {"type": "json_schema", "name": "person", "schema": PERSON}}


async def test_an_answer_survives_the_death_of_vllm_and_of_the_server(tmp_path: Path) -> None:
    frames: list[dict[str, Any]] = []
    with serving(tmp_path) as server:
        async with connected(server.url) as wire:
            session = await wire.create()
            asked = await wire.command(
                "message.create", session=session, content="Describe a person as JSON.", temperature=0, text=FORMAT
            )
            await written(wire, frames, 10)
            kill_engine(server)
            await written(wire, frames, len(text_of(frames)) + 20)
            server.kill()
            before = text_of(frames)
        server.start()
        async with connected(server.url) as wire:
            await wire.command("subscribe", session=session, offset=0)
            all_frames = await wire.until_end(asked["response_id"])
    text = text_of(all_frames)
    assert text.startswith(before) and len(before) >= 30
    check(text)
    assert all_frames[-1]["event"]["type"] == "response.completed"
    moves = [frame["event"]["cause"] for frame in all_frames if frame["event"]["type"] == "session.migrated"]
    assert len(moves) == 2
