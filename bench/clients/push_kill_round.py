"""One answer in a cluster under virtual time, with a process killed at any place of it and of its push; and what a
device was told.

The push service is outside of all processes: what it was given stands, whoever dies. What a process says to it, and to
the outbox, passes its `Power`, before and after, like what it says to the journal.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any, Final, Literal, NamedTuple, TypeVar

from persistence.memory.journal import MemoryJournal
from persistence.memory.push import MemoryPush
from sessions.metrics import Metrics
from sessions.model.errors import SessileError
from sessions.model.push import (
    GRACE_MS,
    ApnsTarget,
    PushDelivery,
    PushId,
    PushStore,
    PushSubscription,
    push_id,
)
from sessions.model.types import SessionKey, TenantId, UnixMs
from tests.support.cluster.harness import (
    ALICE,
    JOURNAL_S,
    Cluster,
    GatewayNode,
    Power,
    advance,
    cluster,
    until,
    with_runtime,
)
from tests.support.doors.transport import Rig, Source
from transport.protocol.frames import ResumePoint
from transport.push.relay import CLAIM_MS, PushRelay
from transport.push.send_result import SendResult, notice_fields, notice_id
from transport.reading.feeds import Feeds
from transport.reading.log_reader import LogReader
from transport.tasks import Tasks

T = TypeVar("T")
Victim = Literal["owner", "other", "gateway"]
TRAVEL_S: Final = 0.003
AWAY_S: Final = 0.8  # until a device whose gateway died is at another one
TOKENS: Final = 12
IDS: Final = {"v", "id", "cause", "session", "response", "offset"}


class TellingService:
    """What devices are reached through: every message that arrives is told."""

    def __init__(self) -> None:
        self.told: list[dict[str, Any]] = []

    def of(self, key: SessionKey) -> Counter[str]:
        return Counter(str(each["id"]) for each in self.told if each["session"] == key.session)


class PoweredSender:
    """The way of one process to the push service."""

    def __init__(self, service: TellingService, power: Power) -> None:
        self._service, self._power = service, power

    async def send(self, delivery: PushDelivery, to: PushSubscription, now: UnixMs) -> SendResult:
        await self._power.passing(TRAVEL_S)
        self._service.told.append({**notice_fields(delivery), "id": notice_id(delivery)})
        await self._power.passing(TRAVEL_S)
        return SendResult("sent")


class PoweredPush:
    """The way of one process to the outbox."""

    def __init__(self, push: PushStore, power: Power) -> None:
        self._push, self._power = push, power

    async def _said(self, call: Callable[[], Any]) -> Any:
        await self._power.passing(JOURNAL_S / 3)
        result = await call()
        await self._power.passing()
        return result

    async def claim(self, now: UnixMs, *, until: UnixMs, limit: int) -> list[PushDelivery]:
        claimed: list[PushDelivery] = await self._said(lambda: self._push.claim(now, until=until, limit=limit))
        return claimed

    async def settle(self, delivery: PushDelivery) -> None:
        await self._said(lambda: self._push.settle(delivery))

    async def postpone(self, delivery: PushDelivery, until: UnixMs) -> None:
        await self._said(lambda: self._push.postpone(delivery, until))

    async def read_to(self, key: SessionKey, offset: int) -> None:
        await self._said(lambda: self._push.read_to(key, offset))

    async def unsubscribe(self, tenant: TenantId, user: str, push_id: PushId) -> bool:
        return bool(await self._said(lambda: self._push.unsubscribe(tenant, user, push_id)))

    async def subscriptions(self, tenant: TenantId, user: str) -> list[PushSubscription]:
        return await self._push.subscriptions(tenant, user)

    async def subscribe(self, subscription: PushSubscription) -> None:
        await self._push.subscribe(subscription)


class GatewaySource(Source):
    """What a channel needs of a gateway of the cluster."""

    def __init__(self, gateway: GatewayNode, push: PoweredPush) -> None:
        self.tasks = Tasks()
        self.feeds = Feeds(gateway.router, self._start_reading)
        self.journal = MemoryJournal(gateway.cluster.store)
        self.logs = LogReader(self.journal, now_ms=gateway.cluster.now_ms, replay_records_max=10_000)
        self.counts = {}
        self._push = push

    def _start_reading(self, key: SessionKey, offset: int) -> None:
        self.tasks.start(self._read_to(key, offset))

    async def _read_to(self, key: SessionKey, offset: int) -> None:
        try:
            await self._push.read_to(key, offset)
        except SessileError:
            return  # this gateway is dead


class ReadingDevice:
    """Reads a session through a gateway, and through the next one when that died."""

    def __init__(self, made: Cluster, key: SessionKey, push: PushStore) -> None:
        self.made, self.key, self.push = made, key, push
        self.powers: dict[str, Power] = {}
        self.position = 0
        self.task = asyncio.get_running_loop().create_task(self._read())

    async def _read(self) -> None:
        for name, gateway in self.made.gateways.items():
            power = self.powers[name] = Power(name)
            source = GatewaySource(gateway, PoweredPush(self.push, power))
            await source.journal.open()
            rig = Rig(source, principal=ALICE)
            while not power.dead:
                if self.key.session not in rig.channel.readers:
                    rig.channel.subscribe(ResumePoint(session=self.key.session, offset=self.position, epoch=None))
                for frame in rig.flush():
                    if frame["type"] == "resumed" and frame["mode"] != "gone":
                        self.position = frame["at"] if "at" in frame else frame["from"] - 1
                    if frame["type"] == "event":
                        self.position = frame["offset"]
                        rig.channel.ack(self.key.session, frame["offset"], rig.now)
                await advance(0.01)
            rig.channel.close()
            await advance(AWAY_S)


class PushVerdict(NamedTuple):
    """`told`: by the notice's id, how often a message came. `words`: what the victim had said by the end."""

    killed: bool
    words: int
    told: dict[str, int]
    last: str
    is_read: bool
    is_whole: bool

    @property
    def problem(self) -> str:
        """What must never be; "" where all is well."""
        if not self.is_whole:
            return "a push says more than ids, or the answer did not end"
        if self.is_read:
            return f"it was read, and told of {self.told}" if self.told else ""
        if len(self.told) != 1:
            return f"told of {len(self.told)} times"
        return "" if next(iter(self.told)).startswith(f"{self.last}:") else "told of another answer"


async def answer_with_a_kill(victim: Victim, at: int, *, is_read: bool, seed: int = 0) -> PushVerdict:
    """An answer whose owner, the other replica or the reader's gateway is killed: replicas at their `at`-th word to the
    world behind the user's message, gateways after `at` hundredths of a second."""
    service = TellingService()
    async with cluster(replicas=0, gateways=2, seed=seed) as made:
        made.replica_limits = with_runtime(made.replica_limits, push=True)
        push = MemoryPush(made.store)
        for name in ("r1", "r2"):
            node = await made.add_replica(name)
            sender, outbox = PoweredSender(service, node.power), PoweredPush(push, node.power)
            made.background(PushRelay(outbox, sender, now_ms=made.now_ms, metrics=Metrics()).run())
        target = ApnsTarget(token="0a" * 32)
        device_id = push_id(ALICE.tenant, "alice", target)
        await push.subscribe(
            PushSubscription(id=device_id, tenant=ALICE.tenant, user="alice", target=target, created_at=made.now_ms())
        )
        asked, key = made.gateways["g2"], await made.gateways["g2"].create("trip")
        device = ReadingDevice(made, key, push) if is_read else None
        await advance(0.1)
        owner = made.owner(key)
        doomed = made.replicas[owner if victim != "other" else next(name for name in made.replicas if name != owner)]
        begun, killed = doomed.power.passed, False

        async def on_pass(passed: int) -> None:
            nonlocal killed
            if victim != "gateway" and passed - begun == at and not killed:
                killed = True
                made.background(doomed.kill())
                doomed.power.kill()

        doomed.power.on_pass = on_pass
        ok = await asked.say(key, "nightjar", tokens=TOKENS)
        if victim == "gateway" and device is not None:
            await advance(at / 100)
            killed = True
            made.network.cut("g1")
            device.powers["g1"].kill()
        await made.at_rest(key)
        await advance(GRACE_MS / 1000 + 2)
        await until(lambda: not made.store.push_outbox, limit_s=3 * CLAIM_MS / 1000)
        if device is not None:
            await until(lambda: device.position >= made.top(key), limit_s=20.0)
            device.task.cancel()
            await asyncio.gather(device.task, return_exceptions=True)
        is_whole = all(set(each) == IDS and "nightjar" not in str(each) for each in service.told)
        words, told = doomed.power.passed - begun, dict(service.of(key))
        return PushVerdict(killed, words, told, str(ok.response_id), is_read, is_whole)
