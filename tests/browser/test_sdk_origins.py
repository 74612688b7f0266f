"""OpenAI's SDK in a real Chromium, from pages of other origins; see sdk_origins.test.mjs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.mark.browser
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_sdk_in_pages_of_other_origins(run_node: Callable[..., None], chromium: str) -> None:
    run_node(HERE / "sdk_origins.test.mjs", SESSILE_TEST_CHROMIUM=chromium)
