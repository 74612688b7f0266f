"""Takes everything from a process but memory and processor time, both bounded: for reading what strangers wrote.

Three layers, each as far as the kernel has it:

    limits     setrlimit: address space, processor time, descriptors, no files written, no core everywhere
    seccomp    a list of the system calls that reading needs; every other one fails: sockets,
               processes, signals, files opened to be written                       Linux, x86-64 and ARM64
    landlock   of the file system, Python's own libraries, to be read                   Linux 5.13 and later

`sandbox_layers` says which a process could have, and changes nothing. `enter_sandbox` is for ever. The numbers are
those of Linux's `asm/unistd.h`, `linux/seccomp.h` and `linux/landlock.h`.
"""

from __future__ import annotations

import ctypes
import os
import platform
import resource
import site
import struct
import sys
import sysconfig
from typing import Final, NamedTuple

PR_SET_PDEATHSIG: Final = 1
PR_GET_SECCOMP: Final = 21
PR_SET_SECCOMP: Final = 22
PR_SET_NO_NEW_PRIVS: Final = 38
SECCOMP_MODE_FILTER: Final = 2
RET_KILL_PROCESS: Final = 0x8000_0000
RET_ERRNO: Final = 0x0005_0000
RET_ALLOW: Final = 0x7FFF_0000
EPERM: Final = 1
SIGKILL: Final = 9
X32_BIT: Final = 0x4000_0000
WRITE_FLAGS: Final = 0o1 | 0o2 | 0o100 | 0o1000 | 0o2000  # O_WRONLY, O_RDWR, O_CREAT, O_TRUNC, O_APPEND

# By name: (x86-64, ARM64); None: there is none.
_CALLS: Final[dict[str, tuple[int | None, int | None]]] = {
    "read": (0, 63), "write": (1, 64), "close": (3, 57), "stat": (4, None), "fstat": (5, 80), "lstat": (6, None),
    "poll": (7, None), "lseek": (8, 62), "mmap": (9, 222), "mprotect": (10, 226), "munmap": (11, 215),
    "brk": (12, 214), "rt_sigaction": (13, 134), "rt_sigprocmask": (14, 135), "rt_sigreturn": (15, 139),
    "ioctl": (16, 29), "pread64": (17, 67), "readv": (19, 65), "writev": (20, 66), "access": (21, None),
    "sched_yield": (24, 124), "mremap": (25, 216), "mincore": (27, 232), "madvise": (28, 233), "dup": (32, 23),
    "nanosleep": (35, 101), "getpid": (39, 172), "exit": (60, 93), "uname": (63, 160), "fcntl": (72, 25),
    "getcwd": (79, 17), "readlink": (89, None), "gettimeofday": (96, 169), "getrlimit": (97, 163),
    "getrusage": (98, 165), "sysinfo": (99, 179), "times": (100, 153), "getuid": (102, 174), "getgid": (104, 176),
    "geteuid": (107, 175), "getegid": (108, 177), "sigaltstack": (131, 132), "gettid": (186, 178),
    "time": (201, None), "futex": (202, 98), "sched_getaffinity": (204, 123), "getdents64": (217, 61),
    "restart_syscall": (219, 128), "clock_gettime": (228, 113), "clock_getres": (229, 114),
    "clock_nanosleep": (230, 115), "exit_group": (231, 94), "newfstatat": (262, 79), "readlinkat": (267, 78),
    "faccessat": (269, 48), "set_robust_list": (273, 99), "getrandom": (318, 278), "statx": (332, 291),
    "rseq": (334, 293), "faccessat2": (439, 439),
}  # fmt: skip
_OPENAT: Final = (257, 56)
_ARCHES: Final = {"x86_64": (0, 0xC000_003E), "aarch64": (1, 0xC000_00B7)}  # (column, AUDIT_ARCH)

_LANDLOCK_CREATE: Final = 444
_LANDLOCK_ADD: Final = 445
_LANDLOCK_RESTRICT: Final = 446
_LANDLOCK_VERSION_FLAG: Final = 1
_FS_RIGHTS: Final = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 4: (1 << 15) - 1, 5: (1 << 16) - 1}
_NET_RIGHTS: Final = 0b11  # bind and connect of TCP, from version 4 on
_READ_RIGHTS: Final = (1 << 2) | (1 << 3)  # READ_FILE, READ_DIR
_PATH_BENEATH: Final = 1

_libc = ctypes.CDLL(None, use_errno=True)


class SandboxLimits(NamedTuple):
    """The resources that a process may use once it is in the sandbox, on top of what it uses already."""

    memory_mib: int
    cpu_s: int
    descriptors: int = 16


def sandbox_layers() -> tuple[str, ...]:
    """Returns the sandbox layers that this machine has. Asks the kernel, and changes nothing."""
    layers = ["limits"]
    if sys.platform == "linux":
        if platform.machine() in _ARCHES and _libc.prctl(PR_GET_SECCOMP, 0, 0, 0, 0) >= 0:
            layers.append("seccomp")
        if _landlock_version() > 0:
            layers.append("landlock")
    return tuple(layers)


def enter_sandbox(limits: SandboxLimits) -> tuple[str, ...]:
    """Puts this process into the sandbox, with every layer that this machine has; returns those. Raises OSError where a
    layer cannot be entered: the caller must then end the process."""
    layers = sandbox_layers()
    limit_resources(limits)
    if sys.platform == "linux" and len(layers) > 1:
        _checked(_libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")
        if "landlock" in layers:
            _restrict_files()
        if "seccomp" in layers:
            _restrict_calls()
    return layers


def end_with_parent() -> None:
    """Has the kernel kill this process when its parent ends. Does nothing except on Linux."""
    if sys.platform == "linux":
        _libc.prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0)


def limit_resources(limits: SandboxLimits) -> None:
    used = _address_space()
    if used is not None:
        most = used + (limits.memory_mib << 20)
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
    spent = resource.getrusage(resource.RUSAGE_SELF)
    seconds = int(spent.ru_utime + spent.ru_stime) + limits.cpu_s
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (limits.descriptors, limits.descriptors))


def call_filter(arch: int, calls: list[int], openat: int, *, x32: bool) -> bytes:
    """Returns the program for `seccomp`: struct sock_filter, one after the other. Calls in `calls` pass, `openat` where
    it opens to read, everything else fails with EPERM; calls of another architecture end the process."""
    load, equal, at_least, any_bit, give = 0x20, 0x15, 0x35, 0x45, 0x06
    code: list[tuple[int, int, int, int]] = [(load, 0, 0, 4), (equal, 1, 0, arch), (give, 0, 0, RET_KILL_PROCESS)]
    code.append((load, 0, 0, 0))
    if x32:
        code.append((at_least, len(calls) + 1, 0, X32_BIT))  # to `refuse`
    code.append((equal, len(calls) + 1, 0, openat))  # to openat's flags
    for place, call in enumerate(calls):
        code.append((equal, len(calls) - place + 3, 0, call))  # to the last line
    # `refuse` stands here: what no line above has taken.
    code.append((give, 0, 0, RET_ERRNO | EPERM))
    code.append((load, 0, 0, 16 + 2 * 8))  # openat's flags
    code.append((any_bit, 0, 1, WRITE_FLAGS))
    code.append((give, 0, 0, RET_ERRNO | EPERM))
    code.append((give, 0, 0, RET_ALLOW))
    assert len(calls) + 8 < 256, "jumps reach 255 lines"
    return b"".join(struct.pack("=HBBI", *line) for line in code)


def _restrict_calls() -> None:
    column, arch = _ARCHES[platform.machine()]
    calls = [number for row in _CALLS.values() if (number := row[column]) is not None]
    program = call_filter(arch, calls, _OPENAT[column], x32=column == 0)
    lines = ctypes.create_string_buffer(program, len(program))

    class Program(ctypes.Structure):
        _fields_ = (("len", ctypes.c_ushort), ("filter", ctypes.c_void_p))

    filled = Program(len(program) // 8, ctypes.addressof(lines))
    _checked(_libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(filled), 0, 0), "seccomp")


def _landlock_version() -> int:
    return int(_libc.syscall(_LANDLOCK_CREATE, None, ctypes.c_size_t(0), _LANDLOCK_VERSION_FLAG))


def _restrict_files() -> None:
    version = _landlock_version()
    rights = _FS_RIGHTS[min(version, max(_FS_RIGHTS))]
    attributes = struct.pack("=QQ", rights, _NET_RIGHTS) if version >= 4 else struct.pack("=Q", rights)
    ruleset = _libc.syscall(_LANDLOCK_CREATE, attributes, ctypes.c_size_t(len(attributes)), 0)
    _checked(ruleset, "landlock")
    try:
        for folder in _library_folders():
            try:
                place = os.open(folder, os.O_PATH | os.O_CLOEXEC)
            except OSError:
                continue
            try:
                beneath = struct.pack("=Qi", _READ_RIGHTS, place)
                _checked(_libc.syscall(_LANDLOCK_ADD, ruleset, _PATH_BENEATH, beneath, 0), "landlock")
            finally:
                os.close(place)
        _checked(_libc.syscall(_LANDLOCK_RESTRICT, ruleset, 0), "landlock")
    finally:
        os.close(ruleset)


def _library_folders() -> list[str]:
    """Returns the folders of Python's own modules and installed packages, none of Sessile's."""
    paths = sysconfig.get_paths()
    return sorted({paths["stdlib"], paths["platstdlib"], paths["purelib"], paths["platlib"], *site.getsitepackages()})


def _address_space() -> int | None:
    """Returns the size of this process's address space in bytes; None where the system does not say."""
    try:
        with open("/proc/self/statm", encoding="ascii") as statm:
            return int(statm.read().split()[0]) * resource.getpagesize()
    except OSError:
        return None


def _checked(result: int, what: str) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
