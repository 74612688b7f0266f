"""What the browser tests stand on: Node 20 with the development packages of the TypeScript client, and a Chromium.

The tests themselves are JavaScript (`*.test.mjs`): the browser is driven from there; `harness.mjs` starts, kills
and restarts the real server. Set SESSILE_TEST_CHROMIUM for a browser in an unusual place.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CLIENT = ROOT / "clients" / "typescript"
WITH_NODE = str(ROOT / "deploy" / "with_node.sh")
CHROMIUMS = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="session")
def packages() -> Path:
    """The client's development packages, installed from its lock if they are not there yet."""
    if not (CLIENT / "node_modules" / "playwright-core").is_dir():
        subprocess.run([WITH_NODE, "npm", "ci", "--no-audit", "--no-fund"], cwd=CLIENT, check=True, timeout=300)
    return CLIENT


@pytest.fixture(scope="session")
def chromium() -> str:
    named = os.environ.get("SESSILE_TEST_CHROMIUM")
    found = named or next((path for name in CHROMIUMS if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip("no Chromium here: apt-get install chromium")
    return found


@pytest.fixture
def run_node(packages: Path) -> Callable[..., None]:
    """Runs one file of tests with Node's own runner and fails with what it printed."""

    def run(test: Path, *, timeout_s: float = 600, **environment: str) -> None:
        result = subprocess.run(
            [WITH_NODE, "node", "--test", "--test-reporter=spec", str(test)],
            cwd=ROOT,
            env={**os.environ, "SESSILE_TEST_PYTHON": sys.executable, **environment},
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )
        if result.returncode != 0:
            pytest.fail(result.stdout[-12_000:] + result.stderr[-4_000:], pytrace=False)

    return run
