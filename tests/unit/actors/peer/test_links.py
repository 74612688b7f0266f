"""Links between members: dialled, judged, served."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import msgspec
import pytest

from actors.cluster.versions import OURS
from actors.peer import frames as pf
from actors.peer.client import Connector, PeerClient
from actors.peer.links import LinkDown, LinkLimits, Links, PeerLink, Replaced
from actors.peer.wire import Wire
from sessions.model import commands as cm
from sessions.model.errors import NotFound, Overloaded, Unavailable
from sessions.model.events import Record, SessionDeleted
from sessions.model.inspection import AboutTokenizer
from sessions.model.request import request_of
from sessions.model.types import (
    LOCAL_PRINCIPAL,
    ActivationId,
    CallId,
    CommandId,
    Epoch,
    ReplicaId,
    SessionId,
    SessionKey,
    TenantId,
    UnixMs,
)
from sessions.ports import Member, Owner
from tests.support.cluster.harness import ALICE, Cluster, cluster
from tests.support.cluster.memory_network import MemoryCarrier, MemoryNetwork
from tests.support.virtual_time import advance, outcome, settled, until, virtual

MEMBER = Member(replica=ReplicaId("r1"), incarnation="i", address="far", model="m", fingerprint="f")
OWNER = Owner(ReplicaId("r1"), "i", ActivationId("a"))
KEY = SessionKey(TenantId("local"), SessionId("s"))
REQUEST = request_of(LOCAL_PRINCIPAL, cm.SessionDelete(id=CommandId("c"), session=KEY.session))
LIMITS = LinkLimits()
WELCOME = pf.Welcome(pf.PEER_PROTOCOL, "r1", "i", "f")


class Replica:
    """The answering end, in a test's hand: it welcomes as it is set, and keeps what it gets."""

    def __init__(self, *first: pf.Frame) -> None:
        self.first = first
        self.got: list[pf.AnyFrame] = []
        self.wire: Wire
        self.network = MemoryNetwork()
        self.network.listen("far", self._accept)

    async def _accept(self, carrier: MemoryCarrier, _: str) -> None:
        self.wire = Wire(carrier, LinkLimits())
        self.got += await self.wire.first()
        await self.wire.now(*self.first)
        await self.wire.run(lambda frames: self.got.extend(f for f in frames if not isinstance(f, pf.Heartbeat)))

    async def dial(self, member: Member = MEMBER, **limits: int) -> PeerClient:
        connect = Connector(self.network.dialer("near"), kind="gateway", name="g", limits=LinkLimits(**limits))
        return await connect(member)

    async def gets(self, kind: type[pf.Frame]) -> pf.Frame:
        await until(lambda: any(isinstance(frame, kind) for frame in self.got))
        return next(frame for frame in self.got if isinstance(frame, kind))


class Watcher:
    def __init__(self) -> None:
        self.seen: list[object] = []

    def attached(self, owner: Owner, epoch: Epoch, top: int) -> None:
        self.seen.append(("attached", top))

    def events(self, epoch: Epoch, records: tuple[Record, ...]) -> None:
        self.seen.append(("events", records[-1].offset))

    def behind(self, epoch: Epoch, top: int) -> None:
        self.seen.append(("behind", top))

    def detached(self, owner: Owner | None, *, top: int) -> None:
        self.seen.append(("detached", top))


@virtual
async def test_a_handshake_that_fails_says_why() -> None:
    for first, kind, reason in (
        (pf.PeerRefusal("wrong_process", "another"), Replaced, "refused"),
        (pf.PeerRefusal("fingerprint", "unlike"), LinkDown, "rejected"),
        (pf.Welcome(pf.PEER_PROTOCOL + 1, "r1", "i", "f", (pf.PEER_PROTOCOL + 1, 9)), LinkDown, "rejected"),
        (pf.Heartbeat(), LinkDown, "rejected"),
    ):
        replica = Replica(first)
        down = await outcome(replica.dial())
        assert isinstance(down, kind) and isinstance(down, LinkDown) and down.reason == reason
        await replica.network.close()


@virtual
async def test_each_member_is_offered_the_newest_protocol_that_it_knows_and_none_that_it_does_not() -> None:
    for protocols, offered in ((None, 1), (OURS, OURS[1]), ((OURS[1], OURS[1] + 1), OURS[1])):
        replica = Replica(pf.Welcome(offered, "r1", "i", "f"))
        link = await replica.dial(member=msgspec.structs.replace(MEMBER, protocols=protocols))
        (hello,) = replica.got
        assert isinstance(hello, pf.PeerHello) and (hello.protocol, hello.speaks) == (offered, OURS)
        assert link.protocol == offered
        if offered == 1:  # it would not read the frame, and end the link for all its sessions
            approve = cm.ToolApprove(id=CommandId("c"), session=SessionId("s"), call_id=CallId("x"))
            refused = await outcome(link.execute(request_of(LOCAL_PRINCIPAL, approve), activate=True))
            assert isinstance(refused, NotFound) and refused.code == "call_not_found" and len(replica.got) == 1
            unread = await outcome(link.inspect(LOCAL_PRINCIPAL, AboutTokenizer()))
            assert isinstance(unread, Unavailable) and len(replica.got) == 1
        await replica.network.close()
    far = msgspec.structs.replace(MEMBER, protocols=(OURS[1] + 1, OURS[1] + 2))
    down = await outcome(Replica(WELCOME).dial(member=far))
    assert isinstance(down, LinkDown) and down.reason == "rejected" and "upgrade g first" in down.detail


@virtual
async def test_a_replica_that_was_taken_for_dead_early_is_given_the_whole_time_the_next_time() -> None:
    replica = Replica(WELCOME)
    connect = Connector(replica.network.dialer("near"), kind="gateway", name="g", limits=LIMITS)
    loop, back = asyncio.get_running_loop(), replica.network.lane("far", "near")
    lasted: list[float] = []
    for pause_s in (0.0, 0.0, LIMITS.patient_s):
        await advance(pause_s)
        link = await connect(MEMBER)
        running = asyncio.ensure_future(link.run())
        await advance(1.0)
        back.hold()
        began = loop.time()
        assert (await running).reason == "keepalive"
        lasted.append(loop.time() - began)
        back.release()
    assert lasted[0] < 0.6 and lasted[1] > 1.2 and lasted[2] < 0.6
    await replica.network.close()


@virtual
async def test_the_end_of_a_link_reaches_all_who_wait_and_too_many_are_refused() -> None:
    replica = Replica(WELCOME)
    link = await replica.dial(requests=1)
    running = asyncio.create_task(link.run())
    waiting = asyncio.create_task(link.execute(REQUEST, activate=True))
    await replica.gets(pf.Execute)
    with pytest.raises(Overloaded):
        await link.holds(KEY, 1)
    replica.network.cut("far")
    for work in (waiting, link.holds(KEY, 1)):
        assert isinstance(await outcome(work), LinkDown)
    with pytest.raises(LinkDown):
        link.attach(KEY, Watcher())
    assert (await running).reason == "reset"
    await replica.network.close()


@virtual
async def test_a_watch_gets_what_is_its_own_and_gives_credit_back() -> None:
    replica, watcher = Replica(WELCOME), Watcher()
    link = await replica.dial(watch_bytes=400)
    running = asyncio.create_task(link.run())
    number = link.attach(KEY, watcher)
    await replica.gets(pf.Attach)
    record = Record(4, UnixMs(0), SessionDeleted())
    replica.wire.post(pf.Attached(number, OWNER, Epoch("e"), 3))
    replica.wire.post(pf.Events(number, Epoch("e"), 100, (record,)))
    replica.wire.post(pf.Events(number + 1, Epoch("e"), 100, (record,)))
    replica.wire.post(pf.SessionDeactivated(number, Epoch("e"), 4, None))
    credit = await replica.gets(pf.Credit)
    assert isinstance(credit, pf.Credit) and (number, 100) in credit.taken
    assert watcher.seen == [("attached", 3), ("events", 4), ("detached", 4)]
    link.detach(number)
    assert not any(isinstance(frame, pf.Detach) for frame in replica.got), "it had ended already"
    running.cancel()
    await replica.network.close()


def member(name: str = "r1", incarnation: str = "i1") -> Member:
    return Member(replica=ReplicaId(name), incarnation=incarnation, address=name, model="m", fingerprint="f")


class FakeLink:
    """A link whose end the test decides."""

    def __init__(self, member: Member) -> None:
        self.member = member
        self.ended: asyncio.Future[LinkDown] = asyncio.get_running_loop().create_future()

    async def run(self) -> LinkDown:
        return await self.ended


class World:
    """What dialing gives, and what is told of links."""

    def __init__(self) -> None:
        self.answers: list[LinkDown | None] = []  # of the next dials; afterwards `always`
        self.always: LinkDown | None = None
        self.dials = 0
        self.made: list[FakeLink] = []
        self.told: list[str] = []
        self._tasks: list[asyncio.Task[None]] = []
        self.links = Links(self._connect, spawn=self._spawn, limits=LinkLimits())
        self.links.add_listener(self)
        self.links.update([member()])

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.append(task)
        return task

    async def _connect(self, member: Member) -> PeerLink:
        self.dials += 1
        await asyncio.sleep(0.001)
        answer = self.answers.pop(0) if self.answers else self.always
        if answer is not None:
            raise answer
        link = FakeLink(member)
        self.made.append(link)
        return link  # type: ignore[return-value]

    def link_down(self, link: PeerLink, reason: LinkDown) -> None:
        self.told.append(f"down {reason.reason}")

    def suspected(self, member: Member) -> None:
        self.told.append("suspected")

    def reachable(self, member: Member) -> None:
        self.told.append("reachable")

    async def close(self) -> None:
        await self.links.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


@virtual
async def test_another_process_in_its_place_is_a_suspicion_and_is_not_dialed_again() -> None:
    world = World()
    world.always = Replaced("somebody else is here")
    assert isinstance(await outcome(world.links.get(member())), LinkDown)
    assert world.links.suspect(member())
    await advance(10.0)
    assert world.dials <= 2
    world.always = None
    again = member(incarnation="i2")
    world.links.update([again])
    await world.links.get(again)
    assert not world.links.suspect(again)
    await world.close()


@virtual
async def test_a_suspect_that_left_the_view_while_it_was_dialed_is_dialed_when_it_is_back() -> None:
    world = World()
    world.always = LinkDown("refused")
    with pytest.raises(LinkDown):
        await world.links.get(member())
    dials = world.dials
    while world.dials == dials:
        await advance(0.001)
    world.links.update([])  # in the middle of the next one
    await advance(60.0)
    world.always = None
    world.links.update([member()])
    await advance(60.0)
    assert not world.links.suspect(member()) and world.told[-1] == "reachable"
    await world.close()


@virtual
async def test_who_waits_for_a_dial_that_a_close_ends_is_told() -> None:
    world = World()
    waiting = asyncio.create_task(outcome(world.links.get(member())))
    await asyncio.sleep(0)
    await world.links.close()
    down = await waiting
    assert isinstance(down, LinkDown) and down.reason == "closed"
    await world.close()


NARROW = LinkLimits(watch_bytes=4_000, events_bytes=6_000, requests=10)


class Visitor:
    """A gateway that speaks frames itself, and credits only when it is told to."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self.heard: list[pf.AnyFrame] = []
        self.running = asyncio.ensure_future(wire.run(self._deliver))

    def _deliver(self, frames: list[pf.AnyFrame]) -> None:
        self.heard += [frame for frame in frames if not isinstance(frame, pf.Heartbeat)]

    def events_of(self, watch: int) -> list[pf.Events]:
        return [frame for frame in self.heard if isinstance(frame, pf.Events) and frame.watch == watch]

    def bytes_of(self, *watches: int) -> int:
        return sum(frame.num_bytes for watch in watches for frame in self.events_of(watch))

    async def hears(self, kind: type[pf.Frame]) -> pf.Frame:
        await until(lambda: any(isinstance(frame, kind) for frame in self.heard))
        return next(frame for frame in self.heard if isinstance(frame, kind))


async def visitor(made: Cluster, hello: pf.PeerHello | None = None) -> Visitor:
    runtime = made.replicas["r1"].replica.runtime
    member = made.replicas["r1"].replica.membership.member
    assert member is not None
    wire = Wire(await made.network.dial("visitor", "r1"), LinkLimits())
    await wire.now(hello or pf.PeerHello(1, "gateway", "v", *runtime.identity, member.fingerprint))
    (said,) = await wire.first()
    assert isinstance(said, pf.Welcome)
    return Visitor(wire)


def narrow() -> object:
    limits = Cluster().replica_limits
    return type(limits)(**{**{f: getattr(limits, f) for f in limits.__struct_fields__}, "links": NARROW})


async def talking(made: Cluster, session: str = "one", tokens: int = 200) -> SessionKey:
    key = await made.gateways["g1"].create(session)
    await made.gateways["g1"].say(key, tokens=tokens)
    return key


@virtual
async def test_a_reader_that_does_not_take_is_left_behind_and_told_how_far_the_log_went() -> None:
    async with cluster(replicas=1, replica_limits=narrow()) as made:
        key = await talking(made)
        slow = await visitor(made)
        slow.wire.post(pf.Attach(1, key))
        await made.at_rest(key)
        await advance(0.1)
        assert NARROW.watch_bytes <= slow.bytes_of(1) <= NARROW.watch_bytes + 2_000
        assert not any(isinstance(frame, pf.Behind) for frame in slow.heard)
        slow.wire.post(pf.Credit(((0, slow.bytes_of(1)), (1, slow.bytes_of(1)))))
        behind = await slow.hears(pf.Behind)
        assert isinstance(behind, pf.Behind) and behind.top == made.top(key)
        before = len(slow.events_of(1))
        await made.gateways["g1"].say(key, tokens=1)
        await made.at_rest(key)
        await until(lambda: len(slow.events_of(1)) > before)
        assert slow.events_of(1)[before].records[0].offset == behind.top + 1


@virtual
async def test_a_real_gateway_that_reads_slowly_still_shows_everything() -> None:
    """The link carries little at a time, the replica leaves much out, and the journal has it."""
    async with cluster(replicas=1, replica_limits=narrow()) as made:
        key = await made.gateways["g1"].create("one")
        reader = made.gateways["g1"].read(key)
        lane = made.lane("r1", "g1")
        await made.gateways["g1"].say(key, tokens=300)
        for _ in range(8):
            lane.hold()
            await advance(0.7)
            lane.release()
            await settled()
        await reader.reaches(await made.at_rest(key))


@virtual
async def test_requests_beyond_the_bound_are_refused_and_the_others_answered() -> None:
    async with cluster(replicas=1, replica_limits=narrow()) as made:
        busy = await visitor(made)
        for number in range(1, 31):
            busy.wire.post(pf.Execute(number, ALICE, cm.SessionCreate(id=CommandId(f"c{number}")), True))
        await until(lambda: len(busy.heard) == 30)
        refused = [frame for frame in busy.heard if isinstance(frame, pf.Failed)]
        done = [frame for frame in busy.heard if isinstance(frame, pf.Executed)]
        assert len(done) == 10 and {frame.code for frame in refused} == {"overloaded"}
        assert all(frame.retryable for frame in refused)


@virtual
async def test_a_command_for_a_session_that_was_not_placed_here_does_not_activate_it() -> None:
    async with cluster(replicas=1) as made:
        key = await talking(made, tokens=1)
        await made.at_rest(key)
        await made.replicas["r1"].replica.runtime.passivate(key)
        guest = await visitor(made)
        warm = cm.SessionWarm(id=CommandId("c"), session=key.session)
        guest.wire.post(pf.Execute(1, ALICE, warm, False))
        assert await guest.hears(pf.MovedTo) == pf.MovedTo(1, None)
        guest.wire.post(pf.Execute(2, ALICE, warm, True))
        done = await guest.hears(pf.Executed)
        assert isinstance(done, pf.Executed) and done.owner is not None and done.owner.replica == "r1"


@virtual
async def test_a_guest_that_goes_takes_its_watches_along_and_leaves_its_commands() -> None:
    async with cluster(replicas=1) as made:
        runtime = made.replicas["r1"].replica.runtime
        key = await talking(made)
        guest = await visitor(made)
        for number in range(1, 4):
            guest.wire.post(pf.Attach(number, key))
        await until(lambda: runtime.readers(key) == 3)
        other = SessionKey(ALICE.tenant, SessionId("two"))
        guest.wire.post(pf.Execute(9, ALICE, cm.SessionCreate(id=CommandId("c9"), session=other.session), True))
        await advance(0.001)
        made.network.cut("visitor")
        await until(lambda: runtime.readers(key) == 0)
        await until(lambda: made.top(other) == 1)
        await until(lambda: made.replicas["r1"].replica.endpoint.num_peers == 1)  # the gateway's


@virtual
async def test_whoever_says_nothing_or_something_else_is_not_kept() -> None:
    async with cluster(replicas=1, gateways=0) as made:
        host = made.replicas["r1"].replica.endpoint
        silent = await made.network.dial("visitor", "r1")
        rude = await made.network.dial("visitor", "r1")
        await rude.send(pf.pack([pf.encode(pf.Heartbeat())]))
        for carrier in (rude, silent):
            assert isinstance(await outcome(carrier.receive()), Exception)
        assert host.num_peers == 0
