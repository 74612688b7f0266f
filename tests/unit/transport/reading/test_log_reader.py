"""How a reader goes on: replay, snapshot, reset, or an error; and what pages are scrubbed of."""

from __future__ import annotations

import pytest

from sessions.model.errors import Forbidden, Gone, NotFound
from sessions.model.events import SessionDeleted
from sessions.model.types import LOCAL_PRINCIPAL, Principal
from tests.support.doors.transport import FakeSessions, Source, begun, created, delta, key_of, memory_sessions
from transport.protocol.frames import JSON
from transport.reading.feeds import Feed, FeedReader


class Listener:
    def readable(self, reader: FeedReader) -> None:
        """Nothing is collected here."""


async def opened(replay_records_max: int = 10_000) -> tuple[FakeSessions, Source, Feed]:
    sessions = await memory_sessions()
    await sessions.append("s", created(), *begun(), delta("one ", 3), delta("two ", 4))  # offsets 1 to 6
    source = Source(sessions, replay_records_max=replay_records_max)
    return sessions, source, source.feeds.acquire(key_of("s"), Listener(), JSON).feed


async def test_what_may_not_be_read() -> None:
    sessions, source, feed = await opened()
    with pytest.raises(Forbidden):
        await source.logs.standing(Principal(tenant=LOCAL_PRINCIPAL.tenant, key_id="k", scopes=()), feed, None, None)
    with pytest.raises(NotFound):
        await source.logs.state(LOCAL_PRINCIPAL, key_of("nothing"))
    await sessions.append("s", SessionDeleted(), deleted=True)
    with pytest.raises(Gone):
        await source.logs.state(LOCAL_PRINCIPAL, key_of("s"))
