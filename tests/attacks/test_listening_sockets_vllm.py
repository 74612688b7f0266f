"""What a server with vLLM listens on: its named ports, sockets nobody else reaches, and gloo's port on loopback."""

from __future__ import annotations

import importlib.util

import pytest

from tests.support.doors.server_process import ROOT, ServerProcess
from tests.support.listening_sockets import free_ports, listening, open_to_strangers

MODEL = ROOT / ".cache" / "models" / "SmolLM2-135M-Instruct.Q4_1-vllm-fp32"

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.slow,
    pytest.mark.timeout(400),
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM has an environment of its own"),
]


def test_a_server_with_vllm_listens_on_what_was_named() -> None:
    (port,) = free_ports(1)
    flags = ["--model", str(MODEL), "--threads", "1", "--slots", "2", "--context", "512", "--vllm-args"]
    server = ServerProcess("--engine", "vllm", *flags, '{"dtype": "float32", "kv_cache_memory_bytes": 200000000}')
    server.port = port
    with server:
        found = listening(server.pid)
        breaches = open_to_strangers(found.unix)
    print("vLLM listens on", sorted(found.tcp), sorted(found.unix))
    assert f"127.0.0.1:{port}" in found.tcp
    assert {address.rpartition(":")[0] for address in found.tcp} == {"127.0.0.1"}
    assert breaches == []
