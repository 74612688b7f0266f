"""What goes wrong, and what operators do. Each seed has its own few kinds of it, for a few seconds; then all is mended.

Draining, handing off and restarting in good order are no faults: in a seed with nothing else nobody may notice a thing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random

from actors.handoff.source import HandoffAbandoned
from sessions.model.errors import EngineLost, SessileError
from sessions.model.types import SessionKey
from tests.simulation.client import Client
from tests.simulation.members import Members
from tests.simulation.nodes import GatewayNode, ReplicaNode
from tests.simulation.stores import Trouble


class Nemesis:
    def __init__(self, cluster: Members, clients: list[Client]) -> None:
        self.cluster = cluster
        self.clients = clients
        self.world = cluster.world
        self.rng: Random = self.world.chance("nemesis")
        self.plan: list[str] = []
        rng = self.rng
        operators = rng.sample(sorted(OPERATIONS), rng.randint(0, 2))
        faults = [] if rng.random() < 0.2 else rng.sample(sorted(FAULTS.keys() - LATER), rng.randint(1, 4))
        faults += [each for each in sorted(LATER) if faults and self.world.chance(each).random() < 0.2]
        self.kinds = list(self.world.bent_on) or operators + faults

    async def work(self, seconds: float) -> None:
        """Does its worst for so long."""
        until = self.world.loop.now + seconds
        while self.kinds and (pause_s := self.rng.expovariate(1 / 0.7)) + self.world.loop.now < until:
            await asyncio.sleep(pause_s)
            kind = self.rng.choice(self.kinds)
            self.plan.append(kind)
            self.world.trace("nemesis", kind)
            self.world.count("nemesis_" + kind)
            if kind in FAULTS:
                self.world.faultless = False
                self.world.faults.add(kind)
                await FAULTS[kind](self)
            else:
                await OPERATIONS[kind](self)

    async def mend(self) -> None:
        """Nothing is broken any more: whoever stood still goes on, whoever died is back."""
        cluster = self.cluster
        self.world.trace("nemesis", "mends everything")
        for trouble in (cluster.journal_trouble, cluster.directory_trouble):
            clear(trouble)
        for lane in cluster.network.lanes():
            lane.slow_s = 0.0
            lane.release()
        nodes: list[ReplicaNode | GatewayNode] = [*cluster.replicas.values(), *cluster.gateways.values()]
        for node in nodes:
            self._wake(node)
        cluster.books.traps.clear()
        cluster.books.on_seal = None
        await self._restore()
        self.world.healed = True

    async def _restore(self) -> None:
        cluster = self.cluster
        for name, replica in list(cluster.replicas.items()):
            if replica.gone:
                await cluster.add_replica(name)
        for name, gateway in list(cluster.gateways.items()):
            if gateway.gone:
                await cluster.add_gateway(name)

    # -- choosing ---------------------------------------------------------------------------------------------------

    def replica(self) -> ReplicaNode | None:
        """A living one: rather one with sessions."""
        living = [node for node in self.cluster.replicas.values() if node.up]
        holding = [node for node in living if node.replica.runtime.actors]
        return self.rng.choice(holding or living) if living else None

    def gateway(self) -> GatewayNode | None:
        living = [node for node in self.cluster.gateways.values() if node.up]
        return self.rng.choice(living) if living else None

    def places(self) -> list[str]:
        return [*self.cluster.replicas, *self.cluster.gateways]

    def later(self, seconds: float, what: Callable[[], object]) -> None:
        self.world.loop.in_world(seconds, what)

    def back(self, name: str) -> None:
        """A process that died is started again, after a while, perhaps only when all is mended."""
        if self.rng.random() < 0.7:
            add = self.cluster.add_replica if name in self.cluster.replicas else self.cluster.add_gateway
            self.later(self.rng.random() * 2.5, lambda: self.cluster.begin(self._again(name, add)))

    async def _again(self, name: str, add: Callable[[str], Awaitable[object]]) -> None:
        node = self.cluster.replicas.get(name) or self.cluster.gateways.get(name)
        if node is not None and node.gone and not self.world.healed:
            await add(name)

    # -- faults -----------------------------------------------------------------------------------------------------

    async def kill_replica(self) -> None:
        if (node := self.replica()) is not None:
            node.kill()
            self.back(node.name)

    async def lose_engine(self) -> None:
        """The engine of a replica dies, and is started again after a while."""
        if (node := self.replica()) is not None:
            without = self._without_engine(node, self.rng.random() * 3.0)
            node.moves.append(self.cluster.begin_in(node.process, without))

    async def _without_engine(self, node: ReplicaNode, seconds: float) -> None:
        node.engine.lose(EngineLost("engine_lost", "The engine has died."))
        await asyncio.sleep(seconds)
        node.engine.recover()

    async def kill_after_persist(self) -> None:
        """Dies between the moment that something is durable and the moment that it knows."""
        if (node := self.replica()) is not None:

            def strike() -> None:
                if not node.gone:
                    node.kill()
                    self.back(node.name)

            self.cluster.books.traps[node.name] = strike

    async def kill_gateway(self) -> None:
        if (node := self.gateway()) is not None:
            node.kill()
            self.back(node.name)

    async def _stop(self, node: ReplicaNode | GatewayNode | None, longest_s: float) -> None:
        if node is not None and not node.process.still:
            self.world.trace(node.name, "stands still")
            node.stop()
            self.later(0.1 + self.rng.random() ** 2 * longest_s, lambda: self._wake(node))

    def _wake(self, node: ReplicaNode | GatewayNode) -> None:
        if node.process.standing:  # not one that died meanwhile
            self.world.trace(node.name, "wakes")
            node.wake()

    async def pause_replica(self) -> None:
        await self._stop(self.replica(), 9.0)

    async def pause_gateway(self) -> None:
        await self._stop(self.gateway(), 4.0)

    async def cut_links(self) -> None:
        if (node := self.replica()) is not None:
            for other in self.places():
                if self.rng.random() < 0.6:
                    self.cluster.network.cut(node.name, other)

    def _hold(self, one: str, other: str, seconds: float, *, one_way: bool) -> None:
        network = self.cluster.network
        lanes = [network.lane(one, other)] + ([] if one_way else [network.lane(other, one)])
        for lane in lanes:
            lane.held = True
        breaks = self.rng.random() < 0.5

        def heal() -> None:
            if breaks:
                network.cut(one, other)
            for lane in lanes:
                lane.release()

        self.later(seconds, heal)

    async def partition(self) -> None:
        """Two places do not reach each other, or one does not reach the other."""
        one, other = self.rng.sample(self.places(), 2)
        self._hold(one, other, self.rng.random() * 5, one_way=self.rng.random() < 0.5)

    async def isolate(self) -> None:
        """A replica is cut off from everybody, and perhaps from the stores."""
        if (node := self.replica()) is not None:
            seconds = self.rng.random() * 6
            for other in self.places():
                if other != node.name:
                    self._hold(node.name, other, seconds, one_way=False)
            for trouble in (self.cluster.journal_trouble, self.cluster.directory_trouble):
                if self.rng.random() < 0.6:
                    trouble.cut |= {node.name}
                    self.later(seconds, lambda trouble=trouble: setattr(trouble, "cut", trouble.cut - {node.name}))  # type: ignore[misc]

    async def break_hand_off(self) -> None:
        """In the middle of a hand-off, with the source sealed: its target dies, stands still or is not reached."""

        def strike(source: str, target: str) -> None:
            node, network = self.cluster.replicas[target], self.cluster.network
            match self.rng.randrange(4):
                case 0:
                    node.kill()
                    self.back(target)
                case 1:
                    node.stop()
                    self.later(self.rng.random() * 7, lambda: self._wake(node))
                case 2:
                    network.cut(source, target)
                case _:
                    self._hold(source, target, self.rng.random() * 7, one_way=self.rng.random() < 0.5)

        self.cluster.books.on_seal = lambda source, target: self.later(0.0, lambda: strike(source, target))
        await self.hand_off()

    async def slow_network(self) -> None:
        for lane in self.cluster.network.lanes():
            if self.rng.random() < 0.5:
                lane.slow_s = self.rng.random() * 0.3
        self.later(self.rng.random() * 3, self._fast)

    def _fast(self) -> None:
        for lane in self.cluster.network.lanes():
            lane.slow_s = 0.0

    async def _trouble(self, trouble: Trouble, longest_s: float, **what: float) -> None:
        for name, value in what.items():
            setattr(trouble, name, value)

        def over() -> None:
            for name in what:
                setattr(trouble, name, Trouble.__struct_defaults__[Trouble.__struct_fields__.index(name)])

        self.later(self.rng.random() * longest_s, over)

    async def journal_away(self) -> None:
        await self._trouble(self.cluster.journal_trouble, 5.0, away=True)

    async def journal_loses(self) -> None:
        rng = self.rng
        await self._trouble(
            self.cluster.journal_trouble,
            4.0,
            request_lost=rng.random() * 0.1,
            answer_lost=rng.random() * 0.15,
            late=rng.random() * 0.15,
            twice=rng.random() * 0.3,
        )

    async def slow_disk(self) -> None:
        await self._trouble(self.cluster.journal_trouble, 4.0, slow_s=self.rng.choice([0.02, 0.1, 0.6]))

    async def directory_away(self) -> None:
        await self._trouble(self.cluster.directory_trouble, 8.0, away=True)

    async def directory_loses(self) -> None:
        rng = self.rng
        await self._trouble(
            self.cluster.directory_trouble,
            5.0,
            request_lost=rng.random() * 0.3,
            answer_lost=rng.random() * 0.3,
            twice=rng.random() * 0.5,
            slow_s=rng.choice([0.0, 0.05, 0.5]),
        )

    async def directory_flushed(self) -> None:
        self.cluster.directory.empty()

    async def cut_clients(self) -> None:
        for client in self.clients:
            if self.rng.random() < 0.6:
                client.drop()

    async def silence_clients(self) -> None:
        """Half-open: nothing arrives any more and nobody is told; the client finds out by itself."""
        for client in self.clients:
            if client.wire is not None and self.rng.random() < 0.4:
                client.wire.silent = True
                self.later(0.5 + self.rng.random(), client.drop)

    # -- operations -------------------------------------------------------------------------------------------------

    async def hand_off(self) -> None:
        """Moves a session on purpose, in mid-answer if there is one."""
        if (node := self.replica()) is None:
            return
        like = self.cluster.config.model_at(node.name)
        others = [other for other in self.cluster.replicas.values() if other.up and other is not node]
        targets = [other.member() for other in others if other.engine.info.model == like]
        actors = node.replica.runtime.actors
        speaking = [actor.key for actor in actors if actor.open]
        if not actors or not targets:
            return
        key = self.rng.choice(speaking or [actor.key for actor in actors])
        target = self.rng.choice(targets)
        if target is not None:
            node.moves.append(self.cluster.begin_in(node.process, self._hand_off(node, key, target)))

    async def _hand_off(self, node: ReplicaNode, key: SessionKey, target: object) -> None:
        try:
            await node.replica.handoff.hand_off(key, target)  # type: ignore[arg-type]
            self.world.count("handed_off")
        except (HandoffAbandoned, SessileError) as reason:
            self.world.trace(node.name, "keeps", key.session, str(reason))
            self.world.count("stayed_here")

    async def drain(self) -> None:
        """A rolling restart of one replica: it is emptied, ends, and comes back as another process."""
        node = self.replica()
        living = [other for other in self.cluster.replicas.values() if other.up]
        if node is None or len(living) < 2 or any(other.draining for other in self.cluster.replicas.values()):
            return
        node.draining = True
        drained = self.cluster.begin_in(node.process, node.replica.drain())

        async def restart() -> None:
            await asyncio.wait((drained,), timeout=30.0)
            if not node.gone:
                self.world.count("drained")
                await node.end()
                if self.cluster.replicas[node.name] is node:  # nobody has been sooner
                    await self.cluster.add_replica(node.name)

        self.cluster.begin(restart())

    async def restart_gateway(self) -> None:
        """A gateway goes in good order; its clients go elsewhere."""
        node = self.gateway()
        if node is not None and len([other for other in self.cluster.gateways.values() if other.up]) > 1:

            async def restart() -> None:
                await node.end()
                if self.cluster.gateways[node.name] is node:
                    await self.cluster.add_gateway(node.name)

            self.cluster.begin(restart())


def clear(trouble: Trouble) -> None:
    for name, default in zip(Trouble.__struct_fields__, Trouble.__struct_defaults__, strict=True):
        setattr(trouble, name, default)


Deed = Callable[[Nemesis], Awaitable[None]]
_FAULTS = (
    "kill_replica kill_after_persist lose_engine kill_gateway pause_replica pause_gateway cut_links partition isolate"
    " break_hand_off slow_network"
    " journal_away journal_loses slow_disk directory_away directory_loses directory_flushed cut_clients silence_clients"
)
FAULTS: dict[str, Deed] = {name: getattr(Nemesis, name) for name in _FAULTS.split()}
LATER = {"lose_engine"}  # drawn by themselves: what seeds did before stays as it was
OPERATIONS: dict[str, Deed] = {name: getattr(Nemesis, name) for name in ("hand_off", "drain", "restart_gateway")}
