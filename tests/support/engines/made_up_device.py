"""A GPU that is made up, for tests of what moves KV: its copies happen late, and what touches them early shows.

A copy to host memory has poison as its target until somebody waits for it. A copy from host memory is read at the last
moment, so that memory which is used again too early is a fault. The forward pass has a stream of its own whose steps
run only when something waits for them.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch

POISON = 0xEE


class MadeUpDevice:
    """Implements `KvDevice` over tensors in host memory."""

    pinned = True

    def __init__(self) -> None:
        self.copies = 0
        self.faults: list[str] = []
        self._stages: list[Any] = []
        self._steps: list[Callable[[], None]] = []  # of the forward pass, queued and not run
        self._run = 0
        self._lock = threading.Lock()
        self._threads: dict[int, list[Callable[[], None]]] = {}  # copies that were not waited for, by thread

    @property
    def outstanding(self) -> int:
        return sum(map(len, self._threads.values()))

    def queue(self, step: Callable[[], None]) -> None:
        """A step of the forward pass, which runs when something waits for it."""
        self._steps.append(step)

    def drain(self) -> None:
        self.follow(len(self._steps))

    # -- KvDevice ------------------------------------------------------------------------------------------------

    def new_stage(self, size: int) -> Any:
        stage = torch.full((size,), POISON, dtype=torch.uint8)
        self._stages.append(stage)
        return stage

    def mark(self) -> int:
        return len(self._steps)

    @contextlib.contextmanager
    def thread(self) -> Iterator[None]:
        self._threads[threading.get_ident()] = []
        yield

    def follow(self, mark: int) -> None:
        with self._lock:
            while self._run < mark:
                self._steps[self._run]()
                self._run += 1

    def copy(self, target: Any, source: Any) -> None:
        pending = self._threads.get(threading.get_ident())
        if pending is None:
            self.faults.append("a copy in a thread without a stream")
            return
        self.copies += 1
        bytes_ = source.clone()
        if self._is_host(target):
            target.fill_(POISON)
            pending.append(lambda: target.copy_(bytes_))
        elif self._is_host(source):
            target.copy_(bytes_)  # for what follows on the stream it is there; the host's side is read late
            pending.append(lambda: self._check(source, bytes_))
        else:
            self.faults.append("a copy that does not go through a stage")

    def wait(self) -> None:
        pending = self._threads.get(threading.get_ident())
        if pending is None:
            self.faults.append("a wait in a thread without a stream")
            return
        while pending:
            pending.pop(0)()

    # -- inside ----------------------------------------------------------------------------------------------------

    def _check(self, source: Any, bytes_: Any) -> None:
        if not torch.equal(source, bytes_):
            self.faults.append("a stage was changed under a copy from it")

    def _is_host(self, tensor: Any) -> bool:
        begin = tensor.data_ptr()
        return any(stage.data_ptr() <= begin < stage.data_ptr() + stage.numel() for stage in self._stages)
