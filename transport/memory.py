"""Giving memory back: what a storm of large messages took is returned to the system when the storm is over.

glibc raises its threshold for separately mapped blocks with every large block that is freed, up to 32 MiB; from then on
large buffers come from the heap, lie between small ones that live longer, and the process keeps what it once needed.
With a fixed threshold a large buffer is its own mapping and goes when it is freed; it costs a few page faults.
"""

from __future__ import annotations

import ctypes
from typing import Final

M_TRIM_THRESHOLD: Final = -1  # malloc.h
M_MMAP_THRESHOLD: Final = -3
LARGE_BYTES: Final = 64 * 1024
TRIM_BYTES: Final = 256 * 1024


def return_large_blocks() -> bool:
    """Sets the thresholds for this process; False where the C library has no such settings. Idempotent."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(M_MMAP_THRESHOLD, LARGE_BYTES) and mallopt(M_TRIM_THRESHOLD, TRIM_BYTES))
