"""What the walk through the page stands on: the browser tests' own Node and Chromium."""

from __future__ import annotations

from tests.browser.conftest import chromium, packages, run_node

__all__ = ["chromium", "packages", "run_node"]
