"""Asking for a review on the chat page, in a real Chromium against the real server; see appeals.test.mjs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.mark.browser
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_asking_for_a_review(run_node: Callable[..., None], chromium: str) -> None:
    run_node(HERE / "appeals.test.mjs", SESSILE_TEST_CHROMIUM=chromium)
