"""What each role listens on, with each engine and guard: named addresses, and sockets that nobody else reaches.

Real processes. All listening sockets of a whole process tree are read from /proc and compared with what was configured.
"""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from testbed.server_process import ServerProcess
from tests.support.doors.guard_policies import guard_flags
from tests.support.listening_sockets import free_ports, listening, open_to_strangers, process_tree

MODEL = pytest.param("llama", marks=[pytest.mark.model, pytest.mark.slow])


# -- the instrument --------------------------------------------------------------------------------


def test_every_listening_socket_of_a_process_tree_is_seen(tmp_path: Path) -> None:
    """A child of a child listens on IPv4, on a path and on an abstract name; nothing of it is missed."""
    path = tmp_path / "s.sock"
    child = f"""
import socket, sys
tcp = socket.create_server(("127.0.0.1", 0))
named, abstract = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)
named.bind({str(path)!r}), named.listen()
abstract.bind(chr(0) + "sessile-test-{os.getpid()}"), abstract.listen()
print(tcp.getsockname()[1], flush=True)
sys.stdin.read()
"""
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    command = [sys.executable, "-c", parent]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        port = int(process.stdout.readline())
        found = listening(process.pid)
        assert len(process_tree(process.pid)) == 2
        process.stdin.close()
    assert found.tcp == {f"127.0.0.1:{port}"}
    assert found.unix == {str(path), f"@sessile-test-{os.getpid()}"}


def test_a_socket_in_an_open_folder_is_a_breach() -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder, socket.socket(socket.AF_UNIX) as listener:
        path = f"{folder}/s.sock"
        listener.bind(path)
        listener.listen()
        assert open_to_strangers(frozenset({path})) == []
        os.chmod(folder, 0o755)
        os.chmod(path, 0o777)
        breaches = open_to_strangers(frozenset({path, "@abstract"}))
    assert "mode 755" in breaches[0] and "no folder" in breaches[-1]
    assert os.getuid() != 0 or "connected" in breaches[1]


# -- one process --------------------------------------------------------------------------------


@pytest.mark.parametrize("doors", ["one door", "all doors"])
@pytest.mark.parametrize(
    "guard", ["none", "classifier", "endpoint", pytest.param("file", marks=[pytest.mark.model, pytest.mark.slow])]
)
@pytest.mark.parametrize("engine", ["sim", MODEL])
def test_a_server_listens_on_what_was_named(
    engine: str, guard: str, doors: str, tmp_path: Path, model_path: Path
) -> None:
    port, grpc_port, metrics_port = free_ports(3)
    flags, expected = ["--engine", engine], {f"127.0.0.1:{port}"}
    if doors == "all doors":
        flags += ["--grpc-port", str(grpc_port), "--metrics-port", str(metrics_port)]
        expected |= {f"127.0.0.1:{grpc_port}", f"127.0.0.1:{metrics_port}"}
    flags += guard_flags(guard, tmp_path, model_path)
    if engine == "llama":
        flags += ["--model", str(model_path), "--threads", "1", "--slots", "2", "--context", "512"]
    server = ServerProcess(*flags)
    server.port = port
    with server:
        found = listening(server.pid)
        breaches = open_to_strangers(found.unix)
    assert found.tcp == expected
    assert len(found.unix) == (engine == "llama") + (guard == "file")
    assert breaches == []
    assert not [path for path in found.unix if Path(path).parent.exists()], "they go with the server"


# -- the attack --------------------------------------------------------------------------------


def speak(address: str | tuple[str, int], request: str) -> bytes:
    """What an address answers to raw HTTP."""
    family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
    with socket.socket(family) as wire:
        wire.settimeout(30)
        wire.connect(address)
        wire.sendall(f"{request} HTTP/1.1\r\nHost: 127.0.0.1\r\nOrigin: https://evil.example\r\n".encode())
        wire.sendall(b"Connection: close\r\n\r\n")
        answer = b""
        while data := wire.recv(1 << 16):
            answer += data
    return answer


@pytest.mark.model
@pytest.mark.slow
def test_a_stranger_does_not_reach_the_engine(tmp_path: Path, model_path: Path) -> None:
    """Who has no key tries every port of the process for llama.cpp's own API; who is another user tries its socket."""
    flags = ["--engine", "llama", "--model", str(model_path), "--threads", "1", "--slots", "2", "--context", "512"]
    with ServerProcess(*flags, "--auth", "keys", "--grpc-port", "0", "--metrics-port", "0") as server:
        found = listening(server.pid)
        assert len(found.ports) == 3
        for port in found.ports:
            for request in ("GET /slots", "GET /props", "POST /completion", "POST /slots/0?action=erase"):
                try:
                    answer = speak(("127.0.0.1", port), request)
                except OSError:
                    continue  # gRPC hangs up on HTTP/1
                assert not answer.startswith(b"HTTP/1.1 200"), (port, request)
                assert b"llama.cpp" not in answer and b"evil.example" not in answer, (port, request)
        (path,) = found.unix
        assert stat.S_IMODE(os.stat(os.path.dirname(path)).st_mode) == 0o700
        assert open_to_strangers(found.unix) == []
        own = speak(path, "GET /slots")
        assert own.startswith(b"HTTP/1.1 200"), "we reach it ourselves: the check above proves something"
        assert b"evil.example" not in own + speak(path, "OPTIONS /completion"), "no page's origin is let in"
        assert b"Access-Control-Allow-Credentials: true" not in speak(path, "OPTIONS /completion")
