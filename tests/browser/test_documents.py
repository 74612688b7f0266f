"""Made-up documents through the page in a real Chromium; see documents.test.mjs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.mark.browser
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_documents_made_up(run_node: Callable[..., None], chromium: str) -> None:
    run_node(HERE / "documents.test.mjs", SESSILE_TEST_CHROMIUM=chromium)
