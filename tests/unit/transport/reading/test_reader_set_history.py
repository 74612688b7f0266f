"""Whatever is written, lost, replaced and acknowledged: the client sees the log."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Callable
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from persistence.memory.journal import Medium
from sessions.model import events as ev
from sessions.model.types import SessionId
from tests.support.doors.transport import (
    FakeSessions,
    Reading,
    Rig,
    Source,
    begun,
    created,
    delta,
    memory_sessions,
    point,
    retracted,
)
from tests.support.effort import effort
from transport.protocol.frames import JSON, MSGPACK

S = SessionId("s")


def jittery(rng: random.Random) -> Medium:
    """A journal whose answers come some turns later."""

    async def medium(call: str, key: Any, effect: Callable[[], Any]) -> Any:
        for _turn in range(rng.randrange(4)):
            await asyncio.sleep(0)
        result = effect()
        for _turn in range(rng.randrange(4)):
            await asyncio.sleep(0)
        return result

    return medium


class History:
    """A log that grows and a client that comes and goes, from one source of chance."""

    def __init__(self, sessions: FakeSessions, rng: random.Random, window: int) -> None:
        self.sessions = sessions
        self.source = Source(sessions, replay_records_max=40)
        self.rng = rng
        self.window = window
        self.text = ""
        self.top = 0
        self.number = 3
        self.client = Reading()
        self.taken_back: set[str] = set()
        self.rig = self.connect()

    def connect(self) -> Rig:
        return Rig(
            self.source,
            encoding=self.rng.choice((JSON, MSGPACK)),
            window_events=self.window,
            window_bytes=self.rng.choice((2_000, 256 * 1024)),
        )

    async def start(self) -> None:
        self.top = len(await self.sessions.append("s", created(), *begun()))
        self.rig.channel.subscribe(point(0))

    async def append(self, *, deaf: bool | None = None) -> None:
        events: list[ev.AnyEvent] = []
        taken_back: set[str] = set()
        for _ in range(self.rng.randrange(1, 6)):
            if self.rng.random() < 0.15:
                events.append(ev.SessionMigrated(replica="r", cause="handoff"))
            elif self.rng.random() < 0.1 and self.text:
                start = self.rng.randrange(len(self.text))
                end = self.rng.randrange(start, len(self.text)) + 1
                taken_back |= set(re.findall(r"[a-j]{10}é ", self.text[start:end]))
                events.append(retracted(start, end, "#" * self.rng.randrange(3)))
                self.text = self.text[:start] + events[-1].replacement + self.text[end:]  # type: ignore[union-attr]
            else:
                words = "".join(self.rng.choices("abcdefghij", k=10)) + "é "
                events.append(delta(words, self.number))
                self.number += 1
                self.text += words
        self.sessions.deaf = self.rng.random() < 0.1 if deaf is None else deaf
        records = await self.sessions.append("s", *events)
        self.top = records[-1].offset
        self.take(self.rig.written())
        if not self.sessions.deaf:  # nobody can obey what nobody was told
            self.taken_back |= taken_back
        self.sessions.deaf = False
        if self.rng.random() < 0.1:
            self.sessions.tell("s", records)  # after a change of owner a watch may see some again

    def turn(self) -> None:
        if self.rig.channel.collect(self.rig.now):
            self.rig.wakes += 1
        self.take(self.rig.flush())

    def take(self, frames: list[dict[str, Any]]) -> None:
        for frame in frames:
            self.client.take(frame)
            shown = str(frame)
            assert not any(word in shown for word in self.taken_back), "retracted, and shown afterwards"

    def reconnect(self) -> None:
        self.rig.channel.close()
        self.rig = self.connect()
        if self.rng.random() < 0.1:
            self.client = Reading()
            self.rig.channel.subscribe(point(self.rng.choice((None, 0))))
        else:
            self.client.caught_up = 0
            self.rig.channel.subscribe(point(self.client.offset or 0, self.client.epoch))

    async def step(self) -> None:
        match self.rng.randrange(10):
            case 0 | 1 | 2 | 3:
                await self.append()
            case 4 | 5:
                self.turn()
            case 6 | 7:
                if self.client.offset is not None:
                    self.rig.channel.ack(S, self.rng.randrange(self.client.offset + 1), self.rig.now)
            case 8:
                self.reconnect()
            case 9:
                self.source.feeds.sweep()
        for _ in range(self.rng.randrange(3)):
            await asyncio.sleep(0)

    async def finish(self) -> None:
        """The client reads on to the end, acknowledging as a good client does. One more event, which is not missed,
        tells a reader of those that were, and shows that it is live."""
        await self.round()
        await self.append(deaf=False)
        for _ in range(500):
            if self.client.offset == self.top and self.client.caught_up:
                return
            await self.round()
        raise AssertionError(f"the client stands still at {self.client.offset} of {self.top}")

    async def round(self) -> None:
        self.take(await self.rig.run())
        if self.client.offset is not None:
            self.rig.channel.ack(S, self.client.offset, self.rig.now)


@example(seed=889, window=10, steps=12)  # a retraction that the watch missed, before one that it saw
@example(seed=1515, window=10, steps=6)
@settings(max_examples=effort(100, 300))
@given(seed=st.integers(0, 2**32), window=st.integers(1, 40), steps=st.integers(1, 60))
def test_the_client_sees_the_log_whatever_happens(seed: int, window: int, steps: int) -> None:
    async def run() -> None:
        rng = random.Random(seed)
        sessions = await memory_sessions(jittery(rng))
        history = History(sessions, rng, window)
        await history.start()
        for _ in range(steps):
            await history.step()
        await history.finish()
        assert history.client.text == history.text
        assert history.source.tasks.failures == 0
        history.rig.channel.close()
        await history.source.settle()
        assert len(history.source.feeds) == 0
        assert (history.rig.window.events, history.rig.window.bytes) == (0, 0)

    asyncio.run(run())
