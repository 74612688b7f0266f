"""The answering end: who is welcome, what a slow reader costs, and what is left when a guest goes."""

from __future__ import annotations

import asyncio

from actors.cluster.versions import OURS
from actors.peer import frames as pf
from actors.peer.links import LinkLimits
from actors.peer.wire import Wire
from sessions.model import commands as cm
from sessions.model.types import CommandId, SessionId, SessionKey
from tests.support.cluster.harness import ALICE, Cluster, advance, cluster, until
from tests.support.virtual_time import outcome, settled, virtual

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


@virtual
async def test_a_link_speaks_the_newest_protocol_that_both_know_and_an_older_peer_its_own() -> None:
    async with cluster(replicas=1) as made:
        endpoint = made.replicas["r1"].replica.endpoint
        member, own = made.replicas["r1"].replica.membership.member, endpoint.runtime.identity
        assert member is not None
        oldest, newest = OURS

        def visitors() -> list[pf.LinkedPeer]:
            return [peer for peer in endpoint.peers() if peer.name.startswith("visitor")]

        for proposed, speaks, spoken in (
            (1, None, 1),  # from before there were ranges: it speaks what it proposes
            (oldest, (oldest, newest), newest),
            (newest, (newest, newest + 1), newest),
        ):
            hello = pf.PeerHello(proposed, "gateway", f"visitor{spoken}", *own, member.fingerprint, speaks, "0.3.0")
            wire = Wire(await made.network.dial("visitor", "r1"), LinkLimits())
            await wire.now(hello)
            (welcome,) = await wire.first()
            assert isinstance(welcome, pf.Welcome) and (welcome.protocol, welcome.speaks) == (spoken, OURS)
            running = asyncio.ensure_future(wire.run(lambda frames: None))
            await settled()
            assert visitors() == [pf.LinkedPeer("gateway", f"visitor{spoken}", spoken, "0.3.0")]
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await until(lambda: not visitors())


@virtual
async def test_a_peer_that_is_too_far_away_is_refused_with_what_to_upgrade() -> None:
    async with cluster(replicas=1) as made:
        own = made.replicas["r1"].replica.runtime.identity
        for speaks, older in (((OURS[1] + 1, OURS[1] + 2), "r1"), ((OURS[0] - 2, OURS[0] - 1), "g9")):
            wire = Wire(await made.network.dial("visitor", "r1"), LinkLimits())
            await wire.now(pf.PeerHello(speaks[0], "gateway", "g9", *own, "f", speaks))
            (refusal,) = await wire.first()
            assert isinstance(refusal, pf.PeerRefusal) and refusal.code == "protocol"
            assert refusal.message.endswith(f"upgrade {older} first, one release at a time")


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
    """Its link carries little at a time, its replica leaves much out, and the journal has it."""
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
