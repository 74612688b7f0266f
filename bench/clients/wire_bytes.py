"""What a token costs on the wire at 25 tokens/s: a reader on a slow link, one without, and chat/completions' SSE.

    python -m bench.clients.wire_bytes --answers 8 --tokens 400

Simulated engine. Every reader goes through a proxy in between, which counts the payload of TCP in both directions; its
handshake is left out: from the command to the end of the answer, the last events with the whole text included. A
token's added delay is how much later the reader with the roll-up was given it than a plain reader of the same session.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import time
from typing import Any, Final

import httpx
import msgspec
from websockets.asyncio.client import ClientConnection, connect
from websockets.typing import Subprotocol

from bench.support import is_faultless, report, run_bench
from tests.support.doors.server_process import ServerProcess
from tests.support.doors.wire_client import TERMINAL, connected, new_ulid
from tests.support.percentiles import percentile

PROMPT: Final = "Tell me a long story."
BYTES_A_TOKEN_MAX: Final = 12.0
DELAY_MS_MAX: Final = 200.0
MSGPACK: Final = Subprotocol("sessile.v1+msgpack")


class CountingProxy:
    """Hands bytes on between its clients and the server, and counts them."""

    def __init__(self, port: int) -> None:
        self.down = self.up = 0
        self._target = port
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> CountingProxy:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()

    @property
    def port(self) -> int:
        assert self._server is not None
        return int(self._server.sockets[0].getsockname()[1])

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        behind, before = await asyncio.open_connection("127.0.0.1", self._target)
        with contextlib.suppress(ConnectionError, asyncio.CancelledError):
            await asyncio.gather(self._pump(reader, before, "up"), self._pump(behind, writer, "down"))

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, name: str) -> None:
        try:
            while data := await source.read(65536):
                setattr(self, name, getattr(self, name) + len(data))
                sink.write(data)
                await sink.drain()
        finally:
            sink.close()


class Reader:
    """A connection that reads one session, acknowledges as an SDK does, and notes when it was given each offset."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.given: dict[int, float] = {}
        self.text = ""
        self.tokens = 0
        self.ended = asyncio.Event()
        self.caught_up = asyncio.Event()
        self._acked_at = time.monotonic()

    async def read(self) -> None:
        async for data in self.socket:
            now = time.monotonic()
            assert isinstance(data, bytes)
            frames = msgspec.msgpack.decode(data)
            for frame in frames if isinstance(frames, list) else (frames,):
                await self._take(frame, now)

    async def _take(self, frame: dict[str, Any], now: float) -> None:
        if frame["type"] == "caught_up":
            self.caught_up.set()
        if frame["type"] != "event":
            return
        event, offset = frame["event"], frame["offset"]
        if event["type"] == "response.output_text.delta":
            self.text += event["delta"]
            self.given.update(dict.fromkeys(range(frame.get("first_offset", offset), offset + 1), now))
        elif event["type"] in TERMINAL:
            self.tokens = event["response"]["usage"]["output_tokens"]
            self.ended.set()
        if now - self._acked_at >= 1.0:
            self._acked_at = now
            await self.send({"type": "ack", "session": frame["session"], "offset": offset})

    async def send(self, frame: dict[str, Any]) -> None:
        await self.socket.send(msgspec.msgpack.encode(frame))


async def answered(server: ServerProcess, tokens: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """One answer, read at once by a plain reader and by one on a slow link; what each cost."""
    async with connected(server.url) as wire:
        session = (await wire.command("session.create"))["session"]
    hello = {"type": "hello", "resume": [{"session": session, "offset": 0}]}
    async with (
        CountingProxy(server.port) as near,
        CountingProxy(server.port) as slow,
        contextlib.AsyncExitStack() as stack,
    ):
        readers = []
        for proxy, query, rollup_ms, compression in (
            (near, "", 0, None),
            (slow, "?compress=deflate", arguments.rollup_ms, "deflate"),
        ):
            url = f"ws://127.0.0.1:{proxy.port}/v1/ws{query}"
            socket = await stack.enter_async_context(
                connect(url, subprotocols=[MSGPACK], compression=compression, ping_interval=None)
            )
            readers.append(reader := Reader(socket))
            await reader.send({**hello, "rollup_ms": rollup_ms})
            task = asyncio.create_task(reader.read())
            stack.callback(task.cancel)
            await asyncio.wait_for(reader.caught_up.wait(), 20)
        plain, rolled = readers
        before = near.down, slow.down, slow.up
        command = {"session": session, "content": PROMPT, "max_output_tokens": tokens}
        await plain.send({"type": "message.create", "id": new_ulid(), **command})
        await asyncio.wait_for(asyncio.gather(plain.ended.wait(), rolled.ended.wait()), 60 + tokens / 10)
        delays = [(rolled.given[offset] - at) * 1000 for offset, at in plain.given.items()]
        return {
            "plain": near.down - before[0],
            "rolled": slow.down - before[1],
            "up": slow.up - before[2],
            "tokens": rolled.tokens,
            "delays": delays,
            "same": plain.text == rolled.text and plain.given.keys() == rolled.given.keys(),
        }


async def completed(server: ServerProcess, tokens: int) -> tuple[int, int]:
    """One answer of chat/completions as SSE: bytes of its stream, headers included, and its tokens."""
    async with CountingProxy(server.port) as proxy, httpx.AsyncClient(timeout=120) as http:
        body = {
            "model": (await http.get(f"http://127.0.0.1:{server.port}/v1/models")).json()["data"][0]["id"],
            "messages": [{"role": "user", "content": PROMPT}],
            "max_tokens": tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        url = f"http://127.0.0.1:{proxy.port}/v1/chat/completions"
        async with http.stream("POST", url, json=body) as answer:
            lines = [line async for line in answer.aiter_lines() if line.startswith("data: {")]
        usage = [each for line in lines if (each := msgspec.json.decode(line[6:]).get("usage"))]
        return proxy.down, usage[-1]["completion_tokens"]


async def measure(arguments: argparse.Namespace) -> bool:
    rate, mean = str(arguments.tokens_per_s), str(arguments.tokens * 4)
    server = ServerProcess("--engine", "sim", "--sim-tokens-per-s", rate, "--sim-answer-tokens", mean)
    server.start()
    try:
        answers = await asyncio.gather(
            *(answered(server, arguments.tokens, arguments) for _ in range(arguments.answers))
        )
        streams = [await completed(server, arguments.tokens)]
    finally:
        server.stop()
    tokens = sum(each["tokens"] for each in answers)
    delays = [delay for each in answers for delay in each["delays"]]
    rolled = sum(each["rolled"] for each in answers) / tokens
    figures = {
        "tokens": tokens,
        "tokens/s": arguments.tokens_per_s,
        "bytes/token, roll-up and deflate": round(rolled, 2),
        "bytes/token, plain msgpack": round(sum(each["plain"] for each in answers) / tokens, 2),
        "bytes/token, SSE of chat/completions": round(streams[0][0] / streams[0][1], 2),
        "bytes/token the reader sends": round(sum(each["up"] for each in answers) / tokens, 2),
        "added delay p50 ms": round(percentile(delays, 0.5), 1),
        "added delay p99 ms": round(percentile(delays, 0.99), 1),
        "added delay max ms": round(max(delays), 1),
    }
    report("wire_bytes", figures)
    faults = [] if all(each["same"] for each in answers) else ["the readers were given different texts"]
    if rolled > BYTES_A_TOKEN_MAX:
        faults.append(f"{rolled:.1f} bytes a token are more than {BYTES_A_TOKEN_MAX:g}")
    if percentile(delays, 0.99) > DELAY_MS_MAX + arguments.slack_ms:
        faults.append("the added delay is more than was asked for")
    return is_faultless(faults)


if __name__ == "__main__":
    run_bench(measure, __doc__, answers=8, tokens=400, tokens_per_s=25.0, rollup_ms=200, slack_ms=25.0)
