"""`app.py serve` as a process of its own, for tests and benches: started, killed, started again on the same data."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
READY: Final = "Sessile is ready: "


class ServerProcess:
    """`app.py serve` (or another module that takes its flags) as a process of its own."""

    def __init__(
        self,
        *flags: str,
        data: str | None = None,
        program: Sequence[str] = ("app.py", "serve"),
        log: Path | None = None,
    ) -> None:
        """`log`: the file that takes what it writes to standard error; None: ours."""
        self._scratch = tempfile.TemporaryDirectory(prefix="sessile-bench-") if data is None else None
        self.data = data or self._scratch.name if self._scratch else str(data)
        self.flags = flags
        self.program = tuple(program)
        self.log = log
        self.port = 0
        self.process: subprocess.Popen[str] | None = None

    def start(self) -> float:
        """Starts it and waits for the line that says ready; returns the seconds that took."""
        started = time.monotonic()
        command = [sys.executable, *self.program, "--data", self.data, "--port", str(self.port), *self.flags]
        if "--log-level" not in self.flags:
            command += ["--log-level", "error"]
        if self.program[0] == "app.py" and "--titles" not in self.flags:  # an engine runs for what is measured alone
            command += ["--titles", "off"]
        with contextlib.ExitStack() as stack:
            log = stack.enter_context(self.log.open("ab")) if self.log is not None else None
            self.process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=log, text=True)
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith(READY):
                self.port = int(line.removeprefix(READY).strip().rstrip("/").rsplit(":", 1)[1])
                return time.monotonic() - started
        raise RuntimeError(f"the server ended with {self.process.wait()} before it was ready")

    @property
    def url(self) -> str:
        return f"ws://127.0.0.1:{self.port}/v1/ws"

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def kill(self) -> None:
        """kill -9: nothing is said goodbye to."""
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self) -> int:
        """SIGTERM; returns the exit status."""
        assert self.process is not None
        self.process.terminate()
        return self.process.wait(timeout=60)

    def __enter__(self) -> ServerProcess:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.process is not None and self.process.poll() is None:
            self.stop()
        if self._scratch is not None:
            self._scratch.cleanup()
