"""vLLM's worker for CPUs, without two faults of 0.32. Its name is vLLM's `worker_cls`: no file of vLLM's is changed.

Each step samples for every request, also for one whose prompt is not computed to its end yet, and what such a request
drew is taken back by moving its generator's offset, which generators of CPUs do not have: the worker dies of it. Every
request of ours has a seed. So such a request draws from nobody's generator, and its own begins with its first token.

Each process group listens on a TCP port of gloo's, 13 of them, also where the worker is alone and nobody ever connects.
A worker that is alone gets groups without a transport (`groups_of_one`), and the file by which workers find each other
lies in the folder of vLLM's sockets, whose mode is 0700, rather than open to read among everybody's temporary files.
"""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Iterator
from typing import Any, Final

from torch import distributed
from vllm import envs
from vllm.v1.worker.cpu_worker import CPUWorker

_STORE: Final = "file://"
_FAKE: Final = "torch.testing._internal.distributed.fake_pg"  # registers the backend


class CpuWorker(CPUWorker):  # type: ignore[misc]  # vLLM is not installed where types are checked
    distributed_init_method: str

    def init_device(self) -> None:
        method = self.distributed_init_method
        if method.startswith(_STORE):
            self.distributed_init_method = f"{_STORE}{envs.VLLM_RPC_BASE_PATH}/{os.path.basename(method)}"
        with groups_of_one() if self.parallel_config.world_size_across_dp == 1 else contextlib.nullcontext():
            super().init_device()

    def sample_tokens(self, grammar_output: Any) -> Any:
        runner = self.model_runner
        generators = runner.input_batch.generators  # row of the batch -> generator
        unfinished = runner.discard_request_mask.np[: runner.input_batch.num_reqs].nonzero()[0].tolist()
        kept = {row: generators.pop(row) for row in unfinished if row in generators}
        try:
            return super().sample_tokens(grammar_output)
        finally:
            generators.update(kept)


@contextlib.contextmanager
def groups_of_one() -> Iterator[None]:
    """Gives process groups made inside the block torch's "fake" backend: no socket, and right results for a single
    rank.

    Of more ranks it would give wrong ones, so a group of more is refused. vLLM names gloo where it makes its groups,
    and has no setting for that.
    """
    importlib.import_module(_FAKE)
    init, new = distributed.init_process_group, distributed.new_group

    def init_process_group(**arguments: Any) -> None:
        if arguments["world_size"] != 1:
            raise ValueError(f"a group of {arguments['world_size']} needs a transport")
        init(**arguments | {"backend": "fake"})

    def new_group(ranks: list[int], **arguments: Any) -> Any:
        if len(ranks) != 1:
            raise ValueError(f"a group of {len(ranks)} needs a transport")
        return new(ranks, **arguments | {"backend": "fake"})

    distributed.init_process_group, distributed.new_group = init_process_group, new_group
    try:
        yield
    finally:
        distributed.init_process_group, distributed.new_group = init, new
