"""Sandboxes as the server sees them: opened through the zygote, kept ready, run once, killed when nobody waits.

A sandbox is used once: what one run leaves in it, no other finds. `warm` of a kind stand ready, so that a run waits for
no interpreter; each that is taken is replaced behind the run. Cancelling a run closes its channel, and with it goes
the sandbox.
"""

from __future__ import annotations

import asyncio
import json
import os
import platform
import shutil
import socket
import subprocess
import sys
import sysconfig
from collections import deque
from pathlib import Path
from typing import Final, Literal, NamedTuple

import msgspec
import structlog

from inference.tools.code.scratch import ScratchFolders
from inference.tools.code.syscall_filter import MACHINES, filter_program

log = structlog.get_logger(__name__)

START_S: Final = 15.0
END_S: Final = 10.0  # how many seconds a run may take beyond its limit, for being killed and read
SANDBOXES_MAX: Final = 64  # at a replica, including sandboxes that stand ready
THREADS_MAX: Final = 64
OPEN_FILES_MAX: Final = 128
ADDRESS_ROOM: Final = 256 * 2**20  # how many bytes an interpreter maps without using them
_HERE: Final = Path(__file__).parent
_DEVICES: Final = ("/dev/null", "/dev/zero", "/dev/urandom")
Kind = Literal["sandlock", "bubblewrap"]


class SandboxUnavailable(Exception):
    """Raised when no sandbox can be had; the message says why, for the log and the operator."""


class SandboxBounds(msgspec.Struct, frozen=True, kw_only=True):
    """The resources that one sandbox may use."""

    memory_mb: int = 512
    cpu_s: float = 30.0
    processes: int = 8
    disk_mb: int = 64
    files: int = 256
    result_bytes: int = 65_536
    python: str = ""  # another interpreter than the server's, with packages


class SandboxResult(msgspec.Struct, frozen=True):
    """The result of a run. `stopped`: the bound that it exceeded ("time", "cpu", "memory", ...); "" for none."""

    status: int
    stopped: str
    output: str
    dropped: int = 0
    ran_s: float = 0.0


class Interpreter(NamedTuple):
    """The path of a CPython, and the files and folders that it must be able to read."""

    path: str
    readable: tuple[str, ...]


def find_kind() -> Kind:
    """Returns the kind of sandbox that works here. Raises SandboxUnavailable that says what is missing."""
    if platform.machine() not in MACHINES:
        raise SandboxUnavailable(f"no filter of system calls is known for {platform.machine()}")
    try:
        import sandlock
    except (ImportError, OSError):
        missing = "the package sandlock is not installed (make setup-code)"
    else:
        if sandlock.landlock_abi_version() >= sandlock.min_landlock_abi():
            return "sandlock"
        missing = f"this kernel's Landlock is older than version {sandlock.min_landlock_abi()}"
    if bubblewrap_path() is not None:
        return "bubblewrap"
    raise SandboxUnavailable(f"{missing}, and there is no bubblewrap (bwrap)")


def bubblewrap_path() -> str | None:
    return shutil.which("bwrap")


def find_interpreter(python: str) -> Interpreter:
    """Finds the CPython for sandboxes: the one at `python` with its packages, or, if `python` is empty, the server's
    own without packages. Blocking. Raises SandboxUnavailable."""
    libraries = [
        path for path in ("/usr/lib", "/lib", "/lib64", "/usr/lib64", "/etc/ld.so.cache") if Path(path).exists()
    ]
    zones = [path for path in ("/usr/share/zoneinfo",) if Path(path).exists()]
    if python:
        ask = "import json, sys; print(json.dumps([sys.prefix, sys.base_prefix]))"
        try:
            said = subprocess.run([python, "-I", "-c", ask], capture_output=True, timeout=START_S, check=True, env={})
            prefixes = [*json.loads(said.stdout), str(Path(python).resolve())]
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            raise SandboxUnavailable(f"python = {python!r} is no Python: {error}") from error
        return Interpreter(python, tuple(dict.fromkeys([*libraries, *zones, *prefixes])))
    binary = str(Path(getattr(sys, "_base_executable", sys.executable)).resolve())
    standard = sysconfig.get_paths(vars={"base": sys.base_prefix, "installed_base": sys.base_prefix})["stdlib"]
    shared = sysconfig.get_config_var("LIBDIR") or ""
    of_it = [binary, standard, *([shared] if shared and Path(shared).exists() else [])]
    return Interpreter(binary, tuple(dict.fromkeys([*libraries, *zones, *of_it])))


class Sandbox:
    """One sandbox that is ready to run code, in a folder of its own."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, folder: Path) -> None:
        self.folder = folder
        self._reader = reader
        self._writer = writer

    async def run(self, code: str, wall_s: float) -> SandboxResult:
        """Runs code, once. Raises SandboxUnavailable where the sandbox ended by itself; if cancelled, it ends the
        sandbox."""
        try:
            await _send(self._writer, {"code": code, "wall_s": wall_s})
            async with asyncio.timeout(wall_s + END_S):
                return msgspec.convert(await _receive(self._reader), SandboxResult)
        except (OSError, EOFError, TimeoutError, ValueError) as error:
            raise SandboxUnavailable(f"the supervisor went: {type(error).__name__}") from error
        finally:
            self.close()

    def close(self) -> None:
        """Tells the sandbox to end, unless it has ended."""
        if self._writer.can_write_eof() and not self._writer.is_closing():
            self._writer.write_eof()

    async def ended(self) -> None:
        """Waits until no process of the sandbox runs; its supervisor ends last."""
        try:
            async with asyncio.timeout(END_S):
                while await self._reader.read(65_536):
                    pass
        except (OSError, TimeoutError) as error:
            log.error("sandbox_end_failed", error=type(error).__name__)
        finally:
            self._writer.close()

    @property
    def ended_already(self) -> bool:
        return self._reader.at_eof() or self._writer.is_closing()


async def _send(writer: asyncio.StreamWriter, message: dict[str, object]) -> None:
    body = json.dumps(message).encode()
    writer.write(len(body).to_bytes(4, "big") + body)
    await writer.drain()


async def _receive(reader: asyncio.StreamReader) -> dict[str, object]:
    size = int.from_bytes(await reader.readexactly(4), "big")
    message: dict[str, object] = json.loads(await reader.readexactly(size))
    return message


class Zygote:
    """The process that sandboxes are forked from; started when first needed, and again if it ends."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None

    async def channel(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Opens a channel to a new supervisor. Raises OSError."""
        if self._process is None or self._process.poll() is not None:
            self.close()
            self._begin()
        assert self._control is not None
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                socket.send_fds(self._control, [b"s"], [theirs.fileno()])
            ours.setblocking(False)
            return await asyncio.open_connection(sock=ours)
        except BaseException:
            ours.close()
            raise

    def _begin(self) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        nothing = subprocess.DEVNULL
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-I", str(_HERE / "supervisor.py"), str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=nothing,
                stdout=nothing,
                stderr=nothing,
                env={},
                cwd="/",
                start_new_session=True,
            )

    def close(self) -> None:
        """Ends the process, and with it each sandbox whose channel is closed. Blocking, for a moment."""
        if self._control is not None:
            self._control.close()
        if self._process is not None:
            try:
                self._process.wait(END_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._process = self._control = None


class SandboxPool:
    """Opens sandboxes, and keeps some for each set of bounds ready."""

    def __init__(self, kind: Kind, folders: ScratchFolders) -> None:
        self.kind: Kind = kind
        self._folders = folders
        self._zygote = Zygote()
        self._interpreters: dict[str, Interpreter] = {}
        self._ready: dict[SandboxBounds, deque[Sandbox]] = {}
        self._wanted: dict[SandboxBounds, int] = {}
        self._filling: dict[SandboxBounds, asyncio.Task[None]] = {}
        self._leaving: set[asyncio.Task[None]] = set()
        self._room = asyncio.Semaphore(SANDBOXES_MAX)
        self._closed = False

    def keep_ready(self, wanted: dict[SandboxBounds, int]) -> None:
        """Sets how many sandboxes of each bounds are kept ready from now on; closes ready ones beyond that."""
        self._wanted = {bounds: count for bounds, count in wanted.items() if count > 0}
        for bounds in [bounds for bounds in self._ready if bounds not in self._wanted]:
            for sandbox in self._ready.pop(bounds):
                self.release(sandbox)
        for bounds in self._wanted:
            self._fill(bounds)

    async def take(self, bounds: SandboxBounds) -> Sandbox:
        """Returns a sandbox for one run; the caller releases it. Raises SandboxUnavailable."""
        ready = self._ready.get(bounds)
        while ready:
            sandbox = ready.popleft()
            if not sandbox.ended_already:
                self._fill(bounds)
                return sandbox
            self.release(sandbox)
        self._fill(bounds)
        return await self._open(bounds)

    def release(self, sandbox: Sandbox) -> None:
        """Closes a sandbox; its resources are free and its folder deleted once it has ended."""
        sandbox.close()
        task = asyncio.create_task(self._given_back(sandbox))
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    async def _given_back(self, sandbox: Sandbox) -> None:
        await sandbox.ended()
        self._room.release()
        await asyncio.to_thread(self._folders.drop, sandbox.folder)

    def _fill(self, bounds: SandboxBounds) -> None:
        if not self._closed and bounds not in self._filling and bounds in self._wanted:
            task = self._filling[bounds] = asyncio.create_task(self._filled(bounds))
            task.add_done_callback(lambda _: self._filling.pop(bounds, None))

    async def _filled(self, bounds: SandboxBounds) -> None:
        ready = self._ready.setdefault(bounds, deque())
        try:
            while len(ready) < self._wanted.get(bounds, 0):
                ready.append(await self._open(bounds))
        except SandboxUnavailable as error:
            log.warning("sandbox_start_failed", error=str(error))

    async def _open(self, bounds: SandboxBounds) -> Sandbox:
        await self._room.acquire()
        folder: Path | None = None
        writer: asyncio.StreamWriter | None = None
        try:
            interpreter = self._interpreters.get(bounds.python)
            if interpreter is None:
                interpreter = await asyncio.to_thread(find_interpreter, bounds.python)
                self._interpreters[bounds.python] = interpreter
            folder = self._folders.new()
            async with asyncio.timeout(START_S):
                reader, writer = await self._zygote.channel()
                await _send(writer, spec_of(bounds, self.kind, interpreter, folder))
                begun = await _receive(reader)
            if "failed" in begun:
                raise SandboxUnavailable(str(begun["failed"]))
            return Sandbox(reader, writer, folder)
        except BaseException as error:
            if writer is not None:
                writer.close()
            if folder is not None:
                self._folders.drop(folder)
            self._room.release()
            if isinstance(error, OSError | EOFError | TimeoutError | ValueError):
                raise SandboxUnavailable(f"it does not start: {type(error).__name__}: {error}") from error
            raise

    async def close(self) -> None:
        """Closes every sandbox."""
        self._closed = True
        tasks = list(self._filling.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for ready in self._ready.values():
            for sandbox in ready:
                self.release(sandbox)
        self._ready.clear()
        await asyncio.gather(*self._leaving, return_exceptions=True)
        await asyncio.to_thread(self._zygote.close)


def spec_of(bounds: SandboxBounds, kind: Kind, interpreter: Interpreter, folder: Path) -> dict[str, object]:
    """Returns the description of a sandbox that its supervisor gets."""
    memory_bytes, disk_bytes = bounds.memory_mb * 2**20 + ADDRESS_ROOM, bounds.disk_mb * 2**20
    limits = {
        "RLIMIT_AS": memory_bytes,
        "RLIMIT_CPU": int(bounds.cpu_s) + 1,
        "RLIMIT_FSIZE": disk_bytes,
        "RLIMIT_NOFILE": OPEN_FILES_MAX,
        "RLIMIT_CORE": 0,
        "RLIMIT_MEMLOCK": 0,
        "RLIMIT_MSGQUEUE": 0,
    }
    program = filter_program(platform.machine())
    return {
        **msgspec.structs.asdict(bounds),
        "kind": kind,
        "bubblewrap": bubblewrap_path() or "",
        "python": interpreter.path,
        "packages": bool(bounds.python),
        "bootstrap": str(_HERE / "bootstrap.py"),
        "bounds": ",".join(f"{name}={value}" for name, value in limits.items()) + ":" + program.hex(),
        "readable": [*interpreter.readable, str(_HERE / "bootstrap.py"), *_DEVICES],
        "folder": os.fspath(folder),
        "memory_bytes": memory_bytes,
        "disk_bytes": disk_bytes,
        "threads": THREADS_MAX,
        "start_s": START_S,
    }
