"""What systemd is sent: while the process starts, when it is up, and when it ends."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from tests.support.virtual_time import advance, virtual
from transport.ops.service_manager import EXTENSION_US, ServiceManager


class Systemd:
    """The other end of the socket."""

    def __init__(self, folder: Path) -> None:
        self.address = str(folder / "notify")
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(self.address)
        self._socket.setblocking(False)

    def received(self) -> list[list[str]]:
        datagrams = []
        while True:
            try:
                datagrams.append(self._socket.recv(4096).decode().split("\n"))
            except BlockingIOError:
                return datagrams


EXTENDED = f"EXTEND_TIMEOUT_USEC={EXTENSION_US}"


@virtual
async def test_a_start_is_prolonged_and_the_watchdog_fed(tmp_path: Path) -> None:
    systemd, reasons = Systemd(tmp_path), ["waiting for the journal"]
    environment = {"NOTIFY_SOCKET": systemd.address, "WATCHDOG_USEC": "3000000", "WATCHDOG_PID": str(os.getpid())}
    async with ServiceManager(environment, lambda: reasons[-1] if reasons else None) as manager:
        assert systemd.received() == [["STATUS=waiting for the journal", EXTENDED]]
        await advance(2.5)
        assert systemd.received() == [[EXTENDED]] * 2, "three times in the watchdog's time"
        reasons.clear()
        manager.ready()
        assert systemd.received() == [["READY=1", "STATUS=ready"]]
        await advance(1)
        assert systemd.received() == [["WATCHDOG=1"]]
        reasons.append("no replica is reachable")
        await advance(1)
        assert systemd.received() == [["STATUS=no replica is reachable", "WATCHDOG=1"]]
        manager.stopping()
        await advance(1)
        assert systemd.received() == [["STOPPING=1", "STATUS=draining", EXTENDED], [EXTENDED, "WATCHDOG=1"]]
    assert systemd.received() == [["STOPPING=1", "STATUS=ended"]]
    await advance(10)
    assert systemd.received() == []


@pytest.mark.parametrize("environment", [{}, {"WATCHDOG_USEC": "1000000"}, {"NOTIFY_SOCKET": "/nowhere/notify"}])
@virtual
async def test_without_a_service_manager_nothing_happens(environment: dict[str, str]) -> None:
    async with ServiceManager(environment, lambda: None) as manager:
        manager.ready()
        await advance(20)


@virtual
async def test_the_watchdog_of_another_process_is_not_fed(tmp_path: Path) -> None:
    systemd = Systemd(tmp_path)
    environment = {"NOTIFY_SOCKET": systemd.address, "WATCHDOG_USEC": "3000000", "WATCHDOG_PID": "1"}
    async with ServiceManager(environment, lambda: None) as manager:
        manager.ready()
        systemd.received()
        await advance(30)
        assert systemd.received() == []
