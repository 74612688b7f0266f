"""The dialing end: answers find their callers, a link's end reaches all who wait, and readers give credit back."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from actors.cluster.versions import OURS
from actors.peer import frames as pf
from actors.peer.client import Connector, PeerClient
from actors.peer.links import LinkDown, LinkLimits, Replaced
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
from tests.support.cluster.memory_network import MemoryCarrier, MemoryNetwork
from tests.support.virtual_time import advance, outcome, until, virtual

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
        connect = Connector(
            self.network.dialer("near"),
            kind="gateway",
            name="g",
            limits=LinkLimits(**limits),
        )
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
