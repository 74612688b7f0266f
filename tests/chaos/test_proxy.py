"""The fault proxy does what it says: otherwise the chaos runs would prove nothing."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from tests.support.chaos.proxy import BUFFER_BYTES, Flow, Proxy

PATIENCE_S = 60.0


class Echo:
    """A server that sends back what it gets, and remembers it and how its connections ended."""

    def __init__(self) -> None:
        self.got = bytearray()
        self.ends: asyncio.Queue[str] = asyncio.Queue()
        self.port = 0
        self._tasks: set[asyncio.Task[None]] = set()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Echo]:
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                self.got += data
                writer.write(data)
                await writer.drain()
            self.ends.put_nowait("end")
        except ConnectionError:
            self.ends.put_nowait("reset")
        finally:
            writer.close()


@pytest.fixture
async def echo() -> AsyncIterator[Echo]:
    async with Echo().running() as echo:
        yield echo


@pytest.fixture
async def proxy(echo: Echo) -> AsyncIterator[Proxy]:
    async with Proxy(("127.0.0.1", echo.port), seed=7) as proxy:
        yield proxy


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def of(cls, proxy: Proxy) -> Client:
        return cls(*await asyncio.open_connection(proxy.host, proxy.port))

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def get(self, length: int) -> bytes:
        async with asyncio.timeout(PATIENCE_S):
            return await self.reader.readexactly(length)

    async def ask(self, data: bytes) -> bytes:
        await self.send(data)
        return await self.get(len(data))

    async def rest(self) -> tuple[bytes, str]:
        """Everything until the connection ends, and how it does."""
        got = bytearray()
        try:
            async with asyncio.timeout(PATIENCE_S):
                while data := await self.reader.read(65536):
                    got += data
            return bytes(got), "end"
        except ConnectionError:
            return bytes(got), "reset"


async def when(condition: Callable[[], bool]) -> None:
    """Waits until a plain condition holds, giving the loop its turns meanwhile."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110 - counters of the proxy, which signal nothing
            await asyncio.sleep(0)


async def silent(client: Client, seconds: float = 0.1) -> bool:
    """Whether nothing at all comes, not even an end, for a while."""
    try:
        async with asyncio.timeout(seconds):
            await client.reader.read(1)
    except TimeoutError:
        return True
    return False


async def test_without_faults_bytes_go_through_unchanged_and_the_end_too(proxy: Proxy, echo: Echo) -> None:
    data = random.Random(1).randbytes(3_000_000)
    client = await Client.of(proxy)
    asking = asyncio.ensure_future(client.send(data))
    assert await client.get(len(data)) == data
    await asking
    client.writer.write_eof()
    assert await client.rest() == (b"", "end")
    assert echo.got == data
    assert await echo.ends.get() == "end"
    assert (proxy.counts.bytes_up, proxy.counts.bytes_down) == (len(data), len(data))
    await when(lambda: proxy.open_connections == 0)


async def test_delay_keeps_the_order(proxy: Proxy) -> None:
    client = await Client.of(proxy)
    await client.ask(b"warm")
    proxy.set(up=Flow(delay_s=0.1), down=Flow(delay_s=0.05, jitter_s=0.05))
    for n in range(20):
        await client.send(b"%02d" % n)
    assert await client.get(40) == b"".join(b"%02d" % n for n in range(20))


async def test_a_black_hole_swallows_in_silence_and_heals(proxy: Proxy, echo: Echo) -> None:
    client = await Client.of(proxy)
    await client.ask(b"before")
    proxy.set(up=Flow(hole=True))
    await client.send(b"lost")
    await when(lambda: proxy.counts.swallowed == 4)
    assert await silent(client)
    proxy.heal()
    assert await client.ask(b"after") == b"after"
    assert echo.got == b"beforeafter"


async def test_a_hole_may_be_one_way(proxy: Proxy, echo: Echo) -> None:
    client = await Client.of(proxy)
    proxy.set(down=Flow(hole=True))
    await client.send(b"heard")
    await when(lambda: echo.got == b"heard")
    assert await silent(client)


async def test_a_hole_takes_what_was_delayed_and_even_the_end(proxy: Proxy, echo: Echo) -> None:
    client = await Client.of(proxy)
    await client.ask(b"x")
    proxy.set(up=Flow(delay_s=0.05))
    await client.send(b"late")
    client.writer.write_eof()
    proxy.set(up=Flow(hole=True))
    await when(lambda: proxy.counts.swallowed == 4)
    assert await silent(client)
    assert echo.ends.empty()
    proxy.heal()
    assert await echo.ends.get() == "end"
    assert echo.got == b"x"


async def test_a_reset_is_one_for_both_sides(proxy: Proxy, echo: Echo) -> None:
    client = await Client.of(proxy)
    await client.ask(b"x")
    proxy.reset()
    assert await client.rest() == (b"", "reset")
    assert await echo.ends.get() == "reset"
    await when(lambda: proxy.open_connections == 0)
    assert await (await Client.of(proxy)).ask(b"again") == b"again"


async def test_a_close_is_an_end_for_both_sides(proxy: Proxy, echo: Echo) -> None:
    client = await Client.of(proxy)
    await client.ask(b"x")
    proxy.close()
    assert await client.rest() == (b"", "end")
    assert await echo.ends.get() == "end"


async def test_half_open_leaves_the_client_in_the_dark(proxy: Proxy, echo: Echo) -> None:
    client = await Client.of(proxy)
    await client.ask(b"x")
    proxy.half_open("client")
    assert await echo.ends.get() == "reset"
    await client.send(b"hello?")
    assert await silent(client)
    assert echo.got == b"x"
    client.writer.close()
    await when(lambda: proxy.open_connections == 0)


async def test_half_open_leaves_the_target_in_the_dark(proxy: Proxy, echo: Echo) -> None:
    client = await Client.of(proxy)
    await client.ask(b"x")
    proxy.half_open("target")
    assert await client.rest() == (b"", "reset")
    assert proxy.open_connections == 1
    assert echo.ends.empty()


async def test_a_stalled_flow_pushes_back_on_the_sender(proxy: Proxy, echo: Echo) -> None:
    client = await Client.of(proxy)
    await client.ask(b"x")
    proxy.set(up=Flow(stalled=True))
    data = bytes(64_000_000)  # more than all buffers on the way
    sending = asyncio.ensure_future(client.send(data))
    draining = asyncio.ensure_future(client.get(len(data)))
    await when(lambda: client.writer.transport.get_write_buffer_size() > BUFFER_BYTES)
    held = client.writer.transport.get_write_buffer_size()
    assert await asyncio.wait([sending], timeout=0.2) == (set(), {sending})
    assert client.writer.transport.get_write_buffer_size() <= held
    assert echo.got == b"x"
    proxy.heal()
    await asyncio.wait_for(sending, PATIENCE_S)
    assert await draining == data


async def cuts(seed: int, target: int, how: str) -> list[int]:
    """How much of 1,000 bytes each of 20 connections gets before it is cut."""
    found = []
    async with Proxy(("127.0.0.1", target), seed=seed) as proxy:
        proxy.set(down=Flow(cut_within_bytes=900, cut_by=how))  # type: ignore[arg-type]
        for _ in range(20):
            client = await Client.of(proxy)
            await client.send(bytes(1000))
            got, end = await client.rest()
            assert end == ("reset" if how == "reset" else "end")
            found.append(len(got))
        assert proxy.counts.cuts == 20
        assert proxy.counts.bytes_down == sum(found) or how == "reset"
    return found


async def test_cuts_come_at_random_bytes_and_a_seed_repeats_them(echo: Echo) -> None:
    first = await cuts(1, echo.port, "close")
    assert all(1 <= length <= 900 for length in first)
    assert len(set(first)) > 10
    assert await cuts(1, echo.port, "close") == first
    assert await cuts(2, echo.port, "close") != first
    assert len(await cuts(1, echo.port, "reset")) == 20


async def test_a_cut_counts_from_when_it_was_set(proxy: Proxy) -> None:
    client = await Client.of(proxy)
    await client.ask(bytes(5000))
    proxy.set(up=Flow(cut_within_bytes=1))
    await client.send(b"ab")
    assert (await client.rest())[1] == "reset"
    assert proxy.counts.bytes_up == 5001


async def test_new_connections_are_refused_and_open_ones_stay(proxy: Proxy) -> None:
    client = await Client.of(proxy)
    await client.ask(b"x")
    await proxy.refuse()
    with pytest.raises(ConnectionRefusedError):
        await Client.of(proxy)
    assert await client.ask(b"y") == b"y"
    await proxy.start()
    assert await (await Client.of(proxy)).ask(b"z") == b"z"


async def test_a_target_that_is_away_is_a_reset_for_the_client(echo: Echo) -> None:
    async with Proxy(("127.0.0.1", 1)) as proxy:
        client = await Client.of(proxy)
        assert (await client.rest())[1] == "reset"
        assert proxy.counts.refused_by_target == 1


async def test_unix_sockets_on_both_sides(tmp_path: Path) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write((await reader.readline()).upper())
        writer.close()

    server = await asyncio.start_unix_server(serve, str(tmp_path / "target"))
    async with Proxy(str(tmp_path / "target"), listen=str(tmp_path / "front")):
        client = Client(*await asyncio.open_unix_connection(str(tmp_path / "front")))
        await client.send(b"hello\n")
        assert await client.rest() == (b"HELLO\n", "end")
    server.close()


async def test_stopping_ends_everything(echo: Echo) -> None:
    async with Proxy(("127.0.0.1", echo.port)) as proxy:
        clients = [await Client.of(proxy) for _ in range(5)]
        proxy.set(up=Flow(stalled=True))
        for client in clients:
            await client.send(b"x")
    for client in clients:
        assert (await client.rest())[0] == b""
    assert proxy.open_connections == 0
