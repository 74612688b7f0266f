"""The conformance cases of docs/protocol, run against the whole client under virtual time."""

from __future__ import annotations

from typing import Any

import pytest
from case_runner import CaseRun
from case_values import load_cases
from virtual_loop import run_virtual

_RUNS = [
    pytest.param(case, encoding, id=f"{case['name']}-{encoding}")
    for case in load_cases("client")
    for encoding in case.get("encodings", ["json", "msgpack"])
]


@pytest.mark.parametrize(("case", "encoding"), _RUNS)
def test_client_case(case: dict[str, Any], encoding: Any) -> None:
    async def run() -> None:
        await CaseRun(case, encoding).run()

    run_virtual(run())
