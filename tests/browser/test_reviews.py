"""The review queue of the operator's page in a real Chromium against the real server; see reviews.test.mjs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.mark.browser
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_review_queue(run_node: Callable[..., None], chromium: str) -> None:
    run_node(HERE / "reviews.test.mjs", SESSILE_TEST_CHROMIUM=chromium)
