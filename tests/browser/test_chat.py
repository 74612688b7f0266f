"""The chat page's list, settings, feedback, sharing, languages and offline use in a real Chromium: chat.test.mjs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.mark.browser
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_chat_page(run_node: Callable[..., None], chromium: str) -> None:
    run_node(HERE / "chat.test.mjs", SESSILE_TEST_CHROMIUM=chromium)
