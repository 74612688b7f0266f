"""The protocol's tables are those of the code. The README's programs are run by the server's own tests."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path

import pytest
from case_values import CASES, load_cases

from sessile_client._policy import FATAL_CLOSES, RETRY_CLOSE_CODES, Limits

PACKAGE = Path(__file__).parents[1]
CHECKOUT = PACKAGE.parents[1]
PROTOCOL = (CASES.parents[1] / "protocol.md").read_text(encoding="utf-8")


def _rows(heading: str) -> list[list[str]]:
    """The first table under a heading of the protocol, without its head."""
    section = PROTOCOL.split(f"{heading}\n", 1)[1]
    lines = [line for line in section.split("\n### ")[0].split("\n## ")[0].splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def _codes() -> dict[str, list[str]]:
    return {code: row[1:] for row in _rows("### 7.2 Codes") for code in re.findall(r"`(\w+)`", row[0])}


def test_close_codes_are_those_of_the_client() -> None:
    stop: set[int] = set()
    back: set[int] = set()
    for codes, _, does in _rows("### 6.1 Close codes"):
        (stop if does == "stop" else back).update(int(code) for code in codes.split(",") if does)
    assert stop == FATAL_CLOSES.keys()
    assert back == RETRY_CLOSE_CODES


def test_codes_are_those_of_the_server() -> None:
    if not (CHECKOUT / "transport" / "errors.py").exists():
        pytest.skip("the server is not in this checkout")
    sys.path.insert(0, str(CHECKOUT))
    try:
        codes = importlib.import_module("transport.errors").CODES
    finally:
        sys.path.remove(str(CHECKOUT))
    documented = {code: (int(row[0]), row[1], int(row[2]) if row[2] else None) for code, row in _codes().items()}
    # HTTP's own and settings' codes never travel on a session connection
    served = {code: tuple(row) for code, row in codes.items() if code != "invalid_setting"}
    assert documented == served


def test_the_codes_that_are_retryable_end_no_connection_for_good() -> None:
    """The sentence above the table says which codes are retryable."""
    once = {"quota_exceeded", "file_quota_exceeded"}
    for code, (status, grpc, close, _) in _codes().items():
        is_retryable = status == "503" or (status == "429" and code not in once) or (status, grpc) == ("409", "ABORTED")
        if close and (is_retryable or code in ("slow_reader", "heartbeat_lost")):
            assert int(close) in RETRY_CLOSE_CODES, code


def test_every_case_says_what_it_is_about() -> None:
    cases = load_cases("client") + load_cases("server")
    assert sum("client" in case["runs"] for case in cases) >= 25
    assert sum("server" in case["runs"] for case in cases) >= 20
    for case in cases:
        assert (CASES / f"{case['name']}.json").exists()
        assert f"### {case['spec']} " in PROTOCOL, case["name"]
        assert case["title"].strip() and case["steps"]


def test_the_clients_limits_are_those_of_the_protocol() -> None:
    limits = Limits()
    assert limits.in_flight_max <= 32
    assert (limits.backoff_first_s, limits.backoff_max_s, limits.ack_after_s) == (0.25, 20.0, 1.0)
    assert limits.heartbeat_ms * 1.4 == 35_000
    assert limits.command_bytes_max <= 1024 * 1024
