"""Network namespaces of a test cluster: one for each pod and server, and one in the middle that routes between them.

Nothing leaves them: no namespace has a way to this machine's own network. A test's process reaches a pod by a socket
that was made in the middle. Addresses are those that RFC 2544 sets aside for benchmarks. Needs root and iproute2.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final

PREFIX: Final = "198.18.0"
SUBNET: Final = f"{PREFIX}.0/24"
MIDDLE: Final = f"{PREFIX}.1"
_CLONE_NEWNET: Final = 0x40000000
_LIBC: Final = ctypes.CDLL(None, use_errno=True)


@contextlib.contextmanager
def inside(namespace: Path) -> Iterator[None]:
    """This thread is in a network namespace: sockets that it makes and processes that it starts stay there. Hold no
    `await` inside."""
    with open("/proc/thread-self/ns/net") as home, namespace.open() as other:
        _enter(other.fileno())
        try:
            yield
        finally:
            _enter(home.fileno())


def _enter(namespace: int) -> None:
    if _LIBC.setns(namespace, _CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "setns")


class Network:
    """The namespace in the middle, and a leaf with an address of its own for each name."""

    def __init__(self) -> None:
        self._middle = f"sk{os.getpid()}"
        self._numbers: dict[str, int] = {}
        self._next = 10
        self._lock = threading.Lock()

    def start(self) -> None:
        _ip("netns", "add", self._middle)
        _ip("-n", self._middle, "link", "set", "lo", "up")
        with inside(self.middle):
            Path("/proc/sys/net/ipv4/ip_forward").write_text("1")

    @property
    def middle(self) -> Path:
        return _path(self._middle)

    def add(self, name: str) -> tuple[Path, str]:
        """A new leaf: its namespace and its address."""
        with self._lock:
            number = self._numbers[name] = self._next
            self._next += 1
        leaf, outer, address = self._leaf(name), f"v{number}", f"{PREFIX}.{number}"
        _ip("netns", "add", leaf)
        _ip("-n", self._middle, "link", "add", outer, "type", "veth", "peer", "name", "eth0", "netns", leaf)
        _ip("-n", self._middle, "link", "set", outer, "up")
        _ip("-n", self._middle, "addr", "add", f"{MIDDLE}/32", "dev", outer)
        _ip("-n", self._middle, "route", "add", f"{address}/32", "dev", outer, "src", MIDDLE)
        _ip("-n", leaf, "link", "set", "lo", "up")
        _ip("-n", leaf, "addr", "add", f"{address}/32", "dev", "eth0")
        _ip("-n", leaf, "link", "set", "eth0", "up")
        _ip("-n", leaf, "route", "add", MIDDLE, "dev", "eth0")
        _ip("-n", leaf, "route", "add", "default", "via", MIDDLE)
        return _path(leaf), address

    def remove(self, name: str) -> None:
        """Idempotent."""
        if name in self._numbers:
            _ip("netns", "del", self._leaf(name))
            del self._numbers[name]

    def cut(self, name: str) -> None:
        """Nothing comes in or goes out any more; no connection hears of it."""
        number = self._numbers[name]
        _ip("-n", self._middle, "link", "set", f"v{number}", "down")
        _ip("-n", self._middle, "route", "replace", "blackhole", f"{PREFIX}.{number}/32")

    def heal(self, name: str) -> None:
        number = self._numbers[name]
        _ip("-n", self._middle, "link", "set", f"v{number}", "up")
        _ip("-n", self._middle, "route", "replace", f"{PREFIX}.{number}/32", "dev", f"v{number}", "src", MIDDLE)

    def socket(self) -> socket.socket:
        """A TCP socket that reaches every leaf."""
        with inside(self.middle):
            made = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        made.setblocking(False)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return made

    def stop(self) -> None:
        for name in list(self._numbers):
            self.remove(name)
        with contextlib.suppress(subprocess.CalledProcessError):
            _ip("netns", "del", self._middle)

    def _leaf(self, name: str) -> str:
        return f"{self._middle}-{self._numbers[name]}"


def _path(name: str) -> Path:
    return Path("/run/netns") / name


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)
