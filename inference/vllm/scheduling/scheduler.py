"""vLLM's schedulers, with answers in a fixed format continued where another run left them, with openings shared, and
with steps that last no longer than a target.

vLLM takes the name of `make_scheduler` as its `scheduler_cls`, an extension point of its own: nothing of vLLM is forked
or patched. The asynchronous scheduler is a class of its own; which one fits is known only after vLLM has looked at its
platform, so it is chosen when it is made. Verified against vLLM 0.32.
"""

from __future__ import annotations

import logging
import time
from typing import Any

from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import RequestStatus

from inference.step_budget import StepBudget
from inference.vllm.scheduling.block_salts import salt_in_parts
from inference.vllm.scheduling.grammar_replay import GrammarReplays
from inference.vllm.scheduling.step_planner import STEP_TARGET, StepPlanner

log = logging.getLogger(__name__)


class _Ours:
    """A mixin that is placed in front of one of vLLM's schedulers. Errors in its own code never reach vLLM."""

    structured_output_manager: Any
    num_spec_tokens: int
    block_size: int
    hash_block_size: int
    cache_config: Any
    scheduler_config: Any
    vllm_config: Any
    max_num_scheduled_tokens: int
    max_num_running_reqs: int
    running: list[Any]
    waiting: Any
    kv_holding_waiting: Any
    kv_cache_manager: Any
    finished_recving_kv_req_ids: set[str]

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._hash_function = get_hash_fn_by_name(self.cache_config.prefix_caching_hash_algo)
        self._replays = GrammarReplays(self._reasoner_of, speculates=self.num_spec_tokens > 0)
        self._long_max: int = self.scheduler_config.long_prefill_token_threshold  # as it was set
        self._planner: StepPlanner | None = None
        target_ms = dict(self.vllm_config.additional_config or {}).get(STEP_TARGET, 0)
        config = self.scheduler_config
        # Where an image must be computed in one step, one that it does not fit into would never come.
        if target_ms and config.enable_chunked_prefill and not config.disable_chunked_mm_input:
            most = self.max_num_scheduled_tokens
            budget, drafted = StepBudget(target_ms / 1000, most), self.num_spec_tokens
            overlaps = self.vllm_config.max_concurrent_batches > 1
            self._planner = StepPlanner(budget, most, clock=time.monotonic, drafted=drafted, overlaps=overlaps)

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        planner = self._planner
        if planner is None:
            return super().schedule(*args, **kwargs)  # type: ignore[misc]
        ready = self._ready()
        num_waiting = len(self.waiting) + len(self.kv_holding_waiting)
        plan = planner.plan(self.running, ready, num_unready=num_waiting - len(ready))
        self.max_num_scheduled_tokens = plan.tokens
        bounds = [bound for bound in (plan.long_max, self._long_max) if bound]
        self.scheduler_config.long_prefill_token_threshold = min(bounds, default=0)
        output = super().schedule(*args, **kwargs)  # type: ignore[misc]
        planner.begun(output, plan, self._ready())
        return output

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        if self._planner is not None:
            self._planner.ended(scheduler_output)
        return super().update_from_output(scheduler_output, model_runner_output)  # type: ignore[misc]

    def _preempt_request(self, request: Any, *args: Any, **kwargs: Any) -> None:
        """Removes those of the request's blocks that no step has filled from the prefix cache, then lets vLLM preempt
        the request.

        vLLM caches a full block when it plans the step that will fill it. A request that was planned first may be
        preempted in the same step by a later one with priority. Its blocks would then be found in the cache although
        they still hold older KV, perhaps another tenant's (vllm-project/vllm#43569, #57580)."""
        for manager in self.kv_cache_manager.coordinator.single_type_managers:
            blocks = manager.req_to_blocks.get(request.request_id, ())
            unfilled = blocks[request.num_computed_tokens // manager.block_size :]
            self.kv_cache_manager.evict_blocks({block.block_id for block in unfilled})
        super()._preempt_request(request, *args, **kwargs)  # type: ignore[misc]

    def _ready(self) -> list[Any]:
        """Returns the waiting requests that could begin in the next step if it had room and blocks."""
        if len(self.running) >= self.max_num_running_reqs:
            return []
        return [
            request for queue in (self.kv_holding_waiting, self.waiting) for request in queue if self._is_ready(request)
        ]

    def _is_ready(self, request: Any) -> bool:
        match request.status:
            case RequestStatus.WAITING_FOR_REMOTE_KVS:
                return request.request_id in self.finished_recving_kv_req_ids
            case RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR:
                structured = request.structured_output_request
                return structured is not None and structured.grammar is not None
            case RequestStatus.WAITING_FOR_STREAMING_REQ:
                return False
            case _:
                return True

    def add_request(self, request: Any) -> None:
        self._replays.prepare(request)
        try:
            if self.hash_block_size == self.block_size:
                salt_in_parts(request, self._hash_function, self.block_size)
        except Exception:
            log.exception("%s shares no opening", request.request_id)
        super().add_request(request)  # type: ignore[misc]  # of the class that comes next

    def shutdown(self) -> None:
        self._replays.close()
        super().shutdown()  # type: ignore[misc]

    def _reasoner_of(self, request: Any) -> Any:
        manager = self.structured_output_manager
        return None if manager.enable_in_reasoning else manager._get_reasoner(request)


class SessileScheduler(_Ours, Scheduler):  # type: ignore[misc]  # vLLM is not installed where types are checked
    pass


class AsyncSessileScheduler(_Ours, AsyncScheduler):  # type: ignore[misc]
    pass


def make_scheduler(*, vllm_config: Any, **others: Any) -> Any:
    asynchronous = vllm_config.scheduler_config.async_scheduling
    made = AsyncSessileScheduler if asynchronous else SessileScheduler
    return made(vllm_config=vllm_config, **others)
