"""These tests need vLLM, which has an environment of its own: elsewhere they are not collected."""

from __future__ import annotations

import importlib.util
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.support.engines.vllm_world import VllmWorld

if importlib.util.find_spec("vllm") is None:
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[VllmWorld]:
    from tests.support.engines.vllm_world import VllmWorld

    made = VllmWorld(tmp_path)
    yield made
    await made.close()
