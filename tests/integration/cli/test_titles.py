"""Whose conversations are named by their model: `--titles`, and a tenant's own word in the limits file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from app import limits, open_limits
from inference.simulated import SimulatedEngine
from persistence.memory.store import MemoryStore
from sessions.metrics import Metrics
from sessions.model.types import TenantId
from transport.cli.settings import Settings


def titles(limited: Any, **settings: Any) -> Callable[[TenantId], bool] | None:
    return limits(Settings(**settings), limited, SimulatedEngine(), Metrics()).actor.titles


@pytest.mark.parametrize(
    ("setting", "engine", "on"),
    [("auto", "llama", True), ("auto", "sim", False), ("model", "sim", True), ("off", "llama", False)],
)
def test_titles_are_on_by_setting_and_engine(setting: str, engine: str, on: bool) -> None:
    named = titles(None, titles=setting, engine=engine)
    assert (named is not None and named(TenantId("acme"))) is on


async def test_a_tenant_may_switch_titles_off(tmp_path: Path) -> None:
    path = tmp_path / "limits.toml"
    path.write_text("[tenants.acme]\ntitles = false\n")
    async with open_limits(str(path), "", MemoryStore().tallies) as limited:
        named = titles(limited, titles="model")
        assert named is not None
        assert [named(TenantId(tenant)) for tenant in ("acme", "beta")] == [False, True]
