"""Limits on every door: truthful headers and 429 over HTTP, errors with a time over WebSocket and gRPC."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest

from sessions.model.types import Principal, TenantId
from tests.support.doors.assembly import Assembly, assembled
from tests.support.doors.grpc_door import error_of
from tests.support.doors.websocket_wire import shake_hands, wire
from transport.auth.authenticator import key_digest
from transport.cli.settings import BadSetting
from transport.cli.start.config_files import limits_file
from transport.grpc_api import sessile_pb2 as pb
from transport.grpc_api.server import GrpcServer
from transport.grpc_api.sessile_pb2_grpc import SessionsStub

CHAT = {"model": "simulated", "messages": [{"role": "user", "content": "Hello there."}], "max_tokens": 8}


@pytest.fixture
def limits(tmp_path: Path) -> Callable[[str], Path]:
    def write(text: str) -> Path:
        path = tmp_path / "limits.toml"
        path.write_text(text)
        return path

    return write


async def settled(server: Assembly) -> None:
    assert server.limited is not None
    async with asyncio.timeout(60):
        await server.limited.settler.quiet.wait()


async def ask(http: httpx.AsyncClient, **more: Any) -> httpx.Response:
    return await http.post("/v1/chat/completions", json={**CHAT, **more})


async def test_headers_are_true_and_429_says_when(limits: Callable[[str], Path]) -> None:
    path = limits("[default]\nrequests_per_minute = 3\ntokens_per_minute = 1000\n")
    async with assembled(limits_file=path) as server, httpx.AsyncClient(base_url=server.server.url, timeout=60) as http:
        used = 0
        for left in (2, 1, 0):
            answer = await ask(http)
            assert answer.status_code == 200
            headers = answer.headers
            assert headers["x-ratelimit-limit-requests"] == "3"
            assert headers["x-ratelimit-remaining-requests"] == str(left)
            assert headers["x-ratelimit-reset-requests"].endswith("s")
            assert headers["x-ratelimit-limit-tokens"] == "1000"
            reserved = 1000 - used - int(headers["x-ratelimit-remaining-tokens"])
            assert 8 < reserved < 60, "its input and its max_tokens"
            await settled(server)
            used += answer.json()["usage"]["total_tokens"]
        refused = await ask(http)
        assert refused.status_code == 429
        error = refused.json()["error"]
        assert (error["code"], error["param"], error["retryable"]) == ("rate_limited", "requests_per_minute", True)
        assert 19_000 < int(refused.headers["retry-after-ms"]) <= 20_000
        assert refused.headers["retry-after"] == "20"
        assert refused.headers["x-ratelimit-remaining-requests"] == "0"
        assert 1000 - used - int(refused.headers["x-ratelimit-remaining-tokens"]) in range(-20, 2)
        assert server.gateway.counters["limited_requests_per_minute"] == 1


async def test_a_key_that_is_repeated_is_charged_once(limits: Callable[[str], Path]) -> None:
    path = limits("[default]\nrequests_per_minute = 2\n")
    async with assembled(limits_file=path) as server, httpx.AsyncClient(base_url=server.server.url, timeout=60) as http:
        for _ in range(3):
            answer = await http.post("/v1/chat/completions", json=CHAT, headers={"idempotency-key": "k"})
            assert answer.status_code == 200
            assert answer.headers["x-ratelimit-remaining-requests"] == "1"


async def test_nothing_is_told_where_nothing_is_limited(limits: Callable[[str], Path]) -> None:
    async with (
        assembled(limits_file=limits("")) as server,
        httpx.AsyncClient(base_url=server.server.url, timeout=60) as http,
    ):
        answer = await ask(http)
        assert answer.status_code == 200
        assert not [name for name in answer.headers if name.startswith("x-ratelimit")]


async def test_a_websocket_is_told_which_limit_and_when(limits: Callable[[str], Path]) -> None:
    path = limits("[default.user]\nconcurrent_turns = 1\n")
    keys = {key_digest(name): Principal(tenant=TenantId("acme"), key_id="k", user=name) for name in ("ann", "bob")}
    async with assembled(limits_file=path, keys=keys) as server:
        port = server.server.port
        async with wire(port) as ann, wire(port) as bob:
            for client, name in ((ann, "ann"), (bob, "bob")):
                await client.hello(auth=name)
                for session in ("one", "two"):
                    client.send({"type": "session.create", "id": session, "session": f"{name}-{session}"})
                    await client.until(type="ok", id=session)
            say = {"type": "message.create", "content": "Go on.", "max_output_tokens": 5000}
            ann.send({**say, "id": "first", "session": "ann-one"})
            response = (await ann.until(type="ok", id="first"))["response_id"]
            ann.send({**say, "id": "second", "session": "ann-two"})
            error = (await ann.until(type="error", id="second"))["error"]
            assert (error["type"], error["code"]) == ("rate_limit_error", "rate_limited")
            assert error["param"] == "concurrent_turns" and error["retry_after_ms"] == 1000
            bob.send({**say, "id": "third", "session": "bob-one"})
            await bob.until(type="ok", id="third")
            ann.send({"type": "response.cancel", "id": "stop", "session": "ann-one", "response_id": response})
            await ann.until(type="ok", id="stop")
            await settled(server)
            ann.send({**say, "id": "fourth", "session": "ann-two"})
            await ann.until(type="ok", id="fourth")


async def test_a_turn_that_was_refused_gives_its_place_back(limits: Callable[[str], Path]) -> None:
    path = limits("[default]\nconcurrent_turns = 1\n")
    async with assembled(limits_file=path) as server, wire(server.server.port) as client:
        await client.hello()
        client.send({"type": "message.create", "id": "a", "session": "nowhere", "content": "Hi"})
        assert (await client.until(type="error", id="a"))["error"]["code"] == "session_not_found"
        client.send({"type": "session.create", "id": "b", "session": "s"})
        await client.until(type="ok", id="b")
        client.send({"type": "message.create", "id": "c", "session": "s", "content": "Hi", "respond": False})
        await client.until(type="ok", id="c")
        client.send({"type": "message.create", "id": "d", "session": "s", "content": "Hi"})
        await client.until(type="ok", id="d")


async def test_grpc_says_resource_exhausted_with_everything_else_beside_it(limits: Callable[[str], Path]) -> None:
    path = limits("[default]\ntokens_per_minute = 100\n")
    async with assembled(limits_file=path) as server:
        door = GrpcServer(server.gateway, host="127.0.0.1", port=0)
        assert await door.start()
        try:
            async with grpc.aio.insecure_channel(door.address) as channel:
                stub: Any = SessionsStub(channel)
                await stub.Create(pb.SessionCreate(session="s"))
                message = pb.MessageCreate(session="s", content="Hello", queue=True)
                await stub.Send(message)
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await stub.Send(message)
                assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
                error = error_of(caught.value)
                assert (error.code, error.param) == ("rate_limited", "tokens_per_minute")
                assert error.retry_after_ms > 1000
                beside = dict(list(caught.value.trailing_metadata() or ()))
                assert beside["grpc-retry-pushback-ms"] == str(error.retry_after_ms)
        finally:
            await door.stop()


async def test_sessions_and_history_have_a_quota(limits: Callable[[str], Path]) -> None:
    path = limits("[default]\nsessions = 2\nstored_bytes = 30_000\n")
    async with assembled(limits_file=path) as server, wire(server.server.port) as client:
        await client.hello()
        for session in ("a", "b"):
            client.send({"type": "session.create", "id": session, "session": session})
            await client.until(type="ok", id=session)
        client.send({"type": "session.create", "id": "c", "session": "c"})
        error = (await client.until(type="error", id="c"))["error"]
        assert (error["code"], error["param"], error["retryable"]) == ("quota_exceeded", "sessions", False)
        text = "word " * 4_000
        for id, found in (("d", "ok"), ("e", "ok"), ("f", "error")):
            client.send({"type": "message.create", "id": id, "session": "a", "content": text, "queue": True})
            answer = await client.until(id=id)
            assert answer["type"] == found, answer
        assert answer["error"]["param"] == "stored_bytes"


async def test_what_was_applied_is_answered_again_when_there_is_no_room(limits: Callable[[str], Path]) -> None:
    path = limits("[default]\nsessions = 2\nstored_bytes = 15_000\n")
    async with assembled(limits_file=path) as server, wire(server.server.port) as client:
        await client.hello()

        async def ask(**command: Any) -> dict[str, Any]:
            client.send(command)
            return await client.until(id=command["id"])

        makes: list[dict[str, Any]] = [{"session": "named"}, {"title": "Named by its id"}]
        made = [await ask(type="session.create", id=f"make-{number}", **one) for number, one in enumerate(makes)]
        assert [answer["type"] for answer in made] == ["ok", "ok"]
        full = await ask(type="session.create", id="make-3")
        assert full["error"]["code"] == "quota_exceeded"
        for number, one in enumerate(makes):
            assert await ask(type="session.create", id=f"make-{number}", **one) == made[number]
        reused = await ask(type="session.create", id="make-0", session="named", title="Another")
        assert reused["error"]["code"] == "idempotency_conflict"

        say: dict[str, Any] = {"type": "message.create", "session": "named", "content": "word " * 4_000, "queue": True}
        said = await ask(id="say", **say)
        assert said["type"] == "ok"
        assert (await ask(id="more", **say))["error"]["param"] == "stored_bytes"
        assert await ask(id="say", **say) == said
        counted = server.gateway.counters
        assert (counted["limited_sessions"], counted["limited_stored_bytes"]) == (1, 1)


async def test_unlisted_sessions_have_no_quota(limits: Callable[[str], Path]) -> None:
    path = limits("[default]\nsessions = 10\n")
    async with assembled(limits_file=path) as server, httpx.AsyncClient(base_url=server.server.url, timeout=60) as http:
        for number in range(11):
            assert (await ask(http, user=f"u{number}")).status_code == 200
        for expected in (*(200 for _ in range(10)), 429):
            answer = await http.post("/v1/conversations", json={})
            assert answer.status_code == expected
        assert answer.json()["error"]["param"] == "sessions"
        assert (await ask(http, user="late")).status_code == 200
        key = {"idempotency-key": "k"}
        refused = await http.post("/v1/responses", json={"model": "simulated", "input": "Hi"}, headers=key)
        assert refused.status_code == 429
        unstored = {"model": "simulated", "input": "Hi", "store": False}
        assert (await http.post("/v1/responses", json=unstored)).status_code == 200


async def test_connections_beyond_the_pace_are_told_when_to_come(limits: Callable[[str], Path]) -> None:
    async with assembled(limits_file=limits("connections_per_s = 1.0\n")) as server:
        port = server.server.port
        shaken = [await shake_hands(port) for _ in range(5)]
        statuses = [each.handshake.status for each in shaken]
        assert statuses[:2] == [101, 101] and 503 in statuses
        refused = [each.handshake for each in shaken if each.handshake.status == 503]
        assert json.loads(refused[0].body)["error"]["code"] == "overloaded"
        assert all(int(each.headers["retry-after"]) >= 1 for each in refused)
        for each in shaken:
            each.writer.close()


# -- the file -------------------------------------------------------------------------------------------------


async def test_a_file_that_changes_holds_from_then_on(limits: Callable[[str], Path]) -> None:
    path = limits("[default]\nrequests_per_minute = 3\n")
    file = limits_file(path)
    assert not await file.watcher.look()
    path.write_text("[default]\nrequests_per_minute = 40\n[tenants.acme]\nuser.sessions = 7\n")
    assert await file.watcher.look()
    assert file.now().of(TenantId("acme")).user.sessions == 7
    assert file.now().of(TenantId("other")).requests_per_minute == 40


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[default]\nrequests_per_minute = 0\n", "$.default.requests_per_minute"),
        ("[default]\nrequest_per_minute = 5\n", "request_per_minute"),
        ("[tenants.acme]\nsessions = -1\n", "$.tenants"),
        ('store_lost = "never"\n', "$.store_lost"),
        ("brownout = [{ smaller_model = 1 }]\n", "$.brownout[0].smaller_model"),
        ("brownout = [{ small_model = true }]\n", "small_model"),
        ("[default\n", "line 1"),
        ("\udcff", "codec"),
    ],
)
async def test_a_malformed_file_is_refused_and_the_old_one_stays(
    limits: Callable[[str], Path], text: str, says: str
) -> None:
    path = limits("[default]\nrequests_per_minute = 3\n")
    file = limits_file(path)
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    await file.watcher.look()
    assert file.now().default.requests_per_minute == 3
    with pytest.raises(BadSetting, match="limits = ") as caught:
        limits_file(path)
    assert says in str(caught.value)
    path.unlink()
    await file.watcher.look()
    assert file.now().default.requests_per_minute == 3
