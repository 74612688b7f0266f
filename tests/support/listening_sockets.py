"""Lists what a process and its descendants listen on, from /proc: TCP addresses and unix sockets. Linux alone."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import subprocess
import sys
from pathlib import Path
from typing import Final, NamedTuple

import pytest

LISTEN: Final = "0A"  # of /proc/net/tcp
ACCEPTS: Final = 0x10000  # of /proc/net/unix: SO_ACCEPTCON
DATAGRAM: Final = "0002"
MAPPED: Final = bytes(10) + b"\xff\xff"  # before an IPv4 address on a socket of IPv6: gRPC's
NOBODY: Final = 65534

# Runs as another user, and reports what that user can do with a socket's folder and with the socket.
STRANGER: Final = """
import os, socket, sys
os.setgroups([]); os.setgid({nobody}); os.setuid({nobody})
done = []
try:
    done.append(f"listed {{os.listdir(os.path.dirname(sys.argv[1]))}}")
except PermissionError:
    pass
try:
    socket.socket(socket.AF_UNIX).connect(sys.argv[1])
    done.append("connected")
except PermissionError:
    pass
print("; ".join(done))
"""


class Listening(NamedTuple):
    tcp: frozenset[str]  # "127.0.0.1:8080"
    unix: frozenset[str]  # paths, of datagrams too; an abstract name begins with "@"

    @property
    def ports(self) -> set[int]:
        return {int(each.rpartition(":")[2]) for each in self.tcp}


def free_ports(count: int) -> list[int]:
    """Ports of loopback that nobody listens on now, all different."""
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [int(probe.getsockname()[1]) for probe in probes]


def has_ipv6() -> bool:
    """Returns whether this machine has the loopback address of IPv6."""
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


needs_ipv6: Final = pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")


def process_tree(root: int) -> set[int]:
    """A process and all its living descendants."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, IndexError):
            continue  # it has ended
    tree = {root}
    while more := {pid for pid, parent in parents.items() if parent in tree} - tree:
        tree |= more
    return tree


def listening(*roots: int) -> Listening:
    """What these processes and their descendants listen on."""
    inodes: set[str] = set()
    for pid in set().union(*(process_tree(root) for root in roots)):
        with contextlib.suppress(OSError):  # the process has ended
            for descriptor in Path(f"/proc/{pid}/fd").iterdir():
                with contextlib.suppress(OSError):  # the descriptor has been closed, as of a module that was loaded
                    link = os.readlink(descriptor)
                    inodes |= {link[8:-1]} if link.startswith("socket:[") else set()
    tcp = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            _, local, _, state, *rest = line.split()
            if state == LISTEN and rest[5] in inodes:
                tcp.add(_address(local))
    unix = set()
    for line in Path("/proc/net/unix").read_text().splitlines()[1:]:
        fields = line.split(maxsplit=7)
        if fields[6] in inodes and len(fields) > 7 and (int(fields[3], 16) & ACCEPTS or fields[4] == DATAGRAM):
            unix.add(fields[7])
    return Listening(frozenset(tcp), frozenset(unix))


def _address(local: str) -> str:
    """`0100007F:1F90` as `127.0.0.1:8080`: the kernel writes words in the machine's order."""
    raw, _, port = local.partition(":")
    words = [bytes.fromhex(raw[at : at + 8]) for at in range(0, len(raw), 8)]
    packed = b"".join(word[::-1] if sys.byteorder == "little" else word for word in words)
    packed = packed.removeprefix(MAPPED)
    host = socket.inet_ntop(socket.AF_INET if len(packed) == 4 else socket.AF_INET6, packed)
    return f"[{host}]:{int(port, 16)}" if ":" in host else f"{host}:{int(port, 16)}"


def open_to_strangers(sockets: frozenset[str]) -> list[str]:
    """Which unix sockets somebody else on the machine could reach, and how: by their folder's mode, and, where the
    tests run as root, by what another user really can do."""
    breaches = []
    for path in sorted(sockets):
        if not path.startswith("/"):
            breaches.append(f"{path}: it has no folder")
            continue
        mode = stat.S_IMODE(os.stat(os.path.dirname(path)).st_mode)
        if mode & 0o077:
            breaches.append(f"{path}: its folder has mode {mode:o}")
        if os.getuid() == 0:
            command = [sys.executable, "-I", "-c", STRANGER.format(nobody=NOBODY), path]
            done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.strip()
            breaches += [f"{path}: another user {done}"] if done else []
    return breaches
