"""Moves blocks between the device and files in the staging folder, in two threads: one reads the device, one writes it.

A block's payload is its bytes in every layer, layer after layer; a file holds block after block, and within a
block one part for each rank:

    file     | block 0          | block 1          | ...
    block    | rank 0 | rank 1  | ...
    rank     | layer 0 | layer 1 | ... | layer n-1        (each: the layer's tensor at that block, row-major)

On a GPU the copies run on side streams through pinned memory, so that neither the forward pass nor its stream waits; on
a CPU they are plain copies that give the interpreter's lock back. What is loaded is checked against the snapshot's tags
after it has been read and before it touches the device, so no later change of the file matters. All bytes pass through
memory that each thread made at its start: what is new to a process is touched page by page, and that took longer than
reading, checking and copying together.

It does not know requests beyond their names; when blocks may be read or written is the connector's to say.
"""

from __future__ import annotations

import contextlib
import logging
import mmap
import os
import queue
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

import torch

from inference.kv.envelope import CHUNK_BYTES, SnapshotRefused, check_chunks
from inference.vllm.connector_metadata import BlockLoad, BlockSave
from inference.vllm.worker_events import BlocksLoaded, BlocksSaved, WorkerEventSender, WorkerReady

log = logging.getLogger(__name__)

_STAGE_BYTES: Final = 16 << 20  # moved at once
_READS_WAIT_S: Final = 5.0  # how long a forward pass may wait for reads of blocks that it is about to overwrite
_IDLE_WAIT_S: Final = 0.005  # how long a step without tokens waits for a copy, so that an idle core does not spin


class BlockCopier:
    def __init__(self, sender: WorkerEventSender, rank: int, world: int) -> None:
        self.sender = sender
        self.rank = rank
        self.world = world
        self.block_bytes = 0  # of this rank
        self._layers: list[tuple[Any, int]] = []  # (tensor with its blocks first, bytes of a block)
        self._changed = threading.Condition()
        self._reading: Counter[str] = Counter()  # saves that are not over, by request
        self._torn: set[str] = set()  # requests whose blocks were overwritten under a read
        self._sent: set[str] = set()
        self._received: set[str] = set()
        self._bad_blocks: set[int] = set()
        self._underway = 0
        self._saves: queue.SimpleQueue[BlockSave | None] = queue.SimpleQueue()
        self._loads: queue.SimpleQueue[BlockLoad | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._pinned = False

    def register(self, kv_caches: dict[str, Any], num_blocks: int) -> None:
        """Raises ValueError for a layout that has no dimension of blocks, RuntimeError where there is no memory to copy
        through."""
        layout = []
        for name in kv_caches:
            tensor = kv_caches[name]
            dimension = next((d for d in (0, 1) if d < tensor.dim() and tensor.shape[d] == num_blocks), None)
            if dimension is None:
                raise ValueError(f"the KV of {name} has shape {tuple(tensor.shape)} for {num_blocks} blocks")
            blocks = tensor.movedim(dimension, 0)
            size = blocks[0].numel() * blocks.element_size()
            self._layers.append((blocks, size))
            layout.append(f"{tuple(blocks.shape[1:])}:{blocks.dtype}")
        self.block_bytes = sum(size for _, size in self._layers)
        device = self._layers[0][0].device
        self._pinned = device.type == "cuda"
        stages = self._new_stage(0), self._new_stage(2 * CHUNK_BYTES)  # what is read begins and ends with whole chunks
        for target, name, stage in zip((self._save_loop, self._load_loop), ("save", "load"), stages, strict=True):
            thread = threading.Thread(target=target, args=(device, stage), name=f"kv-{name}", daemon=True)
            thread.start()
            self._threads.append(thread)
        distinct = sorted(set(layout))
        self.sender.send(
            WorkerReady(self.rank, self.world, self.block_bytes, f"{len(layout)} layers of {' or '.join(distinct)}")
        )

    def close(self) -> None:
        self._saves.put(None)
        self._loads.put(None)
        for thread in self._threads:
            thread.join(_READS_WAIT_S)
        self.sender.close()

    # -- called between forward passes, never blocking but where it says so --------------------------------

    def save(self, save: BlockSave) -> None:
        with self._changed:
            self._reading[save.request] += 1
            self._underway += 1
        self._saves.put(save)

    def load(self, load: BlockLoad) -> None:
        with self._changed:
            self._underway += 1
        self._loads.put(load)

    def finish_reads(self, requests: set[str]) -> None:
        """Waits until nothing of these requests is being read: their blocks are about to be overwritten."""
        with self._changed:
            if not self._changed.wait_for(lambda: not any(self._reading[r] for r in requests), _READS_WAIT_S):
                torn = {request for request in requests if self._reading[request]}
                log.warning("KV of %d preempted requests could not be saved in time: it is dropped", len(torn))
                self._torn |= torn

    def finished(self, *, patient: bool) -> tuple[set[str] | None, set[str] | None]:
        """(requests whose files are closed, requests whose loads are over). `patient`: waits a moment for one."""
        with self._changed:
            if patient and self._underway and not self._sent and not self._received:
                self._changed.wait(_IDLE_WAIT_S)
            sent, self._sent = self._sent, set()
            received, self._received = self._received, set()
        return sent or None, received or None

    def bad_blocks(self) -> set[int]:
        with self._changed:
            bad, self._bad_blocks = self._bad_blocks, set()
        return bad

    # -- device to file ------------------------------------------------------------------------------------

    def _save_loop(self, device: Any, stage: Any) -> None:
        with _side_stream(device):
            while (save := self._saves.get()) is not None:
                failed = False
                try:
                    self._write(save, stage)
                except Exception:
                    log.exception("KV could not be saved: it will be recomputed")
                    failed = True
                with self._changed:
                    self._reading[save.request] -= 1
                    failed = failed or save.request in self._torn
                    if failed:
                        self._torn.add(save.request)
                    if not self._reading[save.request]:
                        del self._reading[save.request]
                    if save.close:
                        self._torn.discard(save.request)
                saved = BlocksSaved(save.name, self.rank, save.first_block + len(save.block_ids), save.close, failed)
                (self.sender.send if save.close or failed else self.sender.mention)(saved)
                with self._changed:
                    self._underway -= 1
                    if save.held:
                        self._sent.add(save.request)
                    self._changed.notify_all()

    def _write(self, save: BlockSave, stage: Any) -> None:
        if not save.block_ids:
            return
        file = os.open(save.path, os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            for first, ids in self._portions(save.first_block, save.block_ids):
                part = stage[: len(ids) * self.block_bytes].view(len(ids), self.block_bytes)
                self._gather(ids, part)
                data = part.numpy()
                if self.world == 1:
                    _write_all(file, memoryview(data).cast("B"), first * self.block_bytes)
                else:
                    for row in range(len(ids)):
                        _write_all(file, memoryview(data[row]), self._offset(first + row))
        finally:
            os.close(file)

    # -- file to device ------------------------------------------------------------------------------------

    def _load_loop(self, device: Any, stage: Any) -> None:
        with _side_stream(device):
            while (load := self._loads.get()) is not None:
                begun = time.monotonic()
                reason = ""
                try:
                    self._read(load, stage)
                except SnapshotRefused as exc:
                    reason = exc.reason
                except OSError:
                    reason = "unreadable"
                except Exception:
                    log.exception("KV could not be loaded: it will be recomputed")
                    reason = "failed"
                size = len(load.block_ids) * self.block_bytes
                self.sender.send(
                    BlocksLoaded(load.name, self.rank, size, time.monotonic() - begun, load.resident_tokens, reason)
                )
                with self._changed:
                    self._underway -= 1
                    if reason:
                        self._bad_blocks.update(load.block_ids)
                    self._received.add(load.request)
                    self._changed.notify_all()

    def _read(self, load: BlockLoad, stage: Any) -> None:
        source = load.source
        end = (load.first_block + len(load.block_ids)) * self.block_bytes * self.world
        if end > source.payload_bytes:
            raise SnapshotRefused("truncated")
        file = os.open(source.path, os.O_RDONLY)
        try:
            size = os.fstat(file).st_size
            if size != source.payload_bytes:
                raise SnapshotRefused("truncated" if size < source.payload_bytes else "too_long")
            for first, ids in self._portions(load.first_block, load.block_ids):
                self._scatter(self._fill(file, first, len(ids), load, stage), ids)
        finally:
            os.close(file)

    def _fill(self, file: int, first: int, count: int, load: BlockLoad, stage: Any) -> Any:
        """This rank's part of blocks, (count, bytes of a block), read into the stage and checked there.

        Whole chunks are read, as the tags are the chunks'."""
        source = load.source
        begin = self._offset(first) - self.rank * self.block_bytes
        end = begin + count * self.block_bytes * self.world
        start = begin - begin % CHUNK_BYTES
        stop = min(source.payload_bytes, -(-end // CHUNK_BYTES) * CHUNK_BYTES)
        view = memoryview(stage.numpy())[: stop - start]
        done = 0
        while done < len(view):
            got = os.preadv(file, [view[done:]], start + done)
            if not got:
                raise SnapshotRefused("truncated")
            done += got
        check_chunks(view, source.snapshot_id, source.tags, start // CHUNK_BYTES)
        whole = stage[begin - start : end - start]
        return whole.view(count, self.world, self.block_bytes)[:, self.rank]

    # -- shared --------------------------------------------------------------------------------------------

    def _gather(self, ids: list[int], part: Any) -> None:
        """Blocks of the device into `part`, (blocks, bytes of a block) of the stage."""
        index = self._index(ids)
        there = torch.empty_like(part, device=index.device) if self._pinned else part
        at = 0
        for blocks, size in self._layers:
            bytes_ = blocks.index_select(0, index).view(torch.uint8).reshape(len(ids), size)
            there[:, at : at + size].copy_(bytes_)
            at += size
        if self._pinned:
            part.copy_(there, non_blocking=True)  # both are whole: one transfer
            _synchronize()

    def _scatter(self, part: Any, ids: list[int]) -> None:
        """The other way round. `part` may have gaps between its rows, which are the other ranks'."""
        index = self._index(ids)
        if self._pinned:
            there = torch.empty(part.shape, dtype=torch.uint8, device=index.device)
            for mine, row in zip(part, there, strict=True) if self.world > 1 else ((part, there),):
                row.copy_(mine, non_blocking=True)
            part = there
        at = 0
        for blocks, size in self._layers:
            bytes_ = part[:, at : at + size]
            if (bytes_.storage_offset() | bytes_.stride(0)) % blocks.element_size():
                bytes_ = bytes_.contiguous()  # its numbers would begin between two of their places
            new = bytes_.view(blocks.dtype).reshape((len(ids), *blocks.shape[1:]))
            blocks.index_copy_(0, index, new)
            at += size
        if self._pinned:
            _synchronize()

    def _new_stage(self, extra: int) -> Any:
        """Room for as many blocks of all ranks as are moved at once, and `extra` bytes."""
        size = self._rows * self.block_bytes * self.world + extra
        if self._pinned:
            return torch.empty(size, dtype=torch.uint8, pin_memory=True)
        pages = mmap.mmap(-1, size)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            with contextlib.suppress(OSError):  # a kernel without them: the pages are small ones
                pages.madvise(mmap.MADV_HUGEPAGE)
        return torch.frombuffer(pages, dtype=torch.uint8).zero_()

    @property
    def _rows(self) -> int:
        return max(1, _STAGE_BYTES // max(1, self.block_bytes * self.world))

    def _index(self, ids: list[int]) -> Any:
        return torch.tensor(ids, dtype=torch.long, device=self._layers[0][0].device)

    def _offset(self, block: int) -> int:
        return (block * self.world + self.rank) * self.block_bytes

    def _portions(self, first: int, ids: list[int]) -> Iterator[tuple[int, list[int]]]:
        for start in range(0, len(ids), self._rows):
            yield first + start, ids[start : start + self._rows]


class _side_stream:
    """On a GPU: this thread's work goes to a stream of its own."""

    def __init__(self, device: Any) -> None:
        self._device = device
        self._context: Any = None

    def __enter__(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.set_device(self._device)
            self._context = torch.cuda.stream(torch.cuda.Stream(self._device))
            self._context.__enter__()

    def __exit__(self, *error: Any) -> None:
        if self._context is not None:
            self._context.__exit__(*error)


def _synchronize() -> None:
    """Waits for this thread's stream, and for nobody else's."""
    event = torch.cuda.Event()
    event.record()
    event.synchronize()


def _write_all(file: int, data: memoryview, offset: int) -> None:
    while data:
        done = os.pwrite(file, data, offset)
        data, offset = data[done:], offset + done
