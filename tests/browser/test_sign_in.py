"""Signing in with a real provider in a real Chromium; see sign_in.test.mjs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.mark.browser
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_people_sign_in(run_node: Callable[..., None], chromium: str) -> None:
    run_node(HERE / "sign_in.test.mjs", SESSILE_TEST_CHROMIUM=chromium)
