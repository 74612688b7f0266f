"""vLLM's schedulers, with answers in a fixed format continued where another run left them.

vLLM takes the name of `make_scheduler` as its `scheduler_cls`, an extension point of its own: nothing of vLLM is forked
or patched. The asynchronous scheduler is a class of its own; which one fits is known only after vLLM has looked at its
platform, so it is chosen when it is made. Verified against vLLM 0.32.
"""

from __future__ import annotations

from typing import Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler

from inference.vllm.scheduling.grammar_replay import GrammarReplays


class _ReplaysGrammars:
    """Goes before a scheduler of vLLM's."""

    structured_output_manager: Any
    num_spec_tokens: int

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._replays = GrammarReplays(self._reasoner_of, speculates=self.num_spec_tokens > 0)

    def add_request(self, request: Any) -> None:
        self._replays.prepare(request)
        super().add_request(request)  # type: ignore[misc]  # of the class that comes next

    def shutdown(self) -> None:
        self._replays.close()
        super().shutdown()  # type: ignore[misc]

    def _reasoner_of(self, request: Any) -> Any:
        manager = self.structured_output_manager
        return None if manager.enable_in_reasoning else manager._get_reasoner(request)


class ReplayScheduler(_ReplaysGrammars, Scheduler):  # type: ignore[misc]  # vLLM is not installed where types are checked
    pass


class AsyncReplayScheduler(_ReplaysGrammars, AsyncScheduler):  # type: ignore[misc]
    pass


def make_scheduler(*, vllm_config: Any, **others: Any) -> Any:
    asynchronous = vllm_config.scheduler_config.async_scheduling
    made = AsyncReplayScheduler if asynchronous else ReplayScheduler
    return made(vllm_config=vllm_config, **others)
