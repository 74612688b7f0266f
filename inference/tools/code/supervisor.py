"""Starts sandboxes and watches over them: a program of its own, which holds no secret of the server.

    server ═ control ═> zygote ─ fork ─> supervisor ─ sandbox ─> bootstrap.py, the code
       ╚══════════════ channel ══════════════╝

The zygote has the sandbox library in memory and forks a supervisor for each sandbox, with the channel that it was sent.
A supervisor prepares one sandbox, waits for its one run, watches its bounds, kills all that is left of it, and ends.
What is below a supervisor is the sandbox, whatever its processes do to hide: orphans come back to it. If the server
goes, or a channel is closed, the sandbox is killed; if a supervisor goes, the zygote kills what it leaves.

Standard library and the sandbox library alone: it is run as a script, apart from the server's packages and memory.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from typing import Any, BinaryIO, Final

TICK_S: Final = 0.02
KILL_ROUNDS: Final = 200
READ_BYTES: Final = 65_536
_CAPABILITIES: Final = 64
_SUBREAPER, _CAPBSET_DROP, _NO_NEW_PRIVS, _CAPABILITY_V3 = 36, 24, 38, 0x20080522

_libc = ctypes.CDLL(None, use_errno=True)


# -- messages -----------------------------------------------------------------------------------------------------


def send(channel: socket.socket, message: dict[str, Any]) -> None:
    """Sends a message: a line of JSON."""
    channel.sendall(json.dumps(message).encode() + b"\n")


def receive(lines: BinaryIO) -> dict[str, Any] | None:
    """Returns the next message; None after the last. Raises OSError."""
    line = lines.readline()
    message: dict[str, Any] | None = json.loads(line) if line.endswith(b"\n") else None
    return message


# -- sandboxes ----------------------------------------------------------------------------------------------------


def command(spec: dict[str, Any]) -> list[str]:
    """Returns the command line that runs inside a sandbox."""
    return [spec["python"], "-I", *([] if spec["packages"] else ["-S"]), "-B", spec["bootstrap"], spec["bounds"]]


class SandlockChild:
    """A sandbox by Landlock and a filter of system calls, without root and without namespaces."""

    def __init__(self, spec: dict[str, Any]) -> None:
        from sandlock import Sandbox, StdioMode

        sandbox = Sandbox(
            fs_readable=spec["readable"],
            fs_writable=[spec["folder"]],
            cwd=spec["folder"],
            clean_env=True,
            env=_environment(spec),
            max_memory=spec["memory_bytes"],
            max_processes=spec["processes"],
            name=f"code-{os.getpid()}",  # no two that run at the same time may share one
        )
        self._process = sandbox.popen(command(spec), StdioMode.PIPED, StdioMode.PIPED, StdioMode.PIPED)
        streams = self._process.stdin, self._process.stdout, self._process.stderr
        self.stdin, self.stdout, self.stderr = (stream.fileno() for stream in streams)
        self.pid = self._process.pid

    def end(self) -> tuple[int, bool]:
        """Waits for the first process; returns its status, and whether it was killed."""
        result = self._process.wait()
        return result.exit_code, int(result.reason) != 0


class BubblewrapChild:
    """A sandbox by kernel namespaces, through bubblewrap: it sees nothing of the machine but named files."""

    def __init__(self, spec: dict[str, Any]) -> None:
        arguments = [spec["bubblewrap"], "--unshare-all", "--die-with-parent", "--new-session", "--cap-drop", "ALL"]
        arguments += ["--proc", "/proc", "--dev", "/dev", "--clearenv", "--hostname", "code"]
        for path in spec["readable"]:
            if not path.startswith("/dev/"):
                arguments += ["--ro-bind-try", path, path]
        arguments += ["--bind", spec["folder"], spec["folder"], "--remount-ro", "/", "--chdir", spec["folder"]]
        for name, value in _environment(spec).items():
            arguments += ["--setenv", name, value]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen([*arguments, *command(spec)], stdin=pipe, stdout=pipe, stderr=pipe, env={})
        streams = self._process.stdin, self._process.stdout, self._process.stderr
        self.stdin, self.stdout, self.stderr = (stream.fileno() for stream in streams if stream is not None)
        self.pid = self._process.pid

    def end(self) -> tuple[int, bool]:
        status = self._process.wait()
        return (status, False) if 0 <= status < 128 else (-1, True)


Child = SandlockChild | BubblewrapChild


def _environment(spec: dict[str, Any]) -> dict[str, str]:
    one_thread = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "OPENBLAS", "MKL", "NUMEXPR")}
    return {"HOME": spec["folder"], "TMPDIR": spec["folder"], "LANG": "C.UTF-8", "PATH": "/usr/bin:/bin", **one_thread}


# -- what a sandbox uses --------------------------------------------------------------------------------------------


def descendants(of: int) -> list[int]:
    """Returns the ids of all processes below one, as they are now."""
    found: list[int] = []
    waiting = [of]
    while waiting:
        below = _children(waiting.pop())
        found += below
        waiting += below
    return found


def _children(pid: int) -> list[int]:
    try:
        tasks = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []
    children: list[int] = []
    for task in tasks:
        with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{task}/children") as file:
            children += [int(pid) for pid in file.read().split()]
    return children


def cpu_and_threads(pids: list[int]) -> tuple[float, int]:
    """Returns the CPU seconds that processes and their ended children have used, and how many threads they have."""
    ticks = threads = 0
    for pid in pids:
        with contextlib.suppress(OSError, ValueError, IndexError), open(f"/proc/{pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
            ticks += sum(int(field) for field in fields[11:15])
            threads += int(fields[17])
    return ticks / os.sysconf("SC_CLK_TCK"), threads


def disk_usage(folder: str, pids: list[int]) -> tuple[int, int]:
    """Returns (bytes, number of files) of a folder and of files without a name that the processes have open."""
    size = count = 0
    waiting = [folder]
    while waiting:
        with contextlib.suppress(OSError), os.scandir(waiting.pop()) as entries:
            for entry in entries:
                count += 1
                with contextlib.suppress(OSError):
                    size += entry.stat(follow_symlinks=False).st_blocks * 512
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
    nameless = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            for fd in os.listdir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):
                    seen = os.stat(f"/proc/{pid}/fd/{fd}")
                    if seen.st_nlink == 0 and (seen.st_dev, seen.st_ino) not in nameless:
                        nameless.add((seen.st_dev, seen.st_ino))
                        size += seen.st_blocks * 512
    return size, count + len(nameless)


def kill_below() -> None:
    """Kills all processes below this one, until none is left that could start more."""
    for _ in range(KILL_ROUNDS):
        below = descendants(os.getpid())
        for pid in below:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        reap()
        if not below:
            return
        time.sleep(0.001)


def reap() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


# -- one sandbox ----------------------------------------------------------------------------------------------------


class Run:
    """The one run of a sandbox: its output, and the bound that it exceeded, if any."""

    def __init__(self, spec: dict[str, Any], channel: socket.socket, child: Child) -> None:
        self._spec = spec
        self._channel = channel
        self._child = child
        self._output = bytearray()
        self._dropped = 0
        self._open = {child.stdout, child.stderr}
        self.stopped = ""

    def go(self, code: str, wall_s: float) -> dict[str, Any]:
        begun_at = time.monotonic()
        given = code.encode(errors="replace")
        due: memoryview | None = memoryview(len(given).to_bytes(4, "big") + given)
        os.set_blocking(self._child.stdin, False)
        ended = os.pidfd_open(self._child.pid)
        looked_at = 0.0
        gone = False
        while not gone and not self.stopped:
            writing = [self._child.stdin] if due is not None else []
            watched: list[int] = [*self._open, self._channel.fileno(), ended]
            ready, writable, _ = select.select(watched, writing, [], TICK_S)
            if writable and due is not None:
                due = self._write(due)
            for fd in self._open & set(ready):
                self._read(fd)
            gone = ended in ready
            now = time.monotonic()
            if self._channel.fileno() in ready:
                self.stopped = "cancelled"  # nothing is said on it but that nobody waits any more
            elif now - begun_at > wall_s:
                self.stopped = "time"
            elif now - looked_at > TICK_S and not gone:
                looked_at = now
                self.stopped = self._beyond()
        if self.stopped:
            kill_all_but(self._child.pid)
        status, killed = self._child.end()
        kill_below()
        self._drain()
        size, count = disk_usage(self._spec["folder"], [])
        if not self.stopped and (size > self._spec["disk_bytes"] or count > self._spec["files"]):
            self.stopped = "disk"
        if killed and not self.stopped:
            self.stopped = "memory"
        return {
            "status": status,
            "stopped": self.stopped,
            "output": self._output.decode(errors="replace"),
            "dropped": self._dropped,
        }

    def _write(self, due: memoryview) -> memoryview | None:
        try:
            due = due[os.write(self._child.stdin, due) :]
        except BlockingIOError:
            return due
        except OSError:
            return None
        return due or None

    def _read(self, fd: int) -> None:
        try:
            part = os.read(fd, READ_BYTES)
        except OSError:
            part = b""
        if not part:
            self._open.discard(fd)
            return
        room = max(self._spec["result_bytes"] - len(self._output), 0)
        self._output += part[:room]
        self._dropped += len(part) - min(room, len(part))

    def _drain(self) -> None:
        while self._open and (ready := select.select([*self._open], [], [], 0)[0]):
            for fd in ready:
                self._read(fd)

    def _beyond(self) -> str:
        below = descendants(os.getpid())
        cpu_s, threads = cpu_and_threads(below)
        size, count = disk_usage(self._spec["folder"], below)
        if cpu_s > self._spec["cpu_s"]:
            return "cpu"
        if threads > self._spec["threads"]:
            return "processes"
        return "disk" if size > self._spec["disk_bytes"] or count > self._spec["files"] else ""


def kill_all_but(first: int) -> None:
    """Kills all processes below this one; a sandbox's first process last, because another caller waits for it."""
    for pid in [*(child for child in descendants(os.getpid()) if child != first), first]:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)


def supervise(channel: socket.socket) -> None:
    """Runs one sandbox, from its start to its end."""
    _libc.prctl(_SUBREAPER, 1, 0, 0, 0)
    lines = channel.makefile("rb")
    spec = receive(lines)
    if spec is None:
        return
    try:
        kind = BubblewrapChild if spec["kind"] == "bubblewrap" else SandlockChild
        child = kind(spec)
        ready = select.select([child.stdout], [], [], spec["start_s"])[0]
        if not ready or os.read(child.stdout, 1) != b"\0":
            raise RuntimeError(os.read(child.stderr, 2_000).decode(errors="replace") if ready else "it did not start")
    except (OSError, RuntimeError, ValueError, ImportError, KeyError, IndexError) as error:
        kill_below()
        send(channel, {"failed": f"{type(error).__name__}: {error}"})
        return
    try:
        send(channel, {"ready": True})
        asked = receive(lines)
        if asked is not None:
            send(channel, Run(spec, channel, child).go(asked["code"], asked["wall_s"]))
    finally:
        kill_below()


# -- the zygote -----------------------------------------------------------------------------------------------------


def give_up_privileges() -> None:
    """Drops all capabilities for good, for this process and its children: root then has no privileges."""
    _libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0)
    for each in range(_CAPABILITIES):
        _libc.prctl(_CAPBSET_DROP, each, 0, 0, 0)
    head = (ctypes.c_uint32 * 2)(_CAPABILITY_V3, 0)
    none = (ctypes.c_uint32 * 6)()
    if _libc.capset(ctypes.byref(head), ctypes.byref(none)) != 0:
        raise OSError(ctypes.get_errno(), "capset")


def forget_ended(supervisors: set[int]) -> None:
    """Reaps supervisors that have ended, and kills the processes that a killed supervisor left."""
    with contextlib.suppress(ChildProcessError):
        while pid := os.waitpid(-1, os.WNOHANG)[0]:
            supervisors.discard(pid)
    for pid in set(_children(os.getpid())) - supervisors:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)


def main() -> None:
    control = socket.socket(fileno=int(sys.argv[1]))
    give_up_privileges()
    with contextlib.suppress(ImportError):
        import sandlock  # noqa: F401  in memory before the first fork
    _libc.prctl(_SUBREAPER, 1, 0, 0, 0)
    woken, wake = socket.socketpair()
    for end in (woken, wake):
        end.setblocking(False)
    signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    supervisors: set[int] = set()
    while True:
        ready, _, _ = select.select([control, woken], [], [])
        if woken in ready:
            with contextlib.suppress(BlockingIOError):
                woken.recv(READ_BYTES)
            forget_ended(supervisors)
        if control not in ready:
            continue
        message, fds, _, _ = socket.recv_fds(control, 16, 1)
        if not message:
            break
        pid = os.fork()
        if not pid:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for each in (control, woken, wake):
                each.close()
            try:
                supervise(socket.socket(fileno=fds[0]))
            finally:
                os._exit(0)
        supervisors.add(pid)
        os.close(fds[0])


if __name__ == "__main__":
    main()
