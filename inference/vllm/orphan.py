"""vLLM's process ends with the server that started it, also where that was killed.

It would hold the device's memory for ever, and the server that is started next would find none: vLLM asks its processes
to end, and who is killed asks nobody. It does not know vLLM.
"""

from __future__ import annotations

import logging
import os
import select
import threading

log = logging.getLogger(__name__)


def end_with(front: int) -> None:
    """From now on this process ends when process `front` does, if that is its parent. Does nothing but on Linux."""
    if os.getppid() != front or not hasattr(os, "pidfd_open"):
        return
    try:
        watched = os.pidfd_open(front)
    except OSError as exc:
        log.warning("this process would outlive a server that is killed: %s", exc)
        return
    threading.Thread(target=_wait, args=(watched,), name="front-watch", daemon=True).start()


def _wait(watched: int) -> None:
    poll = select.poll()
    poll.register(watched, select.POLLIN)
    poll.poll()
    os._exit(1)  # nothing is worth saving: what nobody waits for is recomputed
