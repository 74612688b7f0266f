"""vLLM's steps are bounded by time: who decodes and who lacks little goes first, and the text stays the same."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import torch
from vllm import SamplingParams
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

from inference.step_budget import StepBudget
from inference.vllm.async_llm import VllmCore
from inference.vllm.scheduling.step_planner import StepPlanner
from testbed.engine_client import ask, key, prompt_of
from tests.support.engines.vllm_world import BLOCK_TOKENS, STEP_TOKENS, VllmWorld, start, vllm_options

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(400)]

TARGET_S = 0.1
TOKEN_S = 0.001
BLOCKS = 64
STORY = "Tell me a story about a bird that could not fly, about its friends, and about the river that they crossed. "


def scheduler_of(folder: Path, *, asynchronous: bool, images_whole: bool = False) -> Any:
    config = AsyncEngineArgs(**VllmCore(vllm_options(folder, slots=6))._arguments(2_048, None)).create_engine_config()
    config.cache_config.num_gpu_blocks = BLOCKS
    config.scheduler_config.async_scheduling = asynchronous
    config.scheduler_config.disable_chunked_mm_input = images_whole
    init_none_hash(get_hash_fn_by_name(config.cache_config.prefix_caching_hash_algo))
    spec = FullAttentionSpec(block_size=BLOCK_TOKENS, num_kv_heads=1, head_size=1, dtype=torch.float32)
    return config.scheduler_config.get_scheduler_cls()(
        vllm_config=config,
        kv_cache_config=KVCacheConfig(BLOCKS, [], [KVCacheGroupSpec(["layer"], spec)]),
        structured_output_manager=StructuredOutputManager(config),
        block_size=BLOCK_TOKENS,
    )


class Device:
    """One of vLLM's schedulers with ours, and a device that computes nothing, at a pace of its own."""

    def __init__(self, folder: Path, *, asynchronous: bool) -> None:
        self.scheduler = scheduler_of(folder, asynchronous=asynchronous)
        self.hasher = get_request_block_hasher(BLOCK_TOKENS, self.scheduler._hash_function)
        assert self.scheduler._planner is not None, "the target reaches the scheduler"
        self.now_s = 100.0
        budget = StepBudget(TARGET_S, STEP_TOKENS)
        budget.measured(100, 100 * TOKEN_S)
        self.scheduler._planner = StepPlanner(budget, STEP_TOKENS, clock=lambda: self.now_s)

    def add(self, name: str, tokens: int) -> None:
        params = SamplingParams(max_tokens=50, ignore_eos=True)
        prompt = [len(name) + n % 7 for n in range(tokens)]
        self.scheduler.add_request(Request(name, prompt, params, None, block_hasher=self.hasher))

    def step(self) -> dict[str, int]:
        """Who was in it with how many tokens."""
        output = self.scheduler.schedule()
        self.now_s += output.total_num_scheduled_tokens * TOKEN_S
        names = list(output.num_scheduled_tokens)
        requests = self.scheduler.requests
        sampled = [[7] if requests[n].num_computed_tokens >= requests[n].num_prompt_tokens else [] for n in names]
        result = ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: index for index, name in enumerate(names)},
            sampled_token_ids=sampled,
            logprobs=None,
            prompt_logprobs_dict={},
            pooler_output=[],
        )
        self.scheduler.update_from_output(output, result)
        return dict(output.num_scheduled_tokens)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_steps_have_no_target_where_an_image_must_fit_into_one(asynchronous: bool, tmp_path: Path) -> None:
    """An image of more tokens than a step has would wait for ever."""
    assert scheduler_of(tmp_path, asynchronous=asynchronous, images_whole=True)._planner is None


@pytest.mark.parametrize("asynchronous", [False, True])
def test_no_step_is_larger_than_what_is_computed_in_the_target_time(tmp_path: Path, asynchronous: bool) -> None:
    device = Device(tmp_path, asynchronous=asynchronous)
    device.add("answer", 10)
    assert device.step() == {"answer": 10}
    device.add("cold prompt", 900)
    steps = [device.step() for _ in range(10)]
    assert all(step["answer"] == 1 and sum(step.values()) <= 100 for step in steps), "an answer has a token in each"
    assert sum(step.get("cold prompt", 0) for step in steps) >= 900, "and they are full"
    device.scheduler.shutdown()


def test_a_session_that_lacks_little_is_done_within_two_steps_beside_a_long_prompt(tmp_path: Path) -> None:
    device = Device(tmp_path, asynchronous=False)
    device.add("cold prompt", 900)
    device.add("another", 800)
    device.step()
    device.add("back", 60)
    computed = [step.get("back", 0) for step in (device.step(), device.step())]
    assert sum(computed) == 60 and device.step()["back"] == 1
    for _ in range(25):
        assert sum(device.step().values()) <= 100
    assert all(request.num_computed_tokens >= request.num_prompt_tokens for request in device.scheduler.running)
    device.scheduler.shutdown()


async def test_greedy_text_is_the_same_in_small_pieces_and_whole(world: VllmWorld) -> None:
    answers = []
    for target_ms in (60_000, 1):
        engine = await start(world, step_target_ms=target_ms)
        prompts = [await prompt_of(engine, f"{number}. {STORY * 9}") for number in range(3)]
        asked = (ask(engine, key(f"{target_ms}-{n}"), prompt, max_tokens=24) for n, prompt in enumerate(prompts))
        answers.append([answer.tokens for answer in await asyncio.gather(*asked)])
        await engine.close()
    assert answers[0] == answers[1] and all(len(tokens) > 1 for tokens in answers[0])
