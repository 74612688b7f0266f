"""A TCP proxy that misbehaves on purpose: delay, loss of everything, half-open, reset, slow reading, little bandwidth,
cuts at random bytes. From a test:

    async with Proxy(("127.0.0.1", port)) as proxy:
        client.connect(proxy.host, proxy.port)
        proxy.set(down=Flow(delay_s=0.2))      # from now on, for open connections too
        proxy.set(up=Flow(hole=True))          # a one-way partition: nothing arrives, nobody is told
        proxy.reset()                          # RST on every connection
        proxy.heal()

`up` is from the client to the target, `down` back. What a flow decides holds for bytes that have not left the proxy
yet, so a hole swallows what was being delayed. Bytes are never changed and never reordered. Each direction of a
connection buffers at most `BUFFER_BYTES` here; beyond that the sender feels it (a slow reader is a small rate).

The same seed draws the same cuts for the same connections, numbered in the order in which they came.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import struct
from collections import deque
from types import TracebackType
from typing import Final, Literal

import msgspec

Direction = Literal["up", "down"]
Side = Literal["client", "target"]

CHUNK_BYTES: Final = 16 * 1024
BUFFER_BYTES: Final = 64 * 1024
SLICE_S: Final = 0.01  # a limited rate is kept over stretches of this length


class Flow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How one direction behaves. The default is a good network.

    `delay_s` and up to `jitter_s` more pass before a chunk goes on. `rate_bytes_s` is the bandwidth. `hole` swallows
    everything and keeps the connection open. `stalled` passes nothing on and reads no more once its buffer is full.
    `cut_within_bytes` N ends each connection after 1 to N more bytes of this direction, by RST or (`cut_by`) by FIN.
    """

    delay_s: float = 0.0
    jitter_s: float = 0.0
    rate_bytes_s: float | None = None
    hole: bool = False
    stalled: bool = False
    cut_within_bytes: int | None = None
    cut_by: Literal["reset", "close"] = "reset"


GOOD: Final = Flow()


class Counts(msgspec.Struct):
    """Since the proxy started. Bytes are those that were passed on."""

    connections: int = 0
    refused_by_target: int = 0
    cuts: int = 0
    bytes_up: int = 0
    bytes_down: int = 0
    swallowed: int = 0


class Proxy:
    """Use it as an async context. `target` and `listen` are (host, port), or a path for a unix socket."""

    def __init__(
        self, target: tuple[str, int] | str, *, listen: tuple[str, int] | str = ("127.0.0.1", 0), seed: int = 0
    ) -> None:
        self._target = target
        self._listen = listen
        self._seed = seed
        self._server: asyncio.Server | None = None
        self._connections: dict[Connection, None] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.flows: dict[Direction, Flow] = {"up": GOOD, "down": GOOD}
        self.changed = asyncio.Event()  # set, and replaced, at every change of the flows
        self.counts = Counts()

    @property
    def host(self) -> str:
        assert not isinstance(self._listen, str)
        return self._listen[0]

    @property
    def port(self) -> int:
        assert not isinstance(self._listen, str)
        return self._listen[1]

    @property
    def open_connections(self) -> int:
        return len(self._connections)

    async def __aenter__(self) -> Proxy:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        """Listens. After `refuse` it listens at the same place again."""
        if self._server is not None:
            return
        if isinstance(self._listen, str):
            self._server = await asyncio.start_unix_server(self._accept, self._listen, limit=CHUNK_BYTES)
        else:
            host, port = self._listen
            self._server = await asyncio.start_server(self._accept, host, port, limit=CHUNK_BYTES)
            self._listen = (host, self._server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        await self.refuse()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # -- faults -------------------------------------------------------------------------------------

    def set(self, *, up: Flow | None = None, down: Flow | None = None) -> None:
        """Changes a direction, or both, of every connection there is and will be."""
        self.flows = {"up": up or self.flows["up"], "down": down or self.flows["down"]}
        changed, self.changed = self.changed, asyncio.Event()
        changed.set()

    def heal(self) -> None:
        self.set(up=GOOD, down=GOOD)

    def reset(self) -> None:
        """Ends every connection with RST, to both sides."""
        for connection in list(self._connections):
            connection.end("reset")

    def close(self) -> None:
        """Ends every connection with FIN, to both sides."""
        for connection in list(self._connections):
            connection.end("close")

    def half_open(self, side: Side) -> None:
        """Leaves `side` of every connection alone with an open, silent one: the other is reset, and nobody tells."""
        for connection in list(self._connections):
            connection.leave_alone(side)

    async def refuse(self) -> None:
        """Refuses new connections until `start`. Open ones stay."""
        if self._server is not None:
            self._server.close()
            self._server = None

    # -- connections --------------------------------------------------------------------------------

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.counts.connections += 1
        task = asyncio.get_running_loop().create_task(self._carry(self.counts.connections, reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _carry(self, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if isinstance(self._target, str):
                target = await asyncio.open_unix_connection(self._target, limit=CHUNK_BYTES)
            else:
                target = await asyncio.open_connection(*self._target, limit=CHUNK_BYTES)
        except OSError:
            self.counts.refused_by_target += 1
            _hang_up(writer, "reset")
            return
        except asyncio.CancelledError:
            _hang_up(writer, "close")
            raise
        connection = Connection(self, number, self._seed, (reader, writer), target)
        self._connections[connection] = None
        try:
            await connection.run()
        finally:
            del self._connections[connection]


Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Connection:
    def __init__(self, proxy: Proxy, number: int, seed: int, client: Stream, target: Stream) -> None:
        self._proxy = proxy
        self._ended = asyncio.Event()
        self._sides: dict[Side, Stream] = {"client": client, "target": target}
        self._alone: Side | None = None
        self._pipes: dict[Direction, Pipe] = {
            "up": Pipe(self, proxy, "up", client[0], target[1], random.Random(f"{seed}/{number}/up")),
            "down": Pipe(self, proxy, "down", target[0], client[1], random.Random(f"{seed}/{number}/down")),
        }

    async def run(self) -> None:
        """Returns when both directions are done or the connection was ended."""
        work = [asyncio.ensure_future(pipe.run()) for pipe in self._pipes.values()]
        ended = asyncio.ensure_future(self._ended.wait())
        both = asyncio.ensure_future(asyncio.wait(work))
        try:
            await asyncio.wait([both, ended], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in (*work, both, ended):
                each.cancel()
            await asyncio.gather(*work, both, ended, return_exceptions=True)
            self.end("close")

    def end(self, how: Literal["reset", "close"]) -> None:
        if not self._ended.is_set():
            self._ended.set()
            for side, (_, writer) in self._sides.items():
                if side == self._alone or self._alone is None:
                    _hang_up(writer, how)

    def leave_alone(self, side: Side) -> None:
        other: Side = "target" if side == "client" else "client"
        self._alone = side
        for pipe in self._pipes.values():
            pipe.silenced = True
        _hang_up(self._sides[other][1], "reset")

    def left(self, side: Side) -> None:
        """`side` has gone while the connection was half open: with the one that was left alone, it is over."""
        if side == self._alone:
            self.end("close")


class Pipe:
    """One direction of one connection: reads into a bounded buffer, and passes on what is due."""

    def __init__(
        self,
        connection: Connection,
        proxy: Proxy,
        direction: Direction,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        rng: random.Random,
    ) -> None:
        self._connection = connection
        self._proxy = proxy
        self._direction: Direction = direction
        self._source: Side = "client" if direction == "up" else "target"
        self._reader = reader
        self._writer = writer
        self._rng = rng
        self._buffer: deque[tuple[float, bytes]] = deque()  # (due, chunk); an empty chunk is the end
        self._buffered = 0
        self._moved = asyncio.Condition()
        self._flow: Flow | None = None
        self._until_cut: int | None = None
        self.silenced = False  # half-open: read and drop for ever

    async def run(self) -> None:
        reading = asyncio.ensure_future(self._read())
        try:
            await self._pass_on()
        except OSError:
            # The receiver is gone. Its loss is the sender's, unless this is a half-open connection.
            if not self.silenced:
                self._connection.end("reset")
            await reading
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)

    async def _read(self) -> None:
        loop = asyncio.get_running_loop()
        due = 0.0
        while True:
            try:
                chunk = await self._reader.read(CHUNK_BYTES)
            except OSError:
                if not self.silenced:
                    self._connection.end("reset")
                    return
                chunk = b""
            if self.silenced:
                self._proxy.counts.swallowed += len(chunk)
                if not chunk:
                    self._connection.left(self._source)
                    await asyncio.Event().wait()  # this was the side that was reset: the other must not notice
                continue
            flow = self._proxy.flows[self._direction]
            due = max(due, loop.time() + flow.delay_s + self._rng.uniform(0, flow.jitter_s))
            async with self._moved:
                await self._moved.wait_for(lambda: self._buffered < BUFFER_BYTES)
                self._buffer.append((due, chunk))
                self._buffered += len(chunk)
                self._moved.notify_all()
            if not chunk:
                return

    async def _pass_on(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            async with self._moved:
                await self._moved.wait_for(lambda: bool(self._buffer))
            due, chunk = self._buffer[0]
            if due > loop.time():
                await asyncio.sleep(due - loop.time())
            flow = await self._unstalled()
            if self.silenced:
                await asyncio.Event().wait()
            if flow.hole and not chunk:
                await self._proxy.changed.wait()  # the end of a stream is swallowed too, until the hole is closed
                continue
            if not chunk:
                if self._writer.can_write_eof():
                    self._writer.write_eof()
                return
            piece = chunk if flow.rate_bytes_s is None else chunk[: max(1, int(flow.rate_bytes_s * SLICE_S))]
            cut = self._cut_after(flow, len(piece))
            if cut is not None:
                piece = piece[:cut]
            await self._take(len(piece))
            if flow.hole:
                self._proxy.counts.swallowed += len(piece)
            else:
                self._writer.write(piece)
                await self._writer.drain()
                self._count(len(piece))
            if cut is not None:
                self._proxy.counts.cuts += 1
                self._connection.end(flow.cut_by)
                return
            if flow.rate_bytes_s is not None:
                await asyncio.sleep(len(piece) / flow.rate_bytes_s)

    async def _unstalled(self) -> Flow:
        while (flow := self._proxy.flows[self._direction]).stalled:
            await self._proxy.changed.wait()
        return flow

    def _cut_after(self, flow: Flow, length: int) -> int | None:
        """How many bytes of the next `length` still go before the connection is cut; None: all, and no cut yet."""
        if flow is not self._flow:
            self._flow = flow
            within = flow.cut_within_bytes
            self._until_cut = None if within is None else self._rng.randint(1, within)
        if self._until_cut is None:
            return None
        if length >= self._until_cut:
            return self._until_cut
        self._until_cut -= length
        return None

    async def _take(self, length: int) -> None:
        """Removes so much from the front of the buffer."""
        due, chunk = self._buffer[0]
        async with self._moved:
            if length < len(chunk):
                self._buffer[0] = (due, chunk[length:])
            else:
                self._buffer.popleft()
            self._buffered -= length
            self._moved.notify_all()

    def _count(self, length: int) -> None:
        if self._direction == "up":
            self._proxy.counts.bytes_up += length
        else:
            self._proxy.counts.bytes_down += length


def _hang_up(writer: asyncio.StreamWriter, how: Literal["reset", "close"]) -> None:
    if how == "close":
        writer.close()
        return
    connected = writer.get_extra_info("socket")
    if connected is not None and connected.family != socket.AF_UNIX:
        with contextlib.suppress(OSError):  # closed already: there is nobody to send an RST to
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
