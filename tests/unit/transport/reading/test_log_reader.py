"""How a reader goes on: replay, snapshot, reset, or an error; and what pages are scrubbed of."""

from __future__ import annotations

import pytest

from sessions.model.errors import Forbidden, Gone, NotFound
from sessions.model.events import SessionDeleted
from sessions.model.types import LOCAL_PRINCIPAL, Epoch, Principal
from tests.support.doors.transport import (
    FakeSessions,
    Source,
    begun,
    created,
    delta,
    key_of,
    memory_sessions,
    retracted,
)
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


@pytest.mark.parametrize(
    ("epoch", "offset", "mode", "reason"),
    [
        (None, None, "snapshot", None),
        (None, 0, "replay", None),
        ("ep_s", 4, "replay", None),
        (None, 4, "reset", "epoch_unknown"),
        ("other", 4, "reset", "epoch_changed"),
        ("other", 0, "reset", "epoch_changed"),
        ("ep_s", 7, "reset", "offset_ahead"),
    ],
)
async def test_how_a_reader_goes_on(epoch: str | None, offset: int | None, mode: str, reason: str | None) -> None:
    _, source, feed = await opened()
    plan = await source.logs.standing(LOCAL_PRINCIPAL, feed, None if epoch is None else Epoch(epoch), offset)
    assert (plan.mode, plan.reason, plan.top) == (mode, reason, 6)
    assert plan.position == (offset if mode == "replay" else 6)
    assert (plan.state is None) == (mode == "replay")


async def test_what_may_not_be_read() -> None:
    sessions, source, feed = await opened()
    with pytest.raises(Forbidden):
        await source.logs.standing(Principal(tenant=LOCAL_PRINCIPAL.tenant, key_id="k", scopes=()), feed, None, None)
    with pytest.raises(NotFound):
        await source.logs.state(LOCAL_PRINCIPAL, key_of("nothing"))
    await sessions.append("s", SessionDeleted(), deleted=True)
    with pytest.raises(Gone):
        await source.logs.state(LOCAL_PRINCIPAL, key_of("s"))


async def test_a_page_knows_every_retraction_behind_it() -> None:
    sessions, source, feed = await opened()
    sessions.deaf = True
    await sessions.append("s", retracted(0, 3), delta("three", 5))
    page = await source.logs.page(feed, 4, bytes_max=1)
    assert page[0].offset == 5
    assert feed.covers(4, 8) and [offset for offset, _ in feed.retractions] == [7]
