"""What a server with vLLM listens on: its named ports, and sockets that nobody else reaches."""

from __future__ import annotations

import contextlib
import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from testbed.server_process import ROOT, ServerProcess
from tests.support.doors.guard_policies import guard_flags
from tests.support.listening_sockets import free_ports, listening, open_to_strangers

MODEL = ROOT / ".cache" / "models" / "SmolLM2-135M-Instruct.Q4_1-vllm-fp32"

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.slow,
    pytest.mark.timeout(400),
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM has an environment of its own"),
]


ARGS = {"dtype": "float32", "kv_cache_memory_bytes": 200_000_000}


@contextlib.contextmanager
def serving(*flags: str, **args: Any) -> Iterator[ServerProcess]:
    (port,) = free_ports(1)
    ours = ["--engine", "vllm", "--model", str(MODEL), "--threads", "1", "--slots", "2", "--context", "512"]
    server = ServerProcess(*ours, *flags, "--vllm-args", json.dumps(ARGS | args))
    server.port = port
    with server:
        yield server


# Classifiers run in the same worker whatever the engine is (`test_listening_sockets.py`); vLLM's environment has none.
@pytest.mark.parametrize("guard", ["none", "endpoint", "file"])
def test_a_server_with_vllm_listens_on_what_was_named(guard: str, tmp_path: Path, model_path: Path) -> None:
    grpc_port, metrics_port = free_ports(2)
    doors = ["--grpc-port", str(grpc_port), "--metrics-port", str(metrics_port)]
    with serving(*doors, *guard_flags(guard, tmp_path, model_path)) as server:
        found = listening(server.pid)
        breaches = open_to_strangers(found.unix)
        stores = {path for each in found.unix for path in Path(each).parent.glob("vllm_dist_*")}
    assert found.tcp == {f"127.0.0.1:{port}" for port in (server.port, grpc_port, metrics_port)}
    assert breaches == []
    assert len(stores) == 1, "torch's rendezvous is a file, and in a folder of ours"
    assert not [path for path in found.unix if Path(path).parent.exists()], "they go with the server"


def test_of_several_workers_nothing_is_bound_off_loopback() -> None:
    """They speak to each other over gloo, which knows TCP alone; three, as the model's nine heads cannot be halved."""
    with serving(tensor_parallel_size=3) as server:
        found = listening(server.pid)
        breaches = open_to_strangers(found.unix)
    assert f"127.0.0.1:{server.port}" in found.tcp
    assert {address.rpartition(":")[0] for address in found.tcp} == {"127.0.0.1"}
    assert breaches == []
