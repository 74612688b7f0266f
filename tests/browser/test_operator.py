"""The operator's page in a real Chromium against the real server; see operator.test.mjs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.mark.browser
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_operator_page(run_node: Callable[..., None], chromium: str) -> None:
    run_node(HERE / "operator.test.mjs", SESSILE_TEST_CHROMIUM=chromium)


@pytest.mark.browser
@pytest.mark.cluster
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_operator_page_of_a_gateway(run_node: Callable[..., None], chromium: str) -> None:
    run_node(HERE / "operator_cluster.test.mjs", SESSILE_TEST_CHROMIUM=chromium)
