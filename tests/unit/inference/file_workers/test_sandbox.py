"""Nothing but reading is possible in the sandbox: each attempt is made in a child of its own."""

from __future__ import annotations

import ctypes
import os
import platform
import resource
import signal
import socket
import struct
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from inference.file_workers.sandbox import SandboxLimits, call_filter, enter_sandbox, limit_resources, sandbox_layers

LAYERS = sandbox_layers()
needs_seccomp = pytest.mark.skipif("seccomp" not in LAYERS, reason="this kernel filters no system calls")
needs_landlock = pytest.mark.skipif("landlock" not in LAYERS, reason="this kernel has no Landlock")
LIMITS = SandboxLimits(memory_mib=64, cpu_s=2)


def in_sandbox(attempt: Callable[[], object], limits: SandboxLimits = LIMITS) -> int:
    """How a child ends that makes an attempt there: 0 it succeeded, 7 it was refused, 8 no memory, else a signal."""
    child = os.fork()
    if child == 0:
        status = 9
        try:
            os.closerange(3, 1 << 16)  # a reader has nothing open either; a worker of pytest has more than may be
            enter_sandbox(limits)
            attempt()
            status = 0
        except OSError:
            status = 7
        except MemoryError:
            status = 8
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_reading_and_computing_go_on() -> None:
    assert in_sandbox(lambda: sum(range(1000))) == 0
    assert in_sandbox(lambda: bytes(1 << 20)) == 0


@needs_seccomp
@pytest.mark.parametrize(
    "attempt",
    [
        lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM),
        lambda: socket.socket(socket.AF_UNIX, socket.SOCK_STREAM),
        lambda: socket.socketpair(),
        lambda: os.fork(),
        lambda: os.execv(sys.executable, [sys.executable, "-c", "1"]),
        lambda: os.kill(os.getppid(), signal.SIGTERM),
        lambda: os.open("/tmp/made", os.O_CREAT | os.O_WRONLY),
        lambda: os.open(os.devnull, os.O_WRONLY),
        lambda: os.unlink("/tmp/made"),
        lambda: os.mkdir("/tmp/made"),
        lambda: os.chdir("/"),
        lambda: os.setuid(0),
        lambda: os.pipe(),
        lambda: os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0)),
        lambda: os.memfd_create("x"),
    ],
)
def test_system_calls_beyond_reading_fail(attempt: Callable[[], object]) -> None:
    assert in_sandbox(attempt) == 7


@needs_seccomp
def test_calls_by_number_fail_too() -> None:
    libc = ctypes.CDLL(None, use_errno=True)

    def attempt(number: int) -> Callable[[], object]:
        def call() -> None:
            if libc.syscall(number, 0, 0, 0, 0, 0) < 0 and ctypes.get_errno() == 1:
                raise OSError

        return call

    for number in (101, 310, 425, 321) if platform.machine() == "x86_64" else (117, 270, 425, 280):  # ptrace, io_uring
        assert in_sandbox(attempt(number)) == 7, number


@needs_landlock
def test_files_beyond_pythons_own_cannot_be_read(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("x")
    for path in (str(secret), "/etc/passwd", "/proc/self/environ", "/proc/1/cmdline", __file__, "/"):
        assert in_sandbox(lambda path=path: os.open(path, os.O_RDONLY)) == 7, path  # type: ignore[misc]
    assert in_sandbox(lambda: os.open(os.__file__, os.O_RDONLY)) == 0


def test_memory_is_bounded() -> None:
    assert in_sandbox(lambda: bytearray(200 << 20)) == 8


def test_processor_time_is_bounded() -> None:
    def turn() -> None:
        while True:
            pass

    assert in_sandbox(turn, SandboxLimits(memory_mib=64, cpu_s=1)) == -signal.SIGXCPU


def test_descriptors_are_bounded() -> None:
    def take() -> None:
        for _ in range(100):
            os.dup(0)

    assert in_sandbox(take) == 7


def test_limits_hold_without_filters() -> None:
    child = os.fork()
    if child == 0:
        limit_resources(LIMITS)
        none = (resource.RLIMIT_FSIZE, resource.RLIMIT_CORE)
        os._exit(any(resource.getrlimit(each) != (0, 0) for each in none))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_the_filter_jumps_to_where_it_says() -> None:
    """The program, run here on every call that there may be."""
    calls, openat, arch = [0, 1, 5], 257, 0xC000003E
    program = call_filter(arch, calls, openat, x32=True)
    lines = [struct.unpack_from("=HBBI", program, at) for at in range(0, len(program), 8)]

    def run(number: int, flags: int = 0, of: int = arch) -> int:
        data = {0: number, 4: of, 32: flags}
        at = held = 0
        while True:
            code, true, false, value = lines[at]
            at += 1
            match code:
                case 0x20:
                    held = data[value]
                case 0x15:
                    at += true if held == value else false
                case 0x35:
                    at += true if held >= value else false
                case 0x45:
                    at += true if held & value else false
                case _:
                    assert code == 0x06
                    return int(value)

    allow, refuse, kill = 0x7FFF0000, 0x00050001, 0x80000000
    assert all(run(number) == (allow if number in (*calls, openat) else refuse) for number in range(600))
    assert run(openat, os.O_WRONLY) == run(openat, os.O_RDWR) == run(openat, os.O_CREAT) == refuse
    assert run(openat, os.O_CLOEXEC) == allow
    assert run(0x40000000) == run(0x40000001) == refuse
    assert run(0, of=0x40000003) == kill
