"""Ends the servers that all tests of a process share, once nobody needs them.

That is when the process ends; a test run ends them itself before, because a worker that takes long to end is killed,
and its servers would go on.
"""

from __future__ import annotations

import atexit
from collections.abc import Callable
from contextlib import ExitStack
from typing import Final

_ends: Final = ExitStack()
atexit.register(_ends.close)


def at_end(end: Callable[[], object]) -> None:
    """Has `end` called when the process ends, or by `end_all`. The last one comes first."""
    _ends.callback(end)


def end_all() -> None:
    """Calls all that was passed to `at_end`, each once."""
    _ends.close()
