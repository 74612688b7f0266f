"""The relay: sent once, later where that is asked for, and never for ever."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from persistence.memory.push import MemoryPush
from persistence.memory.store import MemoryStore
from sessions.metrics import Metrics
from sessions.model.errors import Forbidden, Unavailable
from sessions.model.push import GRACE_MS, KEPT_MS, SUBSCRIPTIONS_MAX, PushDelivery, PushSubscription, QuietHours
from sessions.model.types import UnixMs
from tests.support.stores.journals import ACME, NOW
from tests.support.stores.push_rows import a_device, noted
from transport.push.relay import CLAIM_MS, IN_FLIGHT_MAX, OF_ONE_USER_MAX, RETRY_MAX_MS, RETRY_MS, PushRelay
from transport.push.send_result import SendResult


class Sender:
    def __init__(self, *results: SendResult | Exception) -> None:
        self.results = list(results)
        self.sent: list[PushDelivery] = []

    async def send(self, delivery: PushDelivery, to: PushSubscription, now: UnixMs) -> SendResult:
        self.sent.append(delivery)
        result = self.results.pop(0) if self.results else SendResult("sent")
        if isinstance(result, Exception):
            raise result
        return result


class World:
    def __init__(self, *results: SendResult | Exception) -> None:
        self.now = UnixMs(NOW + GRACE_MS)
        self.store, self.sender = MemoryStore(), Sender(*results)
        self.push = MemoryPush(self.store.database)
        self.relay = PushRelay(self.push, self.sender, now_ms=lambda: self.now, metrics=Metrics())

    async def with_notice(self, **more: Any) -> World:
        await self.store.open()
        await self.push.subscribe(a_device("phone", **more))
        await noted(self.store.journal)
        return self

    @property
    def due(self) -> list[int]:
        return [due_at - self.now for due_at, _ in self.store.database.push_outbox.values()]


async def test_retries_wait_longer_each_time_and_end() -> None:
    world = await World(*[SendResult("later")] * 20).with_notice()
    waits = []
    for _ in range(14):
        await world.relay.relay_batch()
        waits += world.due
        world.now = UnixMs(world.now + world.due[0])
    assert waits[:3] == [RETRY_MS, 2 * RETRY_MS, 4 * RETRY_MS] and max(waits) == RETRY_MAX_MS
    world.now = UnixMs(NOW + KEPT_MS)
    num_sent = len(world.sender.sent)
    await world.relay.relay_batch()
    assert world.due == [] and len(world.sender.sent) == num_sent, "too old to be of use"


@pytest.mark.parametrize("failure", [Unavailable("push_service_away", "?"), SendResult("later")])
async def test_a_service_that_is_away_costs_no_push(failure: SendResult | Exception) -> None:
    world = await World(failure).with_notice()
    await world.relay.relay_batch()
    world.now = UnixMs(world.now + RETRY_MS)
    await world.relay.relay_batch()
    assert len(world.sender.sent) == 2 and world.due == []


@pytest.mark.parametrize("failure", [Forbidden("forbidden", "inside"), SendResult("refused")])
async def test_what_will_never_do_is_not_tried_again(failure: SendResult | Exception) -> None:
    world = await World(failure).with_notice()
    await world.relay.relay_batch()
    assert world.due == [] and len(await world.push.subscriptions(ACME, "ü")) == 1


async def test_quiet_hours_put_it_off() -> None:
    minute = (NOW + GRACE_MS) // 60_000 % (24 * 60)
    quiet = QuietHours(start=(minute - 1) % 1440, end=(minute + 10) % 1440, time_zone="UTC")
    world = await World().with_notice(quiet=quiet)
    await world.relay.relay_batch()
    assert world.sender.sent == [] and 0 < world.due[0] <= 10 * 60_000
    world.now = UnixMs(world.now + world.due[0])
    await world.relay.relay_batch()
    assert len(world.sender.sent) == 1


async def test_a_bug_with_one_row_costs_that_attempt_alone() -> None:
    world = await World(ValueError("Port out of range")).with_notice()
    await noted(world.store.journal, "t")
    await world.relay.relay_batch()
    assert len(world.sender.sent) == 2 and world.due == [CLAIM_MS]


async def test_a_device_that_does_not_answer_is_asked_once_for_all_its_sessions() -> None:
    world = await World(SendResult("later"), SendResult("sent")).with_notice()
    await world.relay.relay_batch()
    for session in ("t", "u", "v"):
        await noted(world.store.journal, session)
    await world.relay.relay_batch()
    assert len(world.sender.sent) == 1 and world.due == [RETRY_MS] * 4
    world.now = UnixMs(world.now + RETRY_MS)
    await world.relay.relay_batch()
    assert len(world.sender.sent) == 5 and world.due == []


class Hanging(Sender):
    """Answers nobody but Ana."""

    def __init__(self) -> None:
        super().__init__()
        self.on_their_way = Counter[str]()
        self.full = asyncio.Event()
        self.told = asyncio.Event()

    async def send(self, delivery: PushDelivery, to: PushSubscription, now: UnixMs) -> SendResult:
        if to.user == "ana":
            self.told.set()
            return SendResult("sent")
        self.on_their_way[to.user] += 1
        if self.on_their_way.total() in (2 * OF_ONE_USER_MAX, IN_FLIGHT_MAX):
            self.full.set()
        await asyncio.Event().wait()
        raise AssertionError


async def hanging_world(users: Sequence[str]) -> tuple[World, Hanging]:
    """Each of them has all the devices that a user may have, and four answers to be told of."""
    world, sender = World(), Hanging()
    await world.store.open()
    world.relay = PushRelay(world.push, sender, now_ms=lambda: world.now, metrics=Metrics())
    for user in users:
        for number in range(SUBSCRIPTIONS_MAX):
            await world.push.subscribe(a_device(f"{user}-{number}", user))
        for session in range(4):
            await noted(world.store.journal, f"{user}-{session}", user=user)
    return world, sender


async def test_what_never_answers_holds_up_nobody_else_and_a_user_has_a_share_at_a_time() -> None:
    world, sender = await hanging_world(["ü", "ben"])
    running = asyncio.create_task(world.relay.run())
    try:
        async with asyncio.timeout(60):
            await sender.full.wait()
        await world.push.subscribe(a_device("anas", "ana"))
        await noted(world.store.journal, "anas", user="ana")
        async with asyncio.timeout(60):
            await sender.told.wait()
        assert sender.on_their_way == {"ü": OF_ONE_USER_MAX, "ben": OF_ONE_USER_MAX}
        put_off = [due for due in world.due if due < CLAIM_MS]
        assert len(put_off) == 2 * 3 * SUBSCRIPTIONS_MAX and set(put_off) == {RETRY_MS}
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_so_many_are_on_their_way_from_one_relay() -> None:
    users = [str(number) for number in range(IN_FLIGHT_MAX // OF_ONE_USER_MAX + 2)]
    world, sender = await hanging_world(users)
    running = asyncio.create_task(world.relay.run())
    try:
        async with asyncio.timeout(60):
            while sender.on_their_way.total() < IN_FLIGHT_MAX:
                sender.full.clear()
                await sender.full.wait()
        for _ in range(100):
            await asyncio.sleep(0)
        assert sender.on_their_way.total() == IN_FLIGHT_MAX
        assert max(sender.on_their_way.values()) == OF_ONE_USER_MAX
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
