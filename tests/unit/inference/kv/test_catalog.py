"""Snapshots are looked up across tiers: the one that shares most, and of two alike the faster one."""

from __future__ import annotations

from pathlib import Path

from inference.kv.disk import DiskTier
from inference.kv.tiers import Tiers
from inference.tokens import as_tokens
from sessions.model.types import SessionKey
from tests.support.engines.kv import IDENTITY, key, make_tiers

SIZE = 1_000


async def opened(folder: Path) -> Tiers:
    staging = folder / "staging"
    staging.mkdir(exist_ok=True)
    tiers = make_tiers(staging, 1 << 20, DiskTier(folder / "kv", 1 << 20, IDENTITY))
    await tiers.open()
    return tiers


async def save(tiers: Tiers, who: SessionKey, tokens: list[int], scope: bytes = b"") -> None:
    assert await tiers.reserve(SIZE)
    path = tiers.host.new_path()
    path.write_bytes(bytes(SIZE))
    tiers.adopt(who, as_tokens(tokens), path, SIZE, SIZE, scope)
    await tiers.host.settle()


async def test_a_run_finds_what_other_sessions_of_its_scope_hold_in_every_tier_and_after_a_restart(
    tmp_path: Path,
) -> None:
    tiers = await opened(tmp_path)
    await save(tiers, key("a"), [1, 2, 3, 4], b"mine")
    await save(tiers, key("b"), [1, 2], b"mine")
    await save(tiers, key("c"), [1, 2, 3, 5, 6], b"another's")
    await save(tiers, key("d"), [1, 2, 3, 5, 6])
    await save(tiers, key("e", "other"), [1, 2, 3, 5, 6], b"mine")
    prompt = as_tokens([1, 2, 3, 5, 6])
    for tier in ("host", "disk"):
        found, shared = tiers.catalog.find_near(key("b"), prompt, b"mine")
        assert found is not None and (found.key, found.tier, shared) == (key("a"), tier, 3)
        assert tiers.catalog.find_near(key("new"), prompt, b"") == (None, 0)
        assert tiers.catalog.find_near(key("new"), prompt, b"nobody's") == (None, 0)
        own, shared = tiers.catalog.find_near(key("b"), as_tokens([1, 2, 9]), b"mine")
        assert own is not None and (own.key, shared) == (key("b"), 2), "of two that share as much its own"
        await tiers.close(10.0)
        tiers = await opened(tmp_path)
    await tiers.erase(key("a"))
    assert tiers.catalog.find_near(key("new"), prompt, b"mine")[1] == 2, "what is erased is found by nobody"
    await tiers.close(0.0)
