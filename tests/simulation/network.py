"""What lies between processes: streams that arrive in order and whole or break, and lanes that let nothing through.

A `Lane` is one direction between two places. Held, it keeps what is sent (a partition, one way or both); released, it
lets everything through in order, as TCP's retransmission does. A connection that is cut loses what is under way. What
is on its way does not stop with the process that sent it, and waits for one that stands still.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

from actors.peer.frames import unpack
from actors.peer.links import LinkDown
from tests.simulation.loop import Process
from tests.simulation.world import World

Accept = Callable[["Carrier", str], Awaitable[None]]


class Lane:
    """One direction between two places."""

    def __init__(self, world: World, rng: Random) -> None:
        self.held = False
        self.slow_s = 0.0
        self._world = world
        self._rng = rng
        self._waiting: list[tuple[Callable[..., None], tuple[Any, ...]]] = []

    def delay_s(self) -> float:
        return 0.0001 + self._rng.random() * 0.0008 + self._rng.random() * self.slow_s

    def carry(self, at: float, arrive: Callable[..., None], *args: Any) -> None:
        """Has something arrive at a time."""
        self._world.loop.in_world(at - self._world.loop.now, self._arrive, arrive, args)

    def _arrive(self, arrive: Callable[..., None], args: tuple[Any, ...]) -> None:
        if self.held:
            self._waiting.append((arrive, args))
        else:
            arrive(*args)

    def release(self) -> None:
        self.held = False
        waiting, self._waiting = self._waiting, []
        for arrive, args in waiting:
            self._arrive(arrive, args)


class Carrier:
    """One end of a stream between processes: `actors.peer.links.Carrier`."""

    def __init__(self, lane: Lane, network: Network, source: str, target: str) -> None:
        self.other: Carrier
        self.source, self.target = source, target
        self.down: LinkDown | None = None
        self._lane = lane  # on which this end sends
        self._network = network
        self._arrived: deque[bytes] = deque()
        self._arriving_at = 0.0
        self._news = asyncio.Event()

    async def send(self, message: bytes) -> None:
        if self.down is not None:
            raise self.down
        self._network.saw(self, message)
        self._at(self.other.arrive, message)

    def _at(self, arrive: Callable[..., None], *args: Any) -> None:
        """What is sent later arrives later."""
        now = self._network.world.loop.now
        self._arriving_at = max(self._arriving_at, now + self._lane.delay_s())
        self._lane.carry(self._arriving_at, arrive, *args)

    def arrive(self, message: bytes) -> None:
        if self.down is None:
            self._network.heard(self, message)
            self._arrived.append(message)
            self._news.set()

    async def receive(self) -> bytes:
        while not self._arrived:
            if self.down is not None:
                raise self.down
            self._news.clear()
            await self._news.wait()
        return self._arrived.popleft()

    async def close(self) -> None:
        if self.down is None:
            self._at(self.other.end, LinkDown("reset", "the other end closed"))
        self.end(LinkDown("closed"))

    def end(self, down: LinkDown) -> None:
        if self.down is None:
            self.down = down
            self._network.forget(self)
            self._news.set()

    def broke(self) -> None:
        """This end's process died: the other learns of it, if the way is free."""
        self._at(self.other.end, LinkDown("reset", "the connection broke"))
        self.end(LinkDown("closed"))


class Network:
    """Addresses, who listens there, and the lanes between them."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.on_frames: Callable[[str, str, list[Any], bool], None] = lambda source, target, frames, arrived: None
        self.watched: frozenset[str] = frozenset()  # places between which frames are looked at
        self._rng = world.chance("network")
        self._lanes: dict[tuple[str, str], Lane] = {}
        self._serving: dict[str, list[asyncio.Task[None]]] = {}  # by the process that was dialed
        self._listeners: dict[str, tuple[Process, Accept]] = {}
        self._carriers: dict[str, dict[Carrier, None]] = {}  # by the place of their end

    def lane(self, source: str, target: str) -> Lane:
        lane = self._lanes.get((source, target))
        if lane is None:
            lane = self._lanes[source, target] = Lane(self.world, self._rng)
        return lane

    def lanes(self) -> list[Lane]:
        return list(self._lanes.values())

    def listen(self, address: str, process: Process, accept: Accept) -> None:
        self._listeners[address] = process, accept

    def dialer(self, source: str) -> Dialer:
        return Dialer(self, source)

    def saw(self, carrier: Carrier, message: bytes) -> None:
        if carrier.source in self.watched and carrier.target in self.watched:
            self.on_frames(carrier.source, carrier.target, unpack(message), False)

    def heard(self, carrier: Carrier, message: bytes) -> None:
        if carrier.source in self.watched and carrier.target in self.watched:
            self.on_frames(carrier.target, carrier.source, unpack(message), True)

    def forget(self, carrier: Carrier) -> None:
        self._carriers.get(carrier.source, {}).pop(carrier, None)

    def stop_serving(self, name: str) -> None:
        """Cancels what still serves links of a process that has ended in order, as `PeerServer.stop` does."""
        for serving in self._serving.pop(name, ()):
            serving.cancel()

    async def dial(self, source: str, target: str) -> Carrier:
        there, back = self.lane(source, target), self.lane(target, source)
        loop = self.world.loop
        answered: asyncio.Future[Carrier | LinkDown] = loop.create_future()

        def tell(result: Carrier | LinkDown) -> None:
            if not answered.done():
                answered.set_result(result)
            elif isinstance(result, Carrier):  # nobody waits for it any more
                result.broke()

        def reached() -> None:
            found = self._listeners.get(target)
            if found is None or found[0].dead:
                back.carry(loop.now + back.delay_s(), tell, LinkDown("refused", f"nobody listens at {target}"))
                return
            process, accept = found
            near, far = Carrier(there, self, source, target), Carrier(back, self, target, source)
            near.other, far.other = far, near
            self._carriers.setdefault(source, {})[near] = None
            self._carriers.setdefault(target, {})[far] = None

            async def serve() -> None:
                await accept(far, source)

            self._serving.setdefault(target, []).append(process.spawn(serve()))
            back.carry(loop.now + back.delay_s(), tell, near)

        there.carry(loop.now + there.delay_s(), reached)
        result = await answered
        if isinstance(result, LinkDown):
            raise result
        return result

    async def knock(self, source: str, target: str) -> None:
        """What a host answers, whether its process runs or stands still."""
        there, back = self.lane(source, target), self.lane(target, source)
        loop = self.world.loop
        answered: asyncio.Future[bool] = loop.create_future()

        def tell(listens: bool) -> None:
            if not answered.done():
                answered.set_result(listens)

        def reached() -> None:
            found = self._listeners.get(target)
            back.carry(loop.now + back.delay_s(), tell, found is not None and not found[0].dead)

        there.carry(loop.now + there.delay_s(), reached)
        if not await answered:
            raise LinkDown("refused", f"nobody listens at {target}")

    def unlisten(self, address: str) -> None:
        self._listeners.pop(address, None)

    def died(self, address: str) -> None:
        """The process at an address is gone: nobody listens there, its connections break."""
        self.unlisten(address)
        for carrier in list(self._carriers.get(address, {})):
            carrier.broke()

    def cut(self, one: str, other: str) -> None:
        """The connections between two places break, and what is under way is lost."""
        for carrier in list(self._carriers.get(one, {})):
            if carrier.target == other:
                carrier.other.end(LinkDown("reset", "the connection broke"))
                carrier.end(LinkDown("reset", "the connection broke"))

    def open_at(self, address: str) -> int:
        return len(self._carriers.get(address, {}))


class Dialer:
    """`actors.peer.links.Dialer` for one place."""

    def __init__(self, network: Network, source: str) -> None:
        self._network = network
        self._source = source

    async def dial(self, address: str) -> Carrier:
        return await self._network.dial(self._source, address)

    async def knock(self, address: str) -> None:
        await self._network.knock(self._source, address)
