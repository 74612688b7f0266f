"""One walk through the chat page in a real Chromium; see page.test.mjs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path


def test_the_page(run_node: Callable[..., None], chromium: str) -> None:
    run_node(Path(__file__).parent / "page.test.mjs", SESSILE_TEST_CHROMIUM=chromium)
