"""Moves bytes between a device's KV blocks and host memory, beside the forward pass and without making it wait.

On a GPU a copy runs on a stream of its thread's own, through pinned memory, and has happened only once the thread has
waited for it; until then neither side of it may be touched. The forward pass fills blocks on a stream of its own too:
a mark, taken where a save or a load is ordered, stands behind all that was queued there, and the thread's stream begins
after it. On a CPU all of that is at once, and a mark is nothing.

Needs nothing but torch. It knows no requests, no files and no vLLM.
"""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch


class KvDevice(Protocol):
    """The operations with which KV is moved to and from a device. Only the thread of the forward pass takes marks. The
    copying threads call the other methods; so does the forward thread, for blocks that its next step overwrites."""

    @property
    def pinned(self) -> bool:
        """Whether copies go through pinned host memory first, and have to be waited for."""

    def new_stage(self, size: int) -> Any:
        """Makes host memory of so many bytes for copies."""

    def mark(self) -> Any:
        """Returns a mark in the forward pass's queue of work, behind everything that is in it now."""

    def thread(self) -> AbstractContextManager[None]:
        """Runs this thread's copies beside the forward pass inside the block."""

    def follow(self, mark: Any) -> None:
        """Makes this thread's later copies wait until the device has reached the mark."""

    def copy(self, target: Any, source: Any) -> None:
        """Starts a copy between host memory and the device."""

    def wait(self) -> None:
        """Waits until this thread's copies are done; waits for nothing else."""


class CpuDevice:
    """Implements `KvDevice` for KV in host memory."""

    pinned = False

    def new_stage(self, size: int) -> Any:
        pages = mmap.mmap(-1, size)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            with contextlib.suppress(OSError):  # a kernel without them: the pages are small ones
                pages.madvise(mmap.MADV_HUGEPAGE)
        return torch.frombuffer(pages, dtype=torch.uint8).zero_()

    def mark(self) -> Any:
        return None

    @contextlib.contextmanager
    def thread(self) -> Iterator[None]:
        # A second team of threads would outnumber the cores, and OpenMP then lets every thread of the forward pass
        # sleep between two operations rather than spin. vLLM replaces `torch.set_num_threads` by one that does nothing.
        # It sets a number for this thread, and one for threads that use torch for the first time after it.
        before = torch.get_num_threads()
        torch._C.set_num_threads(1)
        try:
            yield
        finally:
            torch._C.set_num_threads(before)

    def follow(self, mark: Any) -> None:
        return

    def copy(self, target: Any, source: Any) -> None:
        target.copy_(source)

    def wait(self) -> None:
        return


class CudaDevice:
    """Implements `KvDevice` for an NVIDIA GPU."""

    pinned = True

    def __init__(self, device: Any) -> None:
        self._device = device

    def new_stage(self, size: int) -> Any:
        return torch.empty(size, dtype=torch.uint8, pin_memory=True)

    def mark(self) -> Any:
        mark = torch.cuda.Event()
        mark.record(torch.cuda.current_stream(self._device))
        return mark

    @contextlib.contextmanager
    def thread(self) -> Iterator[None]:
        torch.cuda.set_device(self._device)
        with torch.cuda.stream(torch.cuda.Stream(self._device)):
            yield

    def follow(self, mark: Any) -> None:
        torch.cuda.current_stream(self._device).wait_event(mark)

    def copy(self, target: Any, source: Any) -> None:
        target.copy_(source, non_blocking=True)

    def wait(self) -> None:
        done = torch.cuda.Event()
        done.record(torch.cuda.current_stream(self._device))
        done.synchronize()


def device_of(device: Any) -> KvDevice:
    """Returns the KvDevice for a tensor's device."""
    return CudaDevice(device) if device.type == "cuda" else CpuDevice()


class BlockLayers:
    """The KV of all layers as blocks of bytes: a block is its bytes in every layer, layer after layer."""

    def __init__(self, kv_caches: dict[str, Any], num_blocks: int, device: KvDevice | None = None) -> None:
        """Takes the layers' tensors. Raises ValueError for a layout that has no dimension of blocks."""
        self._layers: list[tuple[Any, int]] = []  # (tensor with its blocks first, bytes of a block)
        self.shapes: list[str] = []
        for name, tensor in kv_caches.items():
            dimension = next((d for d in (0, 1) if d < tensor.dim() and tensor.shape[d] == num_blocks), None)
            if dimension is None:
                raise ValueError(f"the KV of {name} has shape {tuple(tensor.shape)} for {num_blocks} blocks")
            blocks = tensor.movedim(dimension, 0)
            self._layers.append((blocks, blocks[0].numel() * blocks.element_size()))
            self.shapes.append(f"{tuple(blocks.shape[1:])}:{blocks.dtype}")
        self.block_bytes = sum(size for _, size in self._layers)
        self.device = device or device_of(self._layers[0][0].device)

    def gather(self, ids: list[int], part: Any) -> None:
        """Copies the blocks `ids` of the device into `part`, an array of shape (blocks, bytes of a block) in host
        memory. The copy is complete when this returns."""
        index = self._index(ids)
        there = torch.empty_like(part, device=index.device) if self.device.pinned else part
        at = 0
        for blocks, size in self._layers:
            bytes_ = blocks.index_select(0, index).view(torch.uint8).reshape(len(ids), size)
            there[:, at : at + size].copy_(bytes_)
            at += size
        if self.device.pinned:
            self.device.copy(part, there)  # both are whole: one transfer
            self.device.wait()

    def scatter(self, part: Any, ids: list[int]) -> None:
        """Copies the rows of `part` into the blocks `ids` of the device. In `part` there may be gaps between the rows,
        with other ranks' bytes."""
        index = self._index(ids)
        if self.device.pinned:
            there = torch.empty(part.shape, dtype=torch.uint8, device=index.device)
            for mine, row in ((part, there),) if part.is_contiguous() else zip(part, there, strict=True):
                self.device.copy(row, mine)
            part = there
        at = 0
        for blocks, size in self._layers:
            bytes_ = part[:, at : at + size]
            if (bytes_.storage_offset() | bytes_.stride(0)) % blocks.element_size():
                bytes_ = bytes_.contiguous()  # its numbers would begin between two of their places
            new = bytes_.view(blocks.dtype).reshape((len(ids), *blocks.shape[1:]))
            blocks.index_copy_(0, index, new)
            at += size
        self.device.wait()

    def _index(self, ids: list[int]) -> Any:
        return torch.tensor(ids, dtype=torch.long, device=self._layers[0][0].device)
