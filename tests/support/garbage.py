"""Whether what is over is freed by its last reference, or waits in a cycle for the garbage collector.

The collector looks at what lived long so seldom (`transport.ops.process_tuning`) that cycles would be a leak.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_cycles(*kinds: type) -> Iterator[None]:
    """Fails when one of `kinds` becomes part of unreachable cycles within, or hangs on one."""
    gc.collect()
    gc.disable()
    try:
        yield
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        found = [repr(thing) for thing in gc.garbage if isinstance(thing, kinds)]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    assert found == []
