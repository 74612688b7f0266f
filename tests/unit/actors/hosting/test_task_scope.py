"""Background tasks end with their block, and a failure of one ends it."""

from __future__ import annotations

import asyncio

import pytest

from actors.hosting.task_scope import TaskScope
from tests.support.virtual_time import advance, virtual


async def for_ever() -> None:
    await asyncio.get_running_loop().create_future()


async def fails() -> None:
    raise ValueError("a bug")


@virtual
async def test_the_end_of_the_block_cancels_what_runs() -> None:
    scope = TaskScope()
    async with scope:
        task = scope.spawn(for_ever())
        await advance(0.1)
        assert not task.done()
    assert task.cancelled()


@virtual
async def test_a_task_that_fails_ends_the_block() -> None:
    scope = TaskScope()
    with pytest.raises(ExceptionGroup) as group:
        async with scope:
            other = scope.spawn(for_ever())
            scope.spawn(fails())
            await for_ever()
    assert group.group_contains(ValueError) and other.cancelled()
