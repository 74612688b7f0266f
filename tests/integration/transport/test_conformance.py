"""The server keeps to every case of docs/protocol/cases that is about one, under the settings that the case asks for.

The cases are played by the runner of the Python client, which shares no code with the server: it brings its own
MessagePack and its own idea of what the protocol says.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from inference.simulated import SimulatedOptions
from tests.support.doors.assembly import assembled
from transport.http_api.server import ServerLimits
from transport.protocol.connection import ConnectionLimits, ConnectionTiming

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "clients" / "python" / "tests"))

from case_values import load_cases
from server_case_runner import run_case

KNOWN = {
    "engine",
    "sim_tokens_per_s",
    "sim_answer_tokens",
    "hello_timeout_ms",
    "frame_bytes_max",
    "window_events",
    "empty",
}
CASES = load_cases("server")


def test_there_are_cases_and_every_setting_is_known() -> None:
    assert len(CASES) >= 50
    assert {name for case in CASES for name in case.get("settings", {})} <= KNOWN


@pytest.mark.parametrize(
    ("case", "encoding"),
    [(case, encoding) for case in CASES for encoding in case.get("encodings", ["json", "msgpack"])],
    ids=lambda value: value if isinstance(value, str) else value["name"],
)
async def test_case(case: dict[str, Any], encoding: str) -> None:
    settings = case.get("settings", {})
    engine = SimulatedOptions(
        step_base_s=1 / settings.get("sim_tokens_per_s", 100), answer_tokens_mean=settings.get("sim_answer_tokens", 64)
    )
    limits = ConnectionLimits(
        frame_bytes_max=settings.get("frame_bytes_max", 1024 * 1024),
        window_events=settings.get("window_events", 1024),
        timing=ConnectionTiming(hello_s=settings.get("hello_timeout_ms", 10_000) / 1000),
    )
    async with assembled(engine=engine, limits=ServerLimits(connection=limits)) as server:
        await run_case(case, server.ws, encoding)
        assert server.gateway.tasks.failures == 0
