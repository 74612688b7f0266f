"""Moves blocks between the device and files in the staging folder, in two threads: one reads the device, one writes it.

A block's payload is its bytes in every layer, layer after layer; a file holds block after block, and within a
block one part for each rank:

    file     | block 0          | block 1          | ...
    block    | rank 0 | rank 1  | ...
    rank     | layer 0 | layer 1 | ... | layer n-1        (each: the layer's tensor at that block, row-major)

How bytes get to a device and back beside the forward pass is `kv_device`'s. What is loaded is checked against the
snapshot's tags after it has been read and before it touches the device, so no later change of the file matters. What
is written has a checksum for each block (`block_checksums`), in case this process dies before it can report it. All
bytes pass through memory that each thread made at its start: what is new to a process is touched page by page, and that
took longer than reading, checking and copying together.

It does not know requests beyond their names; when blocks may be read or written is the connector's to say.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from inference.kv.block_checksums import add_checksums
from inference.kv.envelope import CHUNK_BYTES, SnapshotRefused, check_chunks
from inference.vllm.connector_metadata import BlockLoad, BlockSave
from inference.vllm.kv_device import BlockLayers, KvDevice
from inference.vllm.worker_events import BlocksLoaded, BlocksSaved, WorkerEventSender, WorkerReady

log = logging.getLogger(__name__)

_STAGE_BYTES: Final = 16 << 20  # moved at once
_READS_WAIT_S: Final = 5.0  # how long a forward pass may wait for reads of blocks that it is about to overwrite
_IDLE_WAIT_S: Final = 0.005  # how long a step without tokens waits for a copy, so that an idle core does not spin


class BlockCopier:
    """Copies blocks between a rank's device and the snapshots' files. Its attributes are the copies under way, in both
    directions."""

    def __init__(self, sender: WorkerEventSender, rank: int, world: int, device: KvDevice | None = None) -> None:
        """`device` None: that of the tensors."""
        self.sender = sender
        self.rank = rank
        self.world = world
        self.block_bytes = 0  # of this rank
        self._device = device
        self._layers: BlockLayers | None = None
        self._changed = threading.Condition()
        self._reading: Counter[str] = Counter()  # saves that are not over, by request
        self._torn: set[str] = set()  # requests whose blocks were overwritten under a read
        self._sent: set[str] = set()
        self._received: set[str] = set()
        self._bad_blocks: set[int] = set()
        self._underway = 0
        self._saves: queue.SimpleQueue[tuple[BlockSave, Any] | None] = queue.SimpleQueue()  # with marks
        self._loads: queue.SimpleQueue[tuple[BlockLoad, Any] | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []

    def register(self, kv_caches: dict[str, Any], num_blocks: int) -> None:
        """Raises ValueError for a layout that has no dimension of blocks, RuntimeError where there is no memory to copy
        through."""
        self._layers = layers = BlockLayers(kv_caches, num_blocks, self._device)
        self.block_bytes = layers.block_bytes
        room = self._rows * self.block_bytes * self.world
        stages = [layers.device.new_stage(room + extra) for extra in (0, 2 * CHUNK_BYTES)]  # whole chunks are read
        for target, name, stage in zip((self._save_loop, self._load_loop), ("save", "load"), stages, strict=True):
            thread = threading.Thread(target=target, args=(layers, stage), name=f"kv-{name}", daemon=True)
            thread.start()
            self._threads.append(thread)
        distinct = " or ".join(sorted(set(layers.shapes)))
        self.sender.send(
            WorkerReady(self.rank, self.world, self.block_bytes, f"{len(layers.shapes)} layers of {distinct}")
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
        self._saves.put((save, self._mark()))

    def load(self, load: BlockLoad) -> None:
        with self._changed:
            self._underway += 1
        self._loads.put((load, self._mark()))

    def _mark(self) -> Any:
        return None if self._layers is None else self._layers.device.mark()

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

    def _save_loop(self, layers: BlockLayers, stage: Any) -> None:
        with layers.device.thread():
            while (order := self._saves.get()) is not None:
                (save, mark), failed = order, False
                try:
                    layers.device.follow(mark)
                    self._write(save, layers, stage)
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

    def _write(self, save: BlockSave, layers: BlockLayers, stage: Any) -> None:
        if not save.block_ids:
            return
        path = Path(save.path)
        file = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            for first, ids in self._portions(save.first_block, save.block_ids):
                part = stage[: len(ids) * self.block_bytes].view(len(ids), self.block_bytes)
                layers.gather(ids, part)
                data = part.numpy()
                if self.world == 1:
                    _write_all(file, memoryview(data).cast("B"), first * self.block_bytes)
                else:
                    for row in range(len(ids)):
                        _write_all(file, memoryview(data[row]), self._offset(first + row))
                with self._changed:
                    torn = save.request in self._torn
                if not torn:  # what was overwritten while it was read never has one
                    add_checksums(path, first, [memoryview(row) for row in data], self.rank, self.world)
        finally:
            os.close(file)

    # -- file to device ------------------------------------------------------------------------------------

    def _load_loop(self, layers: BlockLayers, stage: Any) -> None:
        with layers.device.thread():
            while (order := self._loads.get()) is not None:
                (load, mark), begun, reason = order, time.monotonic(), ""
                try:
                    layers.device.follow(mark)
                    self._read(load, layers, stage)
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

    def _read(self, load: BlockLoad, layers: BlockLayers, stage: Any) -> None:
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
                layers.scatter(self._fill(file, first, len(ids), load, stage), ids)
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

    @property
    def _rows(self) -> int:
        return max(1, _STAGE_BYTES // max(1, self.block_bytes * self.world))

    def _offset(self, block: int) -> int:
        return (block * self.world + self.rank) * self.block_bytes

    def _portions(self, first: int, ids: list[int]) -> Iterator[tuple[int, list[int]]]:
        for start in range(0, len(ids), self._rows):
            yield first + start, ids[start : start + self._rows]


def _write_all(file: int, data: memoryview, offset: int) -> None:
    while data:
        done = os.pwrite(file, data, offset)
        data, offset = data[done:], offset + done
