"""Moves blocks between the device and files in the staging folder, in two threads: one reads the device, one writes it.
Blocks that a step is about to overwrite, and that the first has not read yet, are read by the step's own thread.

A block's payload is its bytes in every layer, layer after layer; a file holds block after block, and within a
block one part for each rank:

    file     | block 0          | block 1          | ...
    block    | rank 0 | rank 1  | ...
    rank     | layer 0 | layer 1 | ... | layer n-1        (each: the layer's tensor at that block, row-major)

How bytes get to a device and back beside the forward pass is `kv_device`'s. What is loaded is checked against the
snapshot's tags after it has been read and before it touches the device, so no later change of the file matters. What
is written has a checksum for each block (`block_checksums`), in case this process dies before it can report it. All
bytes of the two threads pass through memory that each made at its start: what is new to a process is touched page by
page, and that took longer than reading, checking and copying together.

It does not know requests beyond their names; when blocks may be read or written is the connector's to say.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
import time
from collections import deque
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
_CLOSE_WAIT_S: Final = 5.0  # for each thread, at the end
_BUFFERED_MAX_BYTES: Final = 1 << 30  # read before a step overwrote them, and not written yet
_IDLE_WAIT_S: Final = 0.005  # how long a step without tokens waits for a copy, so that an idle core does not spin


class _Saving:
    """A save that is under way: which of its blocks were not read from the device yet, and which wait in memory to be
    written."""

    __slots__ = ("buffered", "mark", "order", "unread")

    def __init__(self, order: BlockSave, mark: Any, portions: Iterator[tuple[int, list[int]]]) -> None:
        self.order = order
        self.mark = mark
        self.unread = deque(portions)  # (place of the first in the file, blocks of the device)
        self.buffered: deque[tuple[int, Any]] = deque()  # (that place, their bytes), which a step's thread had to read


class BlockCopier:
    """Copies blocks between a rank's device and the snapshots' files. Its attributes are the copies under way, in both
    directions."""

    def __init__(self, sender: WorkerEventSender, rank: int, world: int, device: KvDevice | None = None) -> None:
        """`rank` is this worker's number, below `world`, the number of workers. `device` None: that on which the KV
        tensors are."""
        self.sender = sender
        self.rank = rank
        self.world = world
        self.block_bytes = 0  # of this rank
        self._device = device
        self._layers: BlockLayers | None = None
        self._changed = threading.Condition()
        self._read_lock = threading.Lock()  # its holder takes blocks from `unread` and reads them
        self._saving: dict[str, list[_Saving]] = {}  # by request
        self._failed: set[str] = set()  # requests of which blocks could not be saved
        self._sent: set[str] = set()
        self._received: set[str] = set()
        self._bad_blocks: set[int] = set()
        self._underway = 0
        self._saves: queue.SimpleQueue[_Saving | None] = queue.SimpleQueue()
        self._loads: queue.SimpleQueue[tuple[BlockLoad, Any] | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []

    def register(self, kv_caches: dict[str, Any], num_blocks: int) -> None:
        """Takes the layers' KV tensors and makes the memory for copies. Raises ValueError for a layout that has no
        dimension of blocks, RuntimeError if there is not enough memory."""
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
            thread.join(_CLOSE_WAIT_S)
        self.sender.close()

    # -- called between forward passes, never blocking but where it says so --------------------------------

    def save(self, order: BlockSave) -> None:
        saving = _Saving(order, self._mark(), self._portions(order.first_block, order.block_ids))
        with self._changed:
            self._saving.setdefault(order.request, []).append(saving)
            self._underway += 1
        self._saves.put(saving)

    def load(self, load: BlockLoad) -> None:
        with self._changed:
            self._underway += 1
        self._loads.put((load, self._mark()))

    def _mark(self) -> Any:
        return None if self._layers is None else self._layers.device.mark()

    def finish_reads(self, requests: set[str]) -> None:
        """Reads the blocks that saves of these requests have not yet read from the device, because the next step
        overwrites them. It waits for the device and for copies to memory, but not for files."""
        with self._changed:
            savings = [saving for of_request in self._saving.values() for saving in of_request]
        unsaved = [saving for saving in savings if saving.order.request in requests]
        if self._layers is None or not unsaved:
            return
        with self._read_lock:  # also where nothing is unread: the other thread may be reading
            room = _BUFFERED_MAX_BYTES - sum(data.nbytes for saving in savings for _, data in saving.buffered)
            for saving in unsaved:
                try:
                    self._layers.device.follow(saving.mark)
                    while saving.unread:
                        first, ids = saving.unread.popleft()
                        size = len(ids) * self.block_bytes
                        if size > room:
                            raise MemoryError("too many bytes wait for the disk")
                        room -= size
                        stage = self._layers.device.new_stage(size)
                        saving.buffered.append((first, self._gather(self._layers, ids, stage)))
                except Exception:
                    log.exception("KV of a preempted request could not be read: it will be recomputed")
                    saving.unread.clear()
                    with self._changed:
                        self._failed.add(saving.order.request)

    def finished(self, *, patient: bool) -> tuple[set[str] | None, set[str] | None]:
        """Returns the requests whose files have been closed and those whose loads have ended, since the last call; None
        instead of an empty set. With `patient` it waits a moment if there are none."""
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
            while (saving := self._saves.get()) is not None:
                order, failed = saving.order, False
                try:
                    layers.device.follow(saving.mark)
                    self._write(saving, layers, stage)
                except Exception:
                    log.exception("KV could not be saved: it will be recomputed")
                    failed = True
                with self._changed:
                    others = self._saving[order.request]
                    others.remove(saving)
                    failed = failed or order.request in self._failed
                    if failed:
                        self._failed.add(order.request)
                    if not others:
                        del self._saving[order.request]
                    if order.close:
                        self._failed.discard(order.request)
                end = order.first_block + len(order.block_ids)
                saved = BlocksSaved(order.name, self.rank, end, order.close, failed)
                (self.sender.send if order.close or failed else self.sender.mention)(saved)
                with self._changed:
                    self._underway -= 1
                    if order.held:
                        self._sent.add(order.request)
                    self._changed.notify_all()

    def _write(self, saving: _Saving, layers: BlockLayers, stage: Any) -> None:
        if not saving.order.block_ids:
            return
        path = Path(saving.order.path)
        file = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            while (portion := self._next_portion(saving, layers, stage)) is not None:
                first, data = portion
                if self.world == 1:
                    _write_all(file, memoryview(data).cast("B"), first * self.block_bytes)
                else:
                    for row in range(len(data)):
                        _write_all(file, memoryview(data[row]), self._offset(first + row))
                add_checksums(path, first, [memoryview(row) for row in data], self.rank, self.world)
        finally:
            os.close(file)

    def _next_portion(self, saving: _Saving, layers: BlockLayers, stage: Any) -> tuple[int, Any] | None:
        """Returns the next blocks of a save, as the number of the first block in the file and an array with a row of
        bytes for each; None if the save has no more."""
        with self._read_lock:
            if saving.buffered:
                return saving.buffered.popleft()
            if not saving.unread:
                return None
            first, ids = saving.unread.popleft()
            return first, self._gather(layers, ids, stage)

    def _gather(self, layers: BlockLayers, ids: list[int], stage: Any) -> Any:
        part = stage[: len(ids) * self.block_bytes].view(len(ids), self.block_bytes)
        layers.gather(ids, part)
        return part.numpy()

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
        """Reads this rank's part of `count` blocks from the file into the stage and checks it. Returns an array of
        shape (count, bytes of a block).

        Whole chunks are read, because each chunk has one checksum."""
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
