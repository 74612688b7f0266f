"""What a model writes, as the page shows it in a real Chromium; see prose.test.mjs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.mark.browser
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_what_a_model_writes(run_node: Callable[..., None], chromium: str) -> None:
    run_node(HERE / "prose.test.mjs", SESSILE_TEST_CHROMIUM=chromium)
