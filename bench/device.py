"""What a GPU does with KV, on any machine that has torch and nothing else of ours:

    python bench/device.py [--part copies|handoff|restore] [--json FILE]        # or: python -m bench.device

`copies` moves pinned and pageable memory both ways, beside a stream that computes and not, in GB/s against what the bus
can carry (from nvidia-smi). `handoff` takes a session's KV out of one cache and puts it into another through a file in
memory, as replicas do, with the very code that does it (`inference/vllm/kv_device.py`), and compares every byte.
`restore` has a small transformer of random weights answer a follow-up of 40 tokens on 4,096: computed anew, against its
KV restored from pinned host memory; both must say the same. Bar: the first token 10 times sooner.

On a machine without a GPU `--device cpu` runs all of it, to try the bench itself: its figures say nothing then.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch

ROOT: Final = Path(__file__).resolve().parents[1]
PARTS: Final = ("copies", "handoff", "restore")
LANE_GB_S: Final = {1: 0.25, 2: 0.5, 3: 0.985, 4: 1.969, 5: 3.938, 6: 7.563}  # of PCI Express, by generation


def load_kv_device() -> Any:
    """`inference.vllm.kv_device`, without the package around it, which needs what only our environments have."""
    path = ROOT / "inference" / "vllm" / "kv_device.py"
    spec = importlib.util.spec_from_file_location("kv_device", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def bus_gb_s() -> float:
    """What the GPU's bus carries one way; 0 where nothing says."""
    query = "--query-gpu=pcie.link.gen.max,pcie.link.width.max"
    try:
        done = subprocess.run(
            ("nvidia-smi", query, "--format=csv,noheader"), capture_output=True, text=True, timeout=20
        )
        generation, width = (int(cell) for cell in done.stdout.splitlines()[0].split(","))
    except (OSError, ValueError, IndexError, subprocess.TimeoutExpired):
        return 0.0
    return LANE_GB_S.get(generation, 0.0) * width


class BenchMachine:
    """The device, and how to time it."""

    def __init__(self, device: str) -> None:
        self.device = torch.device(device)
        self.kv_device = load_kv_device()
        self.gpu = self.device.type == "cuda"

    def synchronize(self) -> None:
        if self.gpu:
            torch.cuda.synchronize(self.device)

    def seconds(self, work: Callable[[], Any], rounds: int = 5) -> float:
        """The best of some rounds, after one that is not counted."""
        best = float("inf")
        for counted in range(-1, rounds):
            self.synchronize()
            started = time.perf_counter()
            work()
            self.synchronize()
            if counted >= 0:
                best = min(best, time.perf_counter() - started)
        return best

    def host(self, size: int, *, pinned: bool) -> Any:
        return torch.empty(size, dtype=torch.uint8, pin_memory=pinned and self.gpu).fill_(7)


# -- copies ------------------------------------------------------------------------------------------------------------


def copies(machine: BenchMachine, megabytes: int) -> dict[str, float]:
    size = megabytes << 20
    there = torch.zeros(size, dtype=torch.uint8, device=machine.device)
    back = torch.zeros_like(there)
    figures: dict[str, float] = {"bus GB/s, one way": bus_gb_s()}

    def rate(work: Callable[[], Any], moved: int = size) -> float:
        return moved / machine.seconds(work) / 1e9

    for kind, pinned in (("pinned", True), ("pageable", False)):
        host = machine.host(size, pinned=pinned)
        figures[f"host to device, {kind} GB/s"] = rate(partial(there.copy_, host, non_blocking=pinned))
        figures[f"device to host, {kind} GB/s"] = rate(partial(host.copy_, there, non_blocking=pinned))
    figures["within the device GB/s"] = rate(lambda: back.copy_(there), 2 * size)
    up, down = machine.host(size, pinned=True), machine.host(size, pinned=True)
    if machine.gpu:
        sides = torch.cuda.Stream(machine.device), torch.cuda.Stream(machine.device)

        def both() -> None:
            with torch.cuda.stream(sides[0]):
                there.copy_(up, non_blocking=True)
            with torch.cuda.stream(sides[1]):
                down.copy_(back, non_blocking=True)

        figures["both ways at once, pinned GB/s"] = rate(both, 2 * size)
        figures |= beside_compute(machine, there, up)
    if figures["bus GB/s, one way"]:
        for way in ("host to device", "device to host"):
            figures[f"{way}, part of the bus"] = figures[f"{way}, pinned GB/s"] / figures["bus GB/s, one way"]
    return figures


def beside_compute(machine: BenchMachine, there: Any, host: Any) -> dict[str, float]:
    """What copies on a side stream cost a stream that computes, and how fast they are meanwhile."""
    a = torch.randn(4096, 4096, dtype=torch.bfloat16, device=machine.device)
    side = torch.cuda.Stream(machine.device)

    def compute() -> None:
        for _ in range(40):
            torch.mm(a, a)

    alone = machine.seconds(compute)
    moved = 0

    def beside() -> None:
        nonlocal moved
        moved = 0
        with torch.cuda.stream(side):
            for _ in range(4):
                there.copy_(host, non_blocking=True)
                moved += host.numel()
        compute()
        torch.cuda.current_stream(machine.device).synchronize()

    together = machine.seconds(beside)
    return {"compute beside copies, against alone": together / alone, "moved meanwhile GB": moved / 1e9}


# -- hand-off ----------------------------------------------------------------------------------------------------------


def folder_in_memory(size: int, folder: Path = Path("/dev/shm")) -> Path | None:
    """None where there is no such folder, or one too small, as in many containers: then a disk's cache is in it too."""
    if folder.is_dir() and shutil.disk_usage(folder).free > size + (64 << 20):
        return folder
    print(f"{folder} has no room for {size >> 20} MiB: the hand-off goes through a folder on disk", file=sys.stderr)
    return None


def handoff(machine: BenchMachine, tokens: int, layers: int) -> dict[str, float]:
    """The KV of a model cut to some layers: 8 KV heads of 128, blocks of 32 tokens, bf16."""
    block, heads, width = 32, 8, 256
    blocks = tokens // block
    generator = torch.Generator().manual_seed(1)

    def cache(filled: bool) -> dict[str, Any]:
        shape = (2 * blocks, heads, block, width)
        made = (torch.randn(shape, generator=generator) if filled else torch.zeros(shape)).to(torch.bfloat16)
        return {f"layer{layer}": made.roll(layer, 0).to(machine.device) for layer in range(layers)}

    first, second = cache(True), cache(False)
    ids = torch.randperm(2 * blocks, generator=generator)[:blocks].tolist()
    into = torch.randperm(2 * blocks, generator=generator)[:blocks].tolist()
    source = machine.kv_device.BlockLayers(first, 2 * blocks)
    target = machine.kv_device.BlockLayers(second, 2 * blocks)
    size = blocks * source.block_bytes
    rows = max(1, (16 << 20) // source.block_bytes)
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory(dir=folder_in_memory(size)) as folder:
        path = Path(folder) / "kv"
        times: dict[str, float] = {}

        def save() -> None:
            stage = source.device.new_stage(rows * source.block_bytes)
            with source.device.thread(), path.open("wb") as sink:
                source.device.follow(mark)
                started = time.perf_counter()
                for begin in range(0, blocks, rows):
                    some = ids[begin : begin + rows]
                    part = stage[: len(some) * source.block_bytes].view(len(some), source.block_bytes)
                    source.gather(some, part)
                    sink.write(memoryview(part.numpy()).cast("B"))
                times["out"] = time.perf_counter() - started

        def load() -> None:
            stage = target.device.new_stage(rows * target.block_bytes)
            with target.device.thread(), path.open("rb") as given:
                target.device.follow(mark)
                started = time.perf_counter()
                for begin in range(0, blocks, rows):
                    some = into[begin : begin + rows]
                    part = stage[: len(some) * target.block_bytes].view(len(some), target.block_bytes)
                    given.readinto(memoryview(part.numpy()).cast("B"))
                    target.scatter(part, some)
                times["in"] = time.perf_counter() - started

        for name, work in (("out", save), ("in", load)):
            mark = source.device.mark()
            best = float("inf")
            for _ in range(3):  # each in a thread of its own, as in the server
                thread = threading.Thread(target=work)
                thread.start()
                thread.join()
                best = min(best, times[name])
            figures[f"{name} s"] = best
            figures[f"{name} GB/s"] = size / best / 1e9
    same = all(torch.equal(first[name][ids].cpu(), second[name][into].cpu()) for name in first)
    return {"tokens": tokens, "MB": size / 1e6, **figures, "bytes that differ (bar 0)": 0.0 if same else 1.0}


# -- a small engine ----------------------------------------------------------------------------------------------------


class SmallEngine:
    """A decoder of random weights: grouped queries, a cache of keys and values in blocks."""

    def __init__(self, machine: BenchMachine, layers: int, width: int, tokens_max: int) -> None:
        self.machine = machine
        self.heads, self.kv_heads, self.head = width // 128, max(1, width // 512), 128
        self.block = 32
        # In fp32, where a prompt computed in one piece and in two says the same.
        options: dict[str, Any] = {"device": machine.device, "dtype": torch.float32}
        generator = torch.Generator(device=machine.device).manual_seed(2)

        def weights(rows: int, columns: int) -> Any:
            return torch.randn(rows, columns, generator=generator, **options) / rows**0.5

        kv = self.kv_heads * self.head
        self.embedding = weights(8192, width) * 8192**0.5
        self.layers = [
            {
                "qkv": weights(width, width + 2 * kv),
                "out": weights(width, width),
                "up": weights(width, 4 * width),
                "down": weights(4 * width, width),
            }
            for _ in range(layers)
        ]
        shape = (tokens_max // self.block, self.kv_heads, self.block, 2 * self.head)
        self.caches = {f"layer{layer}": torch.zeros(shape, **options) for layer in range(layers)}
        self.kv = machine.kv_device.BlockLayers(self.caches, tokens_max // self.block)

    def run(self, ids: Any, past: int) -> Any:
        """Computes tokens after `past` that are in the cache; the logits of the last one."""
        with torch.inference_mode():
            return self._run(ids, past)

    def _run(self, ids: Any, past: int) -> Any:
        x = self.embedding[ids]
        count, end = len(ids), past + len(ids)
        mask = torch.ones(count, end, dtype=torch.bool, device=x.device).tril(past)
        for layer, each in enumerate(self.layers):
            queries, keys, values = (
                torch.nn.functional.rms_norm(x, x.shape[-1:])
                .matmul(each["qkv"])
                .split((self.heads * self.head, self.kv_heads * self.head, self.kv_heads * self.head), -1)
            )
            cache = self.caches[f"layer{layer}"].movedim(1, 0).flatten(1, 2)  # a copy: written through the blocks below
            new = torch.cat([part.view(count, self.kv_heads, self.head) for part in (keys, values)], -1)
            positions = torch.arange(past, end, device=x.device)
            self.caches[f"layer{layer}"][positions // self.block, :, positions % self.block] = new
            cache[:, past:end] = new.movedim(1, 0)
            k, v = cache[:, :end].split(self.head, -1)
            repeated = self.heads // self.kv_heads
            attended = torch.nn.functional.scaled_dot_product_attention(
                queries.view(count, self.heads, self.head).movedim(1, 0)[None],
                k.repeat_interleave(repeated, 0)[None],
                v.repeat_interleave(repeated, 0)[None],
                attn_mask=mask,
            )
            x = x + attended[0].movedim(0, 1).reshape(count, -1).matmul(each["out"])
            inner = torch.nn.functional.rms_norm(x, x.shape[-1:]).matmul(each["up"])
            x = x + torch.nn.functional.silu(inner).matmul(each["down"])
        return torch.nn.functional.rms_norm(x[-1], x.shape[-1:]).matmul(self.embedding.T)


def restore(machine: BenchMachine, tokens: int, layers: int, width: int) -> dict[str, float]:
    follow = 40
    engine = SmallEngine(machine, layers, width, tokens + 64)
    ids = torch.randint(0, 8192, (tokens + follow,), generator=torch.Generator().manual_seed(3)).to(machine.device)
    blocks = list(range(tokens // engine.block))
    answers: dict[str, int] = {}

    def cold() -> None:
        for begin in range(0, tokens, 1024):
            engine.run(ids[begin : min(begin + 1024, tokens)], begin)
        answers["cold"] = int(engine.run(ids[tokens:], tokens).argmax())

    cold_s = machine.seconds(cold, rounds=3)
    stage = engine.kv.device.new_stage(len(blocks) * engine.kv.block_bytes)
    part = stage.view(len(blocks), engine.kv.block_bytes)
    engine.kv.gather(blocks, part)
    for cache in engine.caches.values():
        cache.zero_()

    def restored() -> None:
        engine.kv.scatter(part, blocks)
        answers["restored"] = int(engine.run(ids[tokens:], tokens).argmax())

    restored_s = machine.seconds(restored, rounds=3)
    resident_s = machine.seconds(lambda: engine.run(ids[tokens:], tokens), rounds=3)
    return {
        "tokens": tokens,
        "KV MB": len(blocks) * engine.kv.block_bytes / 1e6,
        "first token cold s": cold_s,
        "first token restored s": restored_s,
        "first token resident s": resident_s,
        "cold / restored (bar 10)": cold_s / restored_s,
        "answers that differ (bar 0)": float(answers["cold"] != answers["restored"]),
    }


# -- the command -------------------------------------------------------------------------------------------------------


def where(machine: BenchMachine) -> dict[str, Any]:
    command = ("git", "rev-parse", "--short", "HEAD")
    try:
        commit = subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout.strip()
    except OSError:  # no git there
        commit = ""
    return {
        "device": torch.cuda.get_device_name(machine.device) if machine.gpu else platform.processor() or "CPU",
        "torch": torch.__version__,
        "cuda": torch.version.cuda or "",
        "cores": os.cpu_count(),
        "commit": commit,
    }


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=PARTS, action="append", help="one of them; all unless given")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda" if torch.cuda.is_available() else "")
    parser.add_argument("--small", action="store_true", help="sizes that a CPU gets through in seconds")
    parser.add_argument("--json", type=Path, help="file for the figures, a line of JSON for each part")
    given = parser.parse_args(arguments)
    if not given.device:
        print("No GPU that torch can use: nothing to measure. `--device cpu --small` tries the bench.", file=sys.stderr)
        return 2
    machine, faults = BenchMachine(given.device), 0
    small = given.small
    parts: dict[str, Callable[[], dict[str, float]]] = {
        "copies": lambda: copies(machine, 8 if small else 512),
        "handoff": lambda: handoff(machine, 512 if small else 32_768, 2 if small else 16),
        "restore": lambda: restore(machine, 256 if small else 4096, 2 if small else 16, 512 if small else 2048),
    }
    for name in given.part or PARTS:
        try:
            figures = parts[name]()
        except (RuntimeError, OSError, ValueError, KeyError):  # the other parts are worth having
            traceback.print_exc()
            faults += 1
            continue
        faults += any(value and "(bar 0)" in key for key, value in figures.items())
        print(f"\n== device {name}")
        for key, value in {**figures, **where(machine)}.items():
            print(f"  {key:<40} {value:.4g}" if isinstance(value, float) else f"  {key:<40} {value}")
        line = json.dumps({"bench": f"device.{name}", **figures, **where(machine)})
        print(line, flush=True)
        if given.json is not None:
            with given.json.open("a") as sink:
                sink.write(f"{line}\n")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
