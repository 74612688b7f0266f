"""Tunes the interpreter and the C library once everything that lasts has been made.

A full collection examines all objects and the contents of each while the loop stands still, for long where a request of
a million values is being read. So none runs by itself: the process collects when it is idle after a busy period, every
ten minutes if it never is idle, and as rarely if it works but is never busy. The collections that run by themselves
find what is not older than some 300,000 allocations.

Giving memory back: what a storm of large messages took is returned to the system when the storm is over.

glibc raises its threshold for separately mapped blocks with every large block that is freed, up to 32 MiB; from then on
large buffers come from the heap, lie between small ones that live longer, and the process keeps what it once needed.
With a fixed threshold a large buffer is its own mapping and goes when it is freed; it costs a few page faults.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import sys
from collections.abc import Callable
from typing import Final, NoReturn

M_TRIM_THRESHOLD: Final = -1  # malloc.h
M_MMAP_THRESHOLD: Final = -3
LARGE_BYTES: Final = 64 * 1024
TRIM_BYTES: Final = 256 * 1024
GC_THRESHOLDS: Final = (50_000, 5, 1_000_000_000)  # a middle collection examines up to 250,000 objects, some 10 ms
LOOK_S: Final = 5.0
IDLE_SHARE: Final = 0.1  # of one core
WORK_CPU_S: Final = 2.0  # of work that is never busy and leaves garbage worth a collection
COLLECT_S: Final = 600.0
SWITCH_INTERVAL_S: Final = 0.0005


def tune_process() -> None:
    """Tunes the interpreter: threads hand over sooner, the objects that exist now are never examined by the garbage
    collector, and collections run less often. Called once everything lasting was made."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)  # else other threads keep the loop waiting, 5 ms at a time
    gc.freeze()  # objects that live as long as the process need not be examined again
    gc.set_threshold(*GC_THRESHOLDS)


def return_large_blocks() -> bool:
    """Sets malloc's thresholds for this process. Returns False if the C library has none. Idempotent."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(M_MMAP_THRESHOLD, LARGE_BYTES) and mallopt(M_TRIM_THRESHOLD, TRIM_BYTES))


def free_memory() -> None:
    """Frees unreachable cycles, then returns free memory to the system."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's
    if trim is not None:
        trim(0)


async def collect_when_idle(cpu_s: Callable[[], float], collect: Callable[[], None] = free_memory) -> NoReturn:
    """Calls `collect` once after each busy period, and every `COLLECT_S` seconds during one that goes on, or while the
    process works without being busy (`WORK_CPU_S` at least): users wait for the loop meanwhile. `cpu_s` returns the CPU
    seconds that this process has used."""
    before, busy_s, work_s, since_s = cpu_s(), 0.0, 0.0, 0.0
    while True:
        await asyncio.sleep(LOOK_S)
        now = cpu_s()
        used, before = now - before, now
        work_s, since_s = work_s + used, since_s + LOOK_S
        idle = used < IDLE_SHARE * LOOK_S
        is_due = work_s >= WORK_CPU_S and since_s >= COLLECT_S
        if (idle and (busy_s or is_due)) or busy_s >= COLLECT_S:
            collect()
            busy_s, work_s, since_s, before = 0.0, 0.0, 0.0, cpu_s()
        if not idle:
            busy_s += LOOK_S
