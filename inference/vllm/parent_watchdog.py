"""Ends vLLM's process with the server that started it, also where that was killed.

It would hold the device's memory for ever, and the server that is started next would find none: vLLM ends its processes
by request, and a server that is killed requests nothing. It does not know vLLM.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import select
import threading

log = logging.getLogger(__name__)


def exit_with_parent(front: int) -> None:
    """Ends this process when its parent, process `front`, ends; at once if that has ended already. Does nothing except
    on Linux."""
    started_by = multiprocessing.parent_process()
    if front not in (os.getppid(), started_by.pid if started_by is not None else None):
        return
    if not hasattr(os, "pidfd_open"):
        return
    try:
        watched = os.pidfd_open(front)
    except ProcessLookupError:
        os._exit(1)
    except OSError as exc:
        log.warning("this process would outlive a server that is killed: %s", exc)
        return
    threading.Thread(target=_wait, args=(watched,), name="front-watch", daemon=True).start()


def _wait(watched: int) -> None:
    poll = select.poll()
    poll.register(watched, select.POLLIN)
    poll.poll()
    os._exit(1)  # nothing is worth saving: what nobody waits for is recomputed
