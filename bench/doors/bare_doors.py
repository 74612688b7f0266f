"""Servers that refuse everything and know nothing: what a refusal costs below us, door by door.

    python -m bench.doors.bare_doors --port 0 --websocket-port 0 --grpc-port 0

The floors of `bench.doors.unknown_keys`: uvloop alone, which answers what it reads first with 401 and closes
(`http`, `handshake`); `websockets`' own server, which closes behind the first message (`hello`); grpcio's, with a
handler that aborts (`grpc`). Measured by the same requests and in the same way as ours.
"""

from __future__ import annotations

import argparse
import asyncio
from typing import Any, Final, cast

import grpc
import grpc.aio
import uvloop
from websockets.asyncio.server import ServerConnection, serve

from tests.support.doors.server_process import READY

ANSWER: Final = b"HTTP/1.1 401 Unauthorized\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


class RefuseAll(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._transport.pause_reading()
        self._transport.write(ANSWER)
        self._transport.close()


async def close_behind_first(socket: ServerConnection) -> None:
    await socket.recv()
    await socket.send('{"type": "error", "code": "unauthorized"}')
    await socket.close(4401, "unauthorized")


class AbortAll(grpc.GenericRpcHandler):
    def service(self, _: Any) -> Any:
        async def refuse(_: Any, context: Any) -> None:
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "A key is needed.")

        return grpc.stream_unary_rpc_method_handler(refuse)


async def main(options: argparse.Namespace) -> None:
    plain = await asyncio.get_running_loop().create_server(RefuseAll, "127.0.0.1", options.port, backlog=4096)
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((AbortAll(),))
    server.add_insecure_port(f"127.0.0.1:{options.grpc_port}")
    await server.start()
    async with serve(close_behind_first, "127.0.0.1", options.websocket_port, compression=None):
        print(f"{READY}http://127.0.0.1:{plain.sockets[0].getsockname()[1]}/", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, kind in (("port", int), ("websocket-port", int), ("grpc-port", int), ("data", str), ("log-level", str)):
        parser.add_argument(f"--{name}", type=kind, default=None)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main(parser.parse_args()))
