"""The connector's tensor part alone: what was saved of blocks comes back into others bit for bit, on any device."""

from __future__ import annotations

import contextlib
import errno
import mmap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from inference.kv.block_checksums import count_intact
from inference.kv.envelope import CHUNK_BYTES, tag_payload
from inference.vllm import block_copier as copier_module
from inference.vllm.block_copier import BlockCopier
from inference.vllm.connector_metadata import BlockLoad, BlockSave, SnapshotSource
from inference.vllm.worker_events import WorkerEventSender
from tests.support.engines.made_up_device import MadeUpDevice

pytestmark = pytest.mark.vllm

NO_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
DEVICES = ["cpu", "made up", pytest.param("cuda", marks=NO_GPU)]
NUM_BLOCKS = 96
# name -> (shape, dtype): blocks first or second; one of three bytes a block, so that what follows it lies askew
KINDS: dict[str, dict[str, tuple[tuple[int, ...], torch.dtype]]] = {
    "bf16": {f"layer{n}": ((NUM_BLOCKS, 3, 32, 128), torch.bfloat16) for n in range(6)},
    "keys and values apart": {f"layer{n}": ((2, NUM_BLOCKS, 32, 3, 64), torch.float32) for n in range(6)},
    "mixed": {
        "scales": ((NUM_BLOCKS, 3), torch.uint8),
        "layer0": ((NUM_BLOCKS, 3, 32, 128), torch.float32),
        "layer1": ((NUM_BLOCKS, 3, 32, 128), torch.bfloat16),
    },
}


def caches(kind: str, device: str, seed: int) -> dict[str, Any]:
    chance = torch.Generator().manual_seed(seed)
    made = {}
    for name, (shape, dtype) in KINDS[kind].items():
        size = torch.empty(shape, dtype=dtype).view(torch.uint8).numel()
        data = torch.randint(0, 256, (size,), dtype=torch.uint8, generator=chance)
        made[name] = data.view(dtype).view(shape).to("cuda" if device == "cuda" else "cpu")
    return made


def block(held: dict[str, Any], block_id: int) -> bytes:
    """The bytes of a block as a file has them."""
    parts = []
    for tensor in held.values():
        blocks = tensor if tensor.shape[0] == NUM_BLOCKS else tensor.movedim(1, 0)
        parts.append(blocks[block_id].contiguous().cpu().view(torch.uint8).numpy().tobytes())
    return b"".join(parts)


Start = Callable[..., BlockCopier]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    made: list[BlockCopier] = []

    def one(held: dict[str, Any], rank: int = 0, world: int = 1, device: MadeUpDevice | None = None) -> BlockCopier:
        copier = BlockCopier(WorkerEventSender(tmp_path), rank, world, device)
        copier.register(held, NUM_BLOCKS)
        made.append(copier)
        return copier

    yield one
    for copier in made:
        copier.close()


def until_over(copier: BlockCopier) -> set[str]:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        for over in copier.finished(patient=True):
            if over:
                return over
    raise AssertionError("it never ended")


def saved(copier: BlockCopier, path: Path, ids: list[int]) -> None:
    copier.save(BlockSave("r", "r", str(path), 0, ids, close=True, held=True))
    assert until_over(copier) == {"r"}


def source_of(path: Path, num_blocks: int) -> SnapshotSource:
    data = path.read_bytes()
    return SnapshotSource(str(path), num_blocks, bytes(16), len(data), tag_payload(data, bytes(16)))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("world", [1, 2])
def test_blocks_come_back_bit_for_bit(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: str, kind: str, world: int
) -> None:
    monkeypatch.setattr(copier_module, "_STAGE_BYTES", 2_500_000)  # several portions, none of them of whole chunks
    ids, path = [7, 3, *range(20, 60)], tmp_path / "payload"
    before = [caches(kind, device, rank) for rank in range(world)]
    made_up = MadeUpDevice() if device == "made up" else None
    for rank, held in enumerate(before):
        saved(start(held, rank, world, made_up), path, ids)
    wanted = b"".join(block(held, block_id) for block_id in ids for held in before)
    assert path.read_bytes() == wanted and len(wanted) > 2 * CHUNK_BYTES
    assert count_intact(path, 0, len(ids) + 3, len(wanted) // len(ids), world) == len(ids)
    first, into = 5, [90, 2, *range(30, 65)]
    after = [caches(kind, device, 10 + rank) for rank in range(world)]
    for rank, held in enumerate(after):
        untouched = block(held, 0)
        copier = start(held, rank, world, made_up)
        copier.load(BlockLoad("r", "r", source_of(path, len(ids)), first, into, 0))
        assert until_over(copier) == {"r"} and copier.bad_blocks() == set()
        for number, block_id in enumerate(into):
            assert block(held, block_id) == block(before[rank], ids[first + number])
        assert block(held, 0) == untouched
    assert made_up is None or (made_up.copies >= 4 and made_up.faults == [] and made_up.outstanding == 0)


def test_a_save_begins_after_what_the_forward_pass_has_queued(start: Start, tmp_path: Path) -> None:
    held, device, filled = caches("bf16", "cpu", 1), MadeUpDevice(), caches("bf16", "cpu", 2)
    copier = start(held, device=device)

    def step() -> None:
        for name, tensor in held.items():
            tensor[3].copy_(filled[name][3])

    device.queue(step)  # the step that fills the block, which the device has not come to yet
    saved(copier, tmp_path / "payload", [3])
    assert (tmp_path / "payload").read_bytes() == block(filled, 3) and device.faults == []


def test_a_load_begins_after_who_had_its_blocks_before(start: Start, tmp_path: Path) -> None:
    held, device = caches("bf16", "cpu", 1), MadeUpDevice()
    copier = start(held, device=device)
    saved(copier, tmp_path / "payload", [3])

    def last_step_of_another() -> None:
        for tensor in held.values():
            tensor[9].zero_()

    device.queue(last_step_of_another)
    copier.load(BlockLoad("r", "r", source_of(tmp_path / "payload", 1), 0, [9], 0))
    assert until_over(copier) == {"r"}
    device.drain()
    assert block(held, 9) == block(held, 3) and device.faults == []


class SlowDisk:
    """Writes nothing before `done`; one that is `full` not even then."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, full: bool = False) -> None:
        self.full = full
        self.begun, self.done, self._write = threading.Event(), threading.Event(), copier_module._write_all
        monkeypatch.setattr(copier_module, "_write_all", self.write)

    def write(self, *arguments: Any) -> None:
        self.begun.set()
        assert self.done.wait(60)
        if self.full:
            raise OSError(errno.ENOSPC, "No space left on device")
        self._write(*arguments)


def overwrite_while_the_disk_writes(copier: BlockCopier, disk: SlowDisk, held: dict[str, Any], path: Path) -> None:
    """Saves blocks 3 to 5; a forward pass overwrites them when the file has none of them yet."""
    copier.save(BlockSave("r", "r", str(path), 0, [3]))
    assert disk.begun.wait(60)
    copier.save(BlockSave("r", "r", str(path), 1, [4, 5]))
    copier.finish_reads({"r", "another"})
    for tensor in held.values():
        tensor.zero_()
    disk.done.set()
    copier.save(BlockSave("r", "r", str(path), 3, [], close=True, held=True))
    assert until_over(copier) == {"r"}


@pytest.mark.parametrize("kind", [None, MadeUpDevice], ids=["cpu", "made up"])
def test_what_a_step_overwrites_is_saved_as_it_was_however_long_the_file_takes(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[MadeUpDevice] | None
) -> None:
    held, path = caches("bf16", "cpu", 1), tmp_path / "payload"
    made_up = None if kind is None else kind()
    before = b"".join(block(held, number) for number in (3, 4, 5))
    with made_up.thread() if made_up is not None else contextlib.nullcontext():  # the forward pass's own
        overwrite_while_the_disk_writes(start(held, device=made_up), SlowDisk(monkeypatch), held, path)
    assert path.read_bytes() == before and count_intact(path, 0, 3, len(before) // 3, 1) == 3
    assert made_up is None or made_up.faults == []


def test_what_could_not_be_read_before_it_was_overwritten_never_has_a_checksum(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken(MadeUpDevice):
        def wait(self) -> None:
            if threading.current_thread() is threading.main_thread():
                raise RuntimeError("no memory")
            super().wait()

    held, path, device = caches("bf16", "cpu", 1), tmp_path / "payload", Broken()
    size = len(block(held, 3))
    with device.thread():
        overwrite_while_the_disk_writes(start(held, device=device), SlowDisk(monkeypatch), held, path)
    assert count_intact(path, 0, 3, size, 1) == 1


def test_what_a_step_overwrites_is_bounded_while_the_disk_writes_nothing(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, path = caches("bf16", "cpu", 1), tmp_path / "payload"
    before = block(held, 3)
    monkeypatch.setattr(copier_module, "_BUFFERED_MAX_BYTES", len(before))  # of two blocks that are not read yet
    overwrite_while_the_disk_writes(start(held), SlowDisk(monkeypatch), held, path)
    assert path.read_bytes() == before and count_intact(path, 0, 3, len(before), 1) == 1


def test_what_a_full_disk_did_not_take_holds_no_memory(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, path = caches("bf16", "cpu", 1), tmp_path / "payload"
    size = len(block(held, 3))
    monkeypatch.setattr(copier_module, "_STAGE_BYTES", size)  # a block at a time: one is left when the other fails
    monkeypatch.setattr(copier_module, "_BUFFERED_MAX_BYTES", 2 * size)
    copier = start(held)
    with monkeypatch.context() as first:
        overwrite_while_the_disk_writes(copier, SlowDisk(first, full=True), held, tmp_path / "full")
    overwrite_while_the_disk_writes(copier, SlowDisk(monkeypatch), held, path)
    assert count_intact(path, 0, 3, size, 1) == 3


def test_what_is_not_waited_for_is_seen(start: Start, tmp_path: Path) -> None:
    class Hasty(MadeUpDevice):
        def wait(self) -> None:
            return

    held = caches("bf16", "cpu", 1)
    saved(start(held, device=Hasty()), tmp_path / "payload", [3])
    assert (tmp_path / "payload").read_bytes() != block(held, 3)


def test_a_kernel_without_huge_pages_moves_them_all_the_same(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Plain(mmap.mmap):
        def madvise(self, *_: Any) -> None:
            raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(mmap, "mmap", Plain)
    held = caches("bf16", "cpu", 1)
    saved(start(held), tmp_path / "payload", [3, 4])
    assert (tmp_path / "payload").read_bytes() == block(held, 3) + block(held, 4)


def test_a_payload_that_changed_marks_every_block_of_its_load(start: Start, tmp_path: Path) -> None:
    path = tmp_path / "payload"
    copier = start(caches("bf16", "cpu", 1))
    saved(copier, path, list(range(40)))
    source = source_of(path, 40)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    copier.load(BlockLoad("r", "r", source, 0, list(range(50, 90)), 0))
    assert until_over(copier) == {"r"} and copier.bad_blocks() == set(range(50, 90))
    path.write_bytes(data[:-1])
    copier.load(BlockLoad("r", "r", source, 0, [50], 0))
    assert until_over(copier) == {"r"} and copier.bad_blocks() == {50}
