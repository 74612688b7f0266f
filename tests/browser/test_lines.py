"""The TypeScript SDK over bad lines, through killed servers and tunnels; see the `.test.mjs` files named here."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.mark.chaos
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_sdk_over_bad_lines_and_killed_servers(run_node: Callable[..., None]) -> None:
    run_node(HERE / "lines.test.mjs", timeout_s=280)


def test_the_phone_example(run_node: Callable[..., None]) -> None:
    run_node(HERE / "phone.test.mjs")
