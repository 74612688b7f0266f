"""A whole cluster as `make cluster` starts it: what it listens on, and what others on the machine see of it."""

from __future__ import annotations

import re
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import httpx
import pytest

from testbed.server_process import ROOT
from tests.support.listening_sockets import Listening, free_ports, listening, open_to_strangers, process_tree
from transport.auth.authenticator import key_digest

pytestmark = [pytest.mark.cluster, pytest.mark.slow]


POLICY = """
[guards.default]
model_path = "{model_path}"
context = 512
[policies.default.input]
guard = {{ action = "flag", threshold = 0.5 }}
"""


class Cluster(NamedTuple):
    port: int
    settings: Path
    shared: dict[str, str]
    roots: tuple[int, ...]  # the starter's process, and PostgreSQL's, which leaves its parent

    @property
    def listening(self) -> Listening:
        return listening(*self.roots)


@contextmanager
def running_cluster(replicas: int, *flags: str) -> Iterator[Cluster]:
    (port,) = free_ports(1)
    folder = Path(tempfile.mkdtemp(prefix="sessile-cluster-", dir="/tmp"))
    folder.chmod(0o755)  # PostgreSQL enters it under an account of its own where the tests run as root
    command = [sys.executable, "deploy/cluster.py", "--port", str(port), "--gateways", "1", "--replicas", str(replicas)]
    command += ["--data", str(folder), "--", *flags, "--log-level", "error"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            printed = ""
            for line in process.stdout:
                printed += line
                if line.startswith("The cluster is ready"):
                    break
            settings = Path(re.findall(r"settings: (\S+)", printed)[0])
            postgres = int((folder / "postgres" / "postmaster.pid").read_text().split()[0])
            yield Cluster(port, settings, tomllib.loads(settings.read_text()), (process.pid, postgres))
        finally:
            process.terminate()
            process.wait(timeout=60)
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with running_cluster(2, "--engine", "sim") as running:
        yield running


def check_listening(cluster: Cluster, *, replicas: int, sockets: int) -> None:
    """The gateway's port, the replicas' peer links where the directory says they are, Valkey's port: loopback, all."""
    command = [sys.executable, "app.py", "replicas", "--config", str(cluster.settings)]
    members = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=100).stdout
    peers = set(re.findall(r"127\.0\.0\.1:\d+", members))
    directory = urlsplit(cluster.shared["directory"])
    assert len(peers) == replicas
    found = cluster.listening
    assert found.tcp == {f"127.0.0.1:{cluster.port}", f"127.0.0.1:{directory.port}"} | peers
    assert len(found.unix) == sockets
    assert open_to_strangers(found.unix) == []


def test_it_listens_on_what_was_named(cluster: Cluster) -> None:
    check_listening(cluster, replicas=2, sockets=1)  # PostgreSQL's


@pytest.mark.model
def test_a_replica_with_a_model_and_a_guard_opens_no_port_for_them(tmp_path: Path, model_path: Path) -> None:
    policy = tmp_path / "policy.toml"
    policy.write_text(POLICY.format(model_path=model_path))
    flags = ["--engine", "llama", "--model", str(model_path), "--threads", "1", "--slots", "2", "--context", "512"]
    with running_cluster(1, *flags, "--policy", str(policy)) as cluster:
        check_listening(cluster, replicas=1, sockets=3)  # PostgreSQL's, the engine's, the guard's


def test_no_process_list_shows_a_secret(cluster: Cluster) -> None:
    secrets = [cluster.shared["peer_token"], urlsplit(cluster.shared["directory"]).password or ""]
    assert all(len(secret) == 64 for secret in secrets)
    tree = set().union(*(process_tree(root) for root in cluster.roots))
    lines = [Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace") for pid in tree]
    assert any("replica-1" in line for line in lines) and any("valkey" in line for line in lines)
    assert [line for line in lines for secret in secrets if secret in line] == []
    assert stat.S_IMODE(cluster.settings.stat().st_mode) == 0o600
    assert stat.S_IMODE((cluster.settings.parent / "valkey" / "valkey.conf").stat().st_mode) == 0o600


def test_the_directory_answers_nobody_without_its_password(cluster: Cluster) -> None:
    with socket.create_connection(("127.0.0.1", urlsplit(cluster.shared["directory"]).port or 0), 10) as wire:
        wire.sendall(b"KEYS *\r\n")
        assert wire.recv(100).startswith(b"-NOAUTH")


@pytest.mark.parametrize("role", ["gateway", "replica"])
def test_a_secret_on_the_command_line_ends_the_start(role: str) -> None:
    command = [sys.executable, "app.py", role, "--directory", "redis://127.0.0.1:1", "--peer-token", "s" * 32]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "--peer-token-file FILE" in done.stderr and "s" * 32 not in done.stderr


def test_a_peer_link_off_loopback_demands_mutual_tls(cluster: Cluster) -> None:
    """Refused before the model is looked at, with what to do; nothing listens meanwhile."""
    command = [sys.executable, "app.py", "replica", "--config", str(cluster.settings), "--peer-host", "0.0.0.0"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    for flag in ("--peer-authority", "--peer-certificate", "--peer-key", "--peer-insecure"):
        assert flag in done.stderr


def test_a_cluster_that_demands_keys_has_limits_at_its_gateways(tmp_path: Path) -> None:
    keys, digest = tmp_path / "keys.toml", key_digest("sk-boss")
    keys.write_text(
        f'[[keys]]\nid = "boss"\ntenant = "acme"\nrole = "service"\nscopes = ["admin", "chat"]\nsha256 = "{digest}"\n'
    )
    with running_cluster(1, "--engine", "sim", "--keys", str(keys)) as cluster:
        headers = {"authorization": "Bearer sk-boss"}
        chat = {"model": "simulated", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}
        with httpx.Client(base_url=f"http://127.0.0.1:{cluster.port}", headers=headers, timeout=60) as http:
            assert http.get("/v1/limits").json()["limits"]["requests_per_minute"] == 3_000
            answer = http.post("/v1/chat/completions", json=chat)
    assert answer.status_code == 200
    assert answer.headers["x-ratelimit-limit-requests"] == "300"
