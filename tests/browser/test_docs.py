"""The API's page in a real Chromium against the real server; see docs.test.mjs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.mark.browser
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_page_of_the_api(run_node: Callable[..., None], chromium: str) -> None:
    run_node(HERE / "docs.test.mjs", SESSILE_TEST_CHROMIUM=chromium)
