"""vLLM's schedulers, with answers in a fixed format continued where another run left them, and with openings shared.

vLLM takes the name of `make_scheduler` as its `scheduler_cls`, an extension point of its own: nothing of vLLM is forked
or patched. The asynchronous scheduler is a class of its own; which one fits is known only after vLLM has looked at its
platform, so it is chosen when it is made. Verified against vLLM 0.32.
"""

from __future__ import annotations

import logging
from typing import Any

from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler

from inference.vllm.scheduling.block_salts import salt_in_parts
from inference.vllm.scheduling.grammar_replay import GrammarReplays

log = logging.getLogger(__name__)


class _Ours:
    """Goes before a scheduler of vLLM's. Nothing here raises into it."""

    structured_output_manager: Any
    num_spec_tokens: int
    block_size: int
    hash_block_size: int
    cache_config: Any

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._hash_function = get_hash_fn_by_name(self.cache_config.prefix_caching_hash_algo)
        self._replays = GrammarReplays(self._reasoner_of, speculates=self.num_spec_tokens > 0)

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
