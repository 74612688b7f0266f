"""A sweep that fails is tried again at the next beat, whatever it failed with: a replica does not end for it."""

from __future__ import annotations

import asyncio
import contextlib
import errno

import pytest

from sessions.model.errors import Unavailable
from tests.support.cluster.replicas import Place
from tests.support.cluster.sweeps import sweeps_of
from tests.support.virtual_time import advance, virtual


@pytest.mark.parametrize(
    "trouble", [OSError(errno.EROFS, "Read-only file system"), Unavailable("journal_unavailable", "It is away.")]
)
def test_a_sweep_that_fails_is_tried_again_at_the_next_beat(trouble: Exception) -> None:
    @virtual
    async def run() -> None:
        async with Place() as place:
            replica = await place.replica()
            sweeps = sweeps_of(replica, sweep_s=1.0)
            tried = 0

            async def recover() -> int:
                nonlocal tried
                tried += 1
                raise trouble

            sweeps.recover = recover  # type: ignore[method-assign]
            running = asyncio.create_task(sweeps.run())
            await advance(3.5)
            assert tried == 4 and not running.done()
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await running

    run()
