"""Sandboxes as the server sees them: opened through the zygote, run once, killed when nobody waits.

A sandbox is used once: what one run leaves in it, no other finds. Cancelling a run closes its channel, and with it goes
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
from pathlib import Path
from typing import Final, Literal, NamedTuple

import msgspec
import structlog

from inference.tools.code.scratch import ScratchFolders
from inference.tools.code.syscall_filter import MACHINES, filter_program
from inference.tools.tools_file import CodeTool

log = structlog.get_logger(__name__)

START_S: Final = 15.0
END_S: Final = 10.0  # how many seconds a run may take beyond its limit, for being killed and read
SANDBOXES_MAX: Final = 64  # at a replica
MESSAGE_BYTES_MAX: Final = 8 << 20  # a result has a million bytes, each of up to six in JSON
THREADS_MAX: Final = 64
OPEN_FILES_MAX: Final = 128
ADDRESS_ROOM: Final = 256 * 2**20  # how many bytes an interpreter maps without using them
_HERE: Final = Path(__file__).parent
_SHARED: Final = ("/usr/lib", "/lib", "/lib64", "/usr/lib64", "/etc/ld.so.cache", "/usr/share/zoneinfo")
_DEVICES: Final = ("/dev/null", "/dev/zero", "/dev/urandom")
Kind = Literal["sandlock", "bubblewrap"]


class SandboxUnavailable(Exception):
    """Raised when no sandbox can be had; the message says why, for the log and the operator."""


class SandboxResult(msgspec.Struct, frozen=True):
    """The result of a run. `stopped`: the bound that it exceeded ("time", "cpu", "memory", ...); "" for none."""

    status: int
    stopped: str
    output: str
    dropped: int = 0


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
    if shutil.which("bwrap") is not None:
        return "bubblewrap"
    raise SandboxUnavailable(f"{missing}, and there is no bubblewrap (bwrap)")


def find_interpreter(python: str) -> Interpreter:
    """Finds the CPython for sandboxes: the one at `python` with its packages, or, if `python` is empty, the server's
    own without packages. Blocking. Raises SandboxUnavailable."""
    shared = [path for path in _SHARED if Path(path).exists()]
    if python:
        ask = "import json, sys; print(json.dumps([sys.prefix, sys.base_prefix]))"
        try:
            said = subprocess.run([python, "-I", "-c", ask], capture_output=True, timeout=START_S, check=True, env={})
            prefixes = [*json.loads(said.stdout), str(Path(python).resolve())]
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            raise SandboxUnavailable(f"python = {python!r} is no Python: {error}") from error
        return Interpreter(python, tuple(dict.fromkeys([*shared, *prefixes])))
    binary = str(Path(getattr(sys, "_base_executable", sys.executable)).resolve())
    standard = sysconfig.get_paths(vars={"base": sys.base_prefix, "installed_base": sys.base_prefix})["stdlib"]
    library = sysconfig.get_config_var("LIBDIR") or ""
    of_it = [binary, standard, *([library] if library and Path(library).exists() else [])]
    return Interpreter(binary, tuple(dict.fromkeys([*shared, *of_it])))


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


async def _send(writer: asyncio.StreamWriter, message: dict[str, object]) -> None:
    writer.write(json.dumps(message).encode() + b"\n")
    await writer.drain()


async def _receive(reader: asyncio.StreamReader) -> dict[str, object]:
    message: dict[str, object] = json.loads(await reader.readuntil(b"\n"))
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
            return await asyncio.open_connection(sock=ours, limit=MESSAGE_BYTES_MAX)
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
    """Opens sandboxes, at most `SANDBOXES_MAX` at once."""

    def __init__(self, kind: Kind, *, parent: str | None = None) -> None:
        """`parent` is where the folders of sandboxes are."""
        self._kind: Kind = kind
        self._folders = ScratchFolders(parent=parent)
        self._zygote = Zygote()
        self._interpreters: dict[str, Interpreter] = {}
        self._leaving: set[asyncio.Task[None]] = set()
        self._room = asyncio.Semaphore(SANDBOXES_MAX)

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

    async def open(self, tool: CodeTool) -> Sandbox:
        """Returns a sandbox within the bounds of a tool for one run; the caller releases it. Raises
        SandboxUnavailable."""
        await self._room.acquire()
        folder: Path | None = None
        writer: asyncio.StreamWriter | None = None
        try:
            interpreter = self._interpreters.get(tool.python)
            if interpreter is None:
                interpreter = await asyncio.to_thread(find_interpreter, tool.python)
                self._interpreters[tool.python] = interpreter
            folder = self._folders.new()
            async with asyncio.timeout(START_S):
                reader, writer = await self._zygote.channel()
                await _send(writer, spec_of(tool, self._kind, interpreter, folder))
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
        """Closes every sandbox, and removes every folder."""
        await asyncio.gather(*self._leaving, return_exceptions=True)
        await asyncio.to_thread(self._zygote.close)
        await asyncio.to_thread(self._folders.close)


def spec_of(tool: CodeTool, kind: Kind, interpreter: Interpreter, folder: Path) -> dict[str, object]:
    """Returns the description of a sandbox that its supervisor gets."""
    memory_bytes, disk_bytes = tool.memory_mb * 2**20 + ADDRESS_ROOM, tool.disk_mb * 2**20
    limits = {
        "RLIMIT_AS": memory_bytes,
        "RLIMIT_CPU": int(tool.cpu_s) + 1,
        "RLIMIT_FSIZE": disk_bytes,
        "RLIMIT_NOFILE": OPEN_FILES_MAX,
        "RLIMIT_CORE": 0,
        "RLIMIT_MEMLOCK": 0,
        "RLIMIT_MSGQUEUE": 0,
    }
    program = filter_program(platform.machine())
    return {
        "cpu_s": tool.cpu_s,
        "processes": tool.processes,
        "files": tool.files,
        "result_bytes": tool.result_bytes,
        "kind": kind,
        "bubblewrap": shutil.which("bwrap") or "",
        "python": interpreter.path,
        "packages": bool(tool.python),
        "bootstrap": str(_HERE / "bootstrap.py"),
        "bounds": ",".join(f"{name}={value}" for name, value in limits.items()) + ":" + program.hex(),
        "readable": [*interpreter.readable, str(_HERE / "bootstrap.py"), *_DEVICES],
        "folder": os.fspath(folder),
        "memory_bytes": memory_bytes,
        "disk_bytes": disk_bytes,
        "threads": THREADS_MAX,
        "start_s": START_S,
    }
