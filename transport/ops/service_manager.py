"""Reports to systemd how the process is: `Type=notify` with a watchdog, by sd_notify's datagrams.

While the process starts, however long it waits for its database, and while it drains, however long answers go on, each
beat prolongs the time that systemd gives it; once it is up, each beat feeds the watchdog. Beats are timers of the event
loop, so a loop that stands still is noticed in all of them. Without `NOTIFY_SOCKET` nothing is sent. A datagram that
cannot be sent is left out: systemd decides.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Final

BEAT_S: Final = 5.0
BEATS_IN_TIME: Final = 3  # in the time of the watchdog
EXTENSION_US: Final = 30_000_000
_EXTENSION: Final = f"EXTEND_TIMEOUT_USEC={EXTENSION_US}"


class ServiceManager:
    """Reports to systemd while its `async with` block runs; leaving the block reports that the process stops."""

    def __init__(self, environment: Mapping[str, str], readiness: Callable[[], str | None]) -> None:
        """`readiness` returns why no traffic is wanted, or None; `systemctl status` shows it."""
        address = environment.get("NOTIFY_SOCKET", "")
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        self._readiness = readiness
        self._socket: socket.socket | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._status: str | None = ""
        self._up = self._ends = False
        meant_for_us = environment.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        watchdog_us = int(environment.get("WATCHDOG_USEC", "0")) if meant_for_us else 0
        self._watched = watchdog_us > 0
        self._beat_s = min(BEAT_S, watchdog_us / 1e6 / BEATS_IN_TIME) if self._watched else BEAT_S

    async def __aenter__(self) -> ServiceManager:
        if self._address:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
            self._socket.setblocking(False)
            self._beat()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._socket is not None:
            self._send("STOPPING=1", "STATUS=ended")
            self._socket.close()
            self._socket = None

    def ready(self) -> None:
        """Reports that the process is up."""
        self._up = True
        self._send("READY=1", self._status_line())

    def stopping(self) -> None:
        """Reports that the process begins to stop. Until it has ended, each beat extends the time that systemd allows,
        and feeds the watchdog."""
        self._ends = True
        self._send("STOPPING=1", "STATUS=draining", _EXTENSION)

    def _beat(self) -> None:
        lines = [self._status_line()] if self._readiness() != self._status else []
        if not self._up or self._ends:
            lines.append(_EXTENSION)
        if self._up and self._watched:
            lines.append("WATCHDOG=1")
        self._send(*lines)
        self._timer = asyncio.get_running_loop().call_later(self._beat_s, self._beat)

    def _status_line(self) -> str:
        self._status = self._readiness()
        return f"STATUS={self._status or 'ready'}"

    def _send(self, *lines: str) -> None:
        if self._socket is not None and lines:
            with contextlib.suppress(OSError):
                self._socket.sendto("\n".join(lines).encode(), self._address)
