"""Sandboxes: one run each, ready ones, what happens when nobody waits or a supervisor goes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from inference.tools.code.sandbox_pool import (
    SandboxBounds,
    SandboxPool,
    SandboxUnavailable,
    find_interpreter,
    find_kind,
)
from inference.tools.code.scratch import ScratchFolders

BOUNDS = SandboxBounds(memory_bytes=256 * 2**20, cpu_s=5)


@pytest.fixture
async def pool(tmp_path: Path) -> AsyncIterator[SandboxPool]:
    try:
        kind = find_kind()
    except SandboxUnavailable as error:
        pytest.skip(f"no sandbox here: {error}")
    folders = ScratchFolders(parent=str(tmp_path))
    made = SandboxPool(kind, folders)
    yield made
    await made.close()
    folders.close()
    assert not any(tmp_path.iterdir())


async def run(pool: SandboxPool, code: str, wall_s: float = 10.0) -> tuple[int, str, str]:
    sandbox = await pool.take(BOUNDS)
    try:
        result = await sandbox.run(code, wall_s)
        return result.status, result.stopped, result.output
    finally:
        pool.release(sandbox)


async def test_a_ready_one_is_taken_and_replaced(pool: SandboxPool) -> None:
    pool.keep_ready({BOUNDS: 1})
    await asyncio.gather(*pool._filling.values())
    (ready,) = pool._ready[BOUNDS]
    taken = await pool.take(BOUNDS)
    assert taken is ready
    assert (await taken.run("1 + 1", 5)).output == "2\n"
    pool.release(taken)
    await asyncio.gather(*pool._filling.values())
    assert len(pool._ready[BOUNDS]) == 1
    pool.keep_ready({})
    assert not pool._ready


async def test_a_zygote_that_was_killed_is_begun_again(pool: SandboxPool) -> None:
    assert (await run(pool, "1"))[0] == 0
    process = pool._zygote._process
    assert process is not None
    process.kill()
    process.wait()
    assert (await run(pool, "1"))[0] == 0


def test_another_interpreter_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SandboxUnavailable, match="is no Python"):
        find_interpreter(str(tmp_path / "python"))
