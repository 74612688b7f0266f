"""Whatever reaches a door with a key counts in the requests of that key, and is refused there once none are left."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc
import httpx
import msgspec
from websockets.asyncio.client import connect

from sessions.model.types import Principal, TenantId
from tests.support.doors.assembly import assembled
from tests.support.doors.grpc_door import error_of
from transport.auth.authenticator import key_digest
from transport.grpc_api import sessile_pb2 as pb
from transport.grpc_api.server import GrpcServer
from transport.grpc_api.sessile_pb2_grpc import SessionsStub

KEYS = {
    key_digest(f"key-{name}"): Principal(tenant=TenantId("acme"), key_id=name, role="service", scopes=("chat", "read"))
    for name in "ab"
}


def limited_to(path: Path, requests: int) -> Path:
    path.write_text(f"[default]\nkey_requests_per_minute = {requests}\n")
    return path


def of_key(name: str) -> dict[str, str]:
    return {"authorization": f"Bearer key-{name}"}


async def test_wrong_bodies_and_questions_count_over_http(tmp_path: Path) -> None:
    async with (
        assembled(keys=KEYS, limits_file=limited_to(tmp_path / "limits.toml", 3)) as server,
        httpx.AsyncClient(base_url=server.server.url, timeout=60) as http,
    ):

        async def post(key: str, **more: Any) -> httpx.Response:
            headers = {**of_key(key), **more}
            return await http.post("/v1/responses", content=b'{"input": [', headers=headers)

        assert [(await post("a")).status_code for _ in range(4)] == [400, 400, 400, 429]
        refused = await post("a")
        assert refused.json()["error"]["param"] == "key_requests_per_minute"
        asked = [(await http.get("/v1/sessions", headers=of_key("b"))).status_code for _ in range(31)]
        assert asked == [200] * 30 + [429], "what writes nothing counts a tenth"
        cancelled = await http.post("/v1/responses/resp_1/cancel", headers=of_key("a"))
        assert cancelled.status_code == 404, "whether it may is looked at whatever is left"


async def test_commands_over_a_socket_count(tmp_path: Path) -> None:
    async with assembled(keys=KEYS, limits_file=limited_to(tmp_path / "limits.toml", 1)) as server:
        url = server.server.url.replace("http", "ws") + "/v1/ws"
        async with asyncio.timeout(60), connect(url, additional_headers=of_key("a")) as socket:
            await socket.send('{"type": "hello"}')
            for number in range(12):
                await socket.send(msgspec.json.encode({"type": "session.list", "id": f"l{number}"}).decode())
            answers = dict[str, str | None]()
            while len(answers) < 12:
                answer = msgspec.json.decode(await socket.recv())
                if "id" in answer:
                    answers[answer["id"]] = answer.get("error", {}).get("code")
            refused = [number for number in range(12) if answers[f"l{number}"] is not None]
            assert {answers[f"l{number}"] for number in refused} == {"rate_limited"}
            assert refused and 0 not in refused


async def test_wrong_calls_count_a_tenth_over_grpc(tmp_path: Path) -> None:
    async with assembled(keys=KEYS, limits_file=limited_to(tmp_path / "limits.toml", 1)) as server:
        door = GrpcServer(server.gateway, host="127.0.0.1", port=0)
        assert await door.start()
        try:
            async with grpc.aio.insecure_channel(door.address) as channel:
                send: Any = SessionsStub(channel).Send
                codes = []
                for _ in range(11):
                    try:
                        await send(pb.MessageCreate(session="not there"), metadata=tuple(of_key("a").items()))
                    except grpc.aio.AioRpcError as error:
                        codes.append((error.code(), error_of(error).param))
            assert codes[-1] == (grpc.StatusCode.RESOURCE_EXHAUSTED, "key_requests_per_minute")
            assert [code for code, _ in codes[:-1]] == [grpc.StatusCode.INVALID_ARGUMENT] * 10
        finally:
            await door.stop()
