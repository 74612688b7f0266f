"""The pages, and clients in pages, in a real Chromium against the real server: each name is a file `NAME.test.mjs`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

HERE = Path(__file__).parent
PAGES = (
    "appeals",
    "chat",
    "docs",
    "documents",
    "files",
    "operator",
    "page",
    "prose",
    "reviews",
    "sdk_origins",
    "sign_in",
    "tool_files",
)
OF_A_CLUSTER = "operator_cluster"


@pytest.mark.browser
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", [*PAGES, pytest.param(OF_A_CLUSTER, marks=pytest.mark.cluster)])
def test_in_chromium(name: str, run_node: Callable[..., None], chromium: str) -> None:
    run_node(HERE / f"{name}.test.mjs", SESSILE_TEST_CHROMIUM=chromium)


def test_each_file_has_its_name_here() -> None:
    named = {*PAGES, OF_A_CLUSTER, "lines", "phone"}
    assert named == {path.name.removesuffix(".test.mjs") for path in HERE.glob("*.test.mjs")}
