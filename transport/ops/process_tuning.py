"""Tunes the interpreter and the C library once everything that lasts has been made.

Giving memory back: what a storm of large messages took is returned to the system when the storm is over.

glibc raises its threshold for separately mapped blocks with every large block that is freed, up to 32 MiB; from then on
large buffers come from the heap, lie between small ones that live longer, and the process keeps what it once needed.
With a fixed threshold a large buffer is its own mapping and goes when it is freed; it costs a few page faults.
"""

from __future__ import annotations

import ctypes
import gc
import sys
from typing import Final

M_TRIM_THRESHOLD: Final = -1  # malloc.h
M_MMAP_THRESHOLD: Final = -3
LARGE_BYTES: Final = 64 * 1024
TRIM_BYTES: Final = 256 * 1024
GC_THRESHOLDS: Final = (50_000, 5, 200)  # a middle collection examines up to 250,000 objects, some 10 ms
SWITCH_INTERVAL_S: Final = 0.0005


def tune_process() -> None:
    """Reduces what the interpreter does besides our work. Called once all lasting objects were made."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)  # else other threads keep the loop waiting, 5 ms at a time
    gc.freeze()  # objects that live as long as the process need not be examined again
    gc.set_threshold(*GC_THRESHOLDS)


def return_large_blocks() -> bool:
    """Sets malloc's thresholds for this process. Returns False if the C library has none. Idempotent."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(M_MMAP_THRESHOLD, LARGE_BYTES) and mallopt(M_TRIM_THRESHOLD, TRIM_BYTES))
