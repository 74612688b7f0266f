"""A store is read again and again; what was not read for too long is not trusted, and that is reported once."""

from __future__ import annotations

import asyncio

import pytest

from sessions.model.errors import Unavailable
from tests.support.virtual_time import advance, virtual
from transport.auth.store_follower import READ_S, STALE_S, StoreFollower


class Store:
    def __init__(self) -> None:
        self.reads = 0
        self.away = self.silent = False
        self.stale: list[str] = []
        self.follower = StoreFollower(
            self.read,
            lambda error: self.stale.append(error.public_message),
            asyncio.get_running_loop().time,
            name="keys",
            checked="Keys",
        )

    async def read(self) -> None:
        self.reads += 1
        if self.silent:
            await asyncio.Event().wait()
        if self.away:
            raise Unavailable("journal_away", "away")


@virtual
async def test_what_was_never_read_is_not_trusted_and_silence_ends() -> None:
    store = Store()
    with pytest.raises(Unavailable, match="Keys cannot be checked"):
        store.follower.check_fresh()
    store.silent = True
    before = asyncio.get_running_loop().time()
    with pytest.raises(Unavailable, match="The keys could not be read in time"):
        await store.follower.refresh()
    assert asyncio.get_running_loop().time() - before == pytest.approx(READ_S)
    store.silent = False
    await store.follower.refresh()
    store.follower.check_fresh()
    await advance(STALE_S + 0.1)
    with pytest.raises(Unavailable):
        store.follower.check_fresh()
