"""vLLM's worker for CPUs, without a fault of 0.32 that ends the engine. Its name is vLLM's `worker_cls`: no patch.

Each step samples for every request, also for one whose prompt is not computed to its end yet, and what such a request
drew is taken back by moving its generator's offset, which generators of CPUs do not have: the worker dies of it. Every
request of ours has a seed. So such a request draws from nobody's generator, and its own begins with its first token.
"""

from __future__ import annotations

from typing import Any

from vllm.v1.worker.cpu_worker import CPUWorker


class CpuWorker(CPUWorker):  # type: ignore[misc]  # vLLM is not installed where types are checked
    def sample_tokens(self, grammar_output: Any) -> Any:
        runner = self.model_runner
        generators = runner.input_batch.generators  # row of the batch -> generator
        unfinished = runner.discard_request_mask.np[: runner.input_batch.num_reqs].nonzero()[0].tolist()
        kept = {row: generators.pop(row) for row in unfinished if row in generators}
        try:
            return super().sample_tokens(grammar_output)
        finally:
            generators.update(kept)
