"""A network in memory: the second implementation of `Carrier` and `Dialer`, for one process and for virtual time.

A `MemoryNetwork` is what lies between processes; each direction between two addresses is a `MemoryLane` with a delay
and a state that a test or the simulator sets: open, `held` (nothing arrives and nothing breaks, as with a lost network
or a stopped process) or cut. Messages of one carrier stay in order and whole, as on a real stream; a cut ends the
carriers on it.

Bound: `room_bytes` per carrier and direction; a sender waits for room.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final

from actors.peer.links import LinkDown

ORDER_S: Final = 1e-9  # timers of one moment have no order
Accept = Callable[["MemoryCarrier", str], Awaitable[None]]  # runs one link to its end; (carrier, address of the dialer)


class MemoryLane:
    """One direction between two addresses. `delay_s` is called for every message."""

    def __init__(self) -> None:
        self.delay_s: Callable[[], float] = lambda: 0.0
        self.held = False
        self._waiting: list[Callable[[], None]] = []

    def pass_on(self, arrive: Callable[[], None]) -> None:
        if self.held:
            self._waiting.append(arrive)
        else:
            arrive()

    def hold(self) -> None:
        """Holds back all messages until `release`."""
        self.held = True

    def release(self) -> None:
        """Lets everything that was held arrive now, in order."""
        self.held = False
        waiting, self._waiting = self._waiting, []
        for arrive in waiting:
            self.pass_on(arrive)


class MemoryCarrier:
    """One end of a connection; it creates the other end."""

    def __init__(self, lane: MemoryLane, back: MemoryLane, room_bytes: int, other: MemoryCarrier | None = None) -> None:
        """`lane` is the direction in which this end sends, `back` the one from which it receives. `room_bytes` bounds
        what is under way in each; `other` is the other end, None to create it."""
        self.other = other or MemoryCarrier(back, lane, room_bytes, self)
        self._lane = lane
        self._room_bytes = room_bytes
        self._under_way = 0  # bytes sent and not yet received at the other end
        self._arrived: deque[bytes] = deque()
        self._arriving_at = 0.0
        self._down: LinkDown | None = None
        self._news = asyncio.Event()
        self._room = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    async def send(self, message: bytes) -> None:
        while self._down is None and self._under_way and self._under_way + len(message) > self._room_bytes:
            self._room.clear()
            await self._room.wait()
        if self._down is not None:
            raise self._down
        self._under_way += len(message)
        delay_s = self._lane.delay_s()
        if delay_s <= 0 and self._arriving_at <= self._loop.time():
            self._lane.pass_on(lambda: self.other._arrive(message))
        else:  # later ones do not overtake it
            self._arriving_at = max(self._arriving_at + ORDER_S, self._loop.time() + delay_s)
            self._loop.call_at(self._arriving_at, self._lane.pass_on, lambda: self.other._arrive(message))

    def _arrive(self, message: bytes) -> None:
        if self._down is None:
            self._arrived.append(message)
            self._news.set()

    async def receive(self) -> bytes:
        while not self._arrived:
            if self._down is not None:
                raise self._down
            self._news.clear()
            await self._news.wait()
        message = self._arrived.popleft()
        self.other._taken(len(message))
        return message

    def _taken(self, num_bytes: int) -> None:
        self._under_way -= num_bytes
        self._room.set()

    async def close(self) -> None:
        self.end(LinkDown("closed"))
        # What was sent before arrives first, as on a real stream; then the other end learns of the close.
        delay_s = max(0.0, self._arriving_at - self._loop.time())
        self._loop.call_later(
            delay_s, self._lane.pass_on, lambda: self.other.end(LinkDown("reset", "the other end closed"))
        )

    def end(self, down: LinkDown) -> None:
        """Ends this side at once; messages that had arrived can still be received. Idempotent."""
        if self._down is None:
            self._down = down
            self._news.set()
            self._room.set()


class MemoryNetwork:
    """A network in memory: addresses, their listeners, and the lanes between them."""

    def __init__(self, *, room_bytes: int = 4 << 20) -> None:
        self._room_bytes = room_bytes
        self._listeners: dict[str, Accept] = {}
        self._tasks: dict[str, dict[asyncio.Task[None], None]] = {}
        self._lanes: dict[tuple[str, str], MemoryLane] = {}
        self._carriers: dict[str, list[MemoryCarrier]] = {}  # by either end's address

    def lane(self, source: str, target: str) -> MemoryLane:
        return self._lanes.setdefault((source, target), MemoryLane())

    def listen(self, address: str, accept: Accept) -> None:
        self._listeners[address] = accept

    def dialer(self, source: str) -> MemoryDialer:
        return MemoryDialer(self, source)

    async def knock(self, source: str, target: str) -> None:
        """Makes a round trip to a host, and waits while a lane is held. Raises LinkDown if nothing listens there."""
        for lane in (self.lane(source, target), self.lane(target, source)):
            arrived = asyncio.Event()
            asyncio.get_running_loop().call_later(lane.delay_s(), lane.pass_on, arrived.set)
            await arrived.wait()
        if target not in self._listeners:
            raise LinkDown("refused", f"nothing listens at {target}")

    async def dial(self, source: str, target: str) -> MemoryCarrier:
        await self.knock(source, target)
        accept = self._listeners[target]
        there, back = self.lane(source, target), self.lane(target, source)
        near = MemoryCarrier(there, back, self._room_bytes)
        far = near.other
        for address in (source, target):
            self._carriers.setdefault(address, []).extend((near, far))
        task = asyncio.get_running_loop().create_task(self._serve(accept, far, source))
        self._tasks.setdefault(target, {})[task] = None
        task.add_done_callback(lambda done: self._tasks[target].pop(done, None))
        return near

    async def _serve(self, accept: Accept, carrier: MemoryCarrier, source: str) -> None:
        await accept(carrier, source)

    def unlisten(self, address: str) -> list[asyncio.Task[None]]:
        """Stops accepting at an address; returns the tasks that still carry links there."""
        self._listeners.pop(address, None)
        return list(self._tasks.get(address, ()))

    def cut(self, address: str) -> None:
        """Breaks every connection from and to an address, as when its process is killed. New ones may begin."""
        for carrier in self._carriers.pop(address, []):
            carrier.end(LinkDown("reset", "the connection broke"))

    async def close(self) -> None:
        """Ends all links and listeners. Idempotent."""
        for address in list(self._listeners):
            for task in self.unlisten(address):
                task.cancel()
        tasks = [task for tasks in self._tasks.values() for task in tasks]
        await asyncio.gather(*tasks, return_exceptions=True)


class MemoryDialer:
    """The `Dialer` of one address on the network."""

    def __init__(self, network: MemoryNetwork, source: str) -> None:
        self._network = network
        self._source = source

    async def dial(self, address: str) -> MemoryCarrier:
        return await self._network.dial(self._source, address)

    async def knock(self, address: str) -> None:
        await self._network.knock(self._source, address)
