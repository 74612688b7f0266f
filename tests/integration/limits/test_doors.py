"""Limits at every door: who waits, who is refused, and what is answered by a smaller model."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest

from inference.simulated import SimulatedOptions
from sessions.actor.admission import Admission
from sessions.billing.prices import PriceBook, read_prices
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


async def test_a_user_who_came_without_a_key_has_the_limits_of_one_at_every_door(
    limits: Callable[[str], Path],
) -> None:
    """Callers with an issuer's token, and those who had signed in, were in no limit of requests."""
    path = limits("[default]\nkey_requests_per_minute = 2\n")
    issuer = "jwt:https://login.example"
    keys = {
        key_digest(name): Principal(tenant=TenantId("acme"), key_id=issuer, user=name, scopes=("chat", "read"))
        for name in ("ann", "ben", "eve")
    }
    async with (
        assembled(keys=keys, limits_file=path) as server,
        httpx.AsyncClient(base_url=server.server.url, timeout=60) as http,
    ):
        answers = [await ask(http) for http.headers["authorization"] in ["Bearer ann"] * 3]
        assert [answer.status_code for answer in answers] == [200, 200, 429]
        assert answers[-1].json()["error"]["param"] == "key_requests_per_minute"
        async with wire(server.server.port) as client:
            await client.hello(auth="ben")
            for number in range(3):
                client.send({"type": "session.create", "id": f"make{number}", "session": f"s{number}"})
            client.send({"type": "response.cancel", "id": "stop", "session": "s0", "response_id": "resp_nothing"})
            refused = await client.until(type="error", id="make2")
            assert (refused["error"]["code"], refused["error"]["param"]) == ("rate_limited", "key_requests_per_minute")
            assert refused["error"]["retry_after_ms"] > 0
            assert (await client.until(id="stop")).get("error", {}).get("code") != "rate_limited", "it is read on"
        door = GrpcServer(server.gateway, host="127.0.0.1", port=0)
        assert await door.start()
        try:
            async with grpc.aio.insecure_channel(door.address) as channel:
                stub: Any = SessionsStub(channel)
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    for number in range(3):
                        made = pb.SessionCreate(session=f"g{number}")
                        await stub.Create(made, metadata=[("authorization", "Bearer eve")])
                assert error_of(caught.value).param == "key_requests_per_minute"
        finally:
            await door.stop()


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
        told = [full["error"][name] for name in ("code", "param", "retryable")]
        assert told == ["quota_exceeded", "sessions", False]
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


async def test_a_malformed_file_is_refused_and_the_old_one_stays(limits: Callable[[str], Path]) -> None:
    cases: list[tuple[str, str]] = [
        ("[default]\nrequests_per_minute = 0\n", "$.default.requests_per_minute"),
        ("[default]\nrequest_per_minute = 5\n", "request_per_minute"),
        ("[tenants.acme]\nsessions = -1\n", "$.tenants"),
        ('store_lost = "never"\n', "$.store_lost"),
        ("brownout = [{ smaller_model = 1 }]\n", "$.brownout[0].smaller_model"),
        ("brownout = [{ small_model = true }]\n", "small_model"),
        ("[default\n", "line 1"),
        ("\udcff", "codec"),
    ]
    for text, says in cases:
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


TARGETS = "[targets.default]\nttft_ms = 500\n"
SLOW = SimulatedOptions(step_base_s=0.005, slots=1, answer_tokens_mean=0)  # an answer below takes a fifth of a second


async def test_a_turn_waits_with_its_place_or_is_refused_with_a_time(tmp_path: Path) -> None:
    path = tmp_path / "limits.toml"
    path.write_text(TARGETS)

    async with (
        assembled(limits_file=path, engine=SLOW) as server,
        httpx.AsyncClient(base_url=server.server.url, timeout=60) as http,
    ):

        async def ask(number: int) -> httpx.Response:
            body: dict[str, Any] = {"model": "simulated", "input": f"Question {number}", "max_output_tokens": 40}
            return await http.post("/v1/responses", json=body)

        assert (await ask(0)).status_code == 200, "an engine that has learned nothing lets everybody in"
        answers = await asyncio.gather(*(ask(number) for number in range(1, 9)))
        assert {answer.status_code for answer in answers} == {200, 503}
        for refused in (answer for answer in answers if answer.status_code == 503):
            error = refused.json()["error"]
            assert (error["code"], error["retryable"]) == ("overloaded", True)
            assert int(refused.headers["retry-after-ms"]) == error["retry_after_ms"] >= 250
        good = [answer for answer in answers if answer.status_code == 200]
        for answer in good:
            assert answer.json()["usage"]["output_tokens"] == 40, "whoever was let in is answered"
        # A session that was refused whole leaves memory at once.
        while len(server.runtime.actors) > 1 + len(good):  # noqa: ASYNC110 - nothing says when a session has left
            await asyncio.sleep(0)


async def test_the_event_that_begins_a_response_says_that_it_waits(tmp_path: Path) -> None:
    path = tmp_path / "limits.toml"
    path.write_text("[targets.default]\nttft_ms = 600_000\n")
    async with assembled(limits_file=path, engine=SLOW) as server, wire(server.server.port) as client:
        await client.hello()
        created: dict[str, Any] = {}
        for number in range(3):
            client.send({"type": "session.create", "id": f"make{number}", "session": f"s{number}"})
            await client.until(type="ok", id=f"make{number}")
            client.send({"type": "subscribe", "id": f"read{number}", "session": f"s{number}", "offset": 0})
            await client.until(type="caught_up", session=f"s{number}")
        for number in range(3):
            say = {"type": "message.create", "id": f"say{number}", "content": "Go on.", "max_output_tokens": 200}
            client.send({**say, "session": f"s{number}"})
            created[f"s{number}"] = (await client.event("response.created"))["event"]["response"]
        assert "service" not in created["s0"]
        places = [created[name]["service"]["queue_position"] for name in ("s1", "s2")]
        assert places == [1, 2]


LIMITS = "brownout = [{ smaller_model = true }]\n[targets.default]\nttft_ms = 100\n"
PRICES = (
    'currency = "USD"\n[[prices]]\nmodel = "simulated"\ninput = 0\noutput = 1000\n'
    '[[prices]]\nmodel = "small"\ninput = 0\noutput = 10'
)
MODEL = SimulatedOptions(step_base_s=0.002, slots=1, answer_tokens_mean=0)
SMALL = MODEL.smaller("small", 4.0, 4)


class Doors:
    """A server in brownout, whose model is busy until `free` is called."""

    def __init__(self, server: Assembly, http: httpx.AsyncClient) -> None:
        self.server = server
        self.http = http
        self.holder: asyncio.Task[httpx.Response] | None = None

    @property
    def admission(self) -> Admission:
        made = self.server.runtime.limits.actor.admission
        assert made is not None
        return made

    async def complete(self, text: str, tokens: int = 20, **more: Any) -> httpx.Response:
        body = {"model": "simulated", "messages": [{"role": "user", "content": text}], "max_tokens": tokens, **more}
        return await self.http.post("/v1/chat/completions", json=body)

    async def metrics(self) -> dict[str, float]:
        lines = (await self.http.get("/metrics")).text.splitlines()
        pairs = [line.rsplit(" ", 1) for line in lines if line and not line.startswith("#")]
        return {name: float(value) for name, value in pairs}


@asynccontextmanager
async def doors(tmp_path: Path, *, smaller: SimulatedOptions | None = SMALL) -> AsyncIterator[Doors]:
    path = tmp_path / "limits.toml"
    path.write_text(LIMITS)
    prices = PriceBook(read_prices(PRICES))
    async with (
        assembled(limits_file=path, engine=MODEL, smaller=smaller, prices=prices) as server,
        httpx.AsyncClient(base_url=server.server.url, timeout=60) as http,
    ):
        made = Doors(server, http)
        assert (await made.complete("Learn how long you take.", 400)).status_code == 200
        made.admission.brownout.level = 1
        made.holder = asyncio.create_task(made.complete("Take the one slot that there is.", 4_000))
        while (await made.metrics())["sessile_num_requests_running"] < 1:
            pass
        yield made
        made.holder.cancel()
        await asyncio.gather(made.holder, return_exceptions=True)


async def test_every_door_and_the_bill_name_the_model_that_wrote_it(tmp_path: Path) -> None:
    async with doors(tmp_path) as made:
        answer = (await made.complete("Hello")).json()
        assert answer["model"] == "small"
        tokens = answer["usage"]["completion_tokens"]
        assert tokens and float(answer["usage"]["cost"]["amount"]) == pytest.approx(tokens * 10 / 1e6)
        streamed = (await made.complete("Hello again", stream=True)).text
        chunks = [json.loads(line[6:]) for line in streamed.splitlines() if line.startswith("data: {")]
        assert {chunk["model"] for chunk in chunks} == {"small"}
        body = {"model": "simulated", "input": "And here?", "max_output_tokens": 20}
        response = (await made.http.post("/v1/responses", json=body)).json()
        assert response["model"] == "small"
        assert (await made.http.get(f"/v1/responses/{response['id']}")).json()["model"] == "small"
        rows = (await made.http.get("/v1/usage/responses")).json()["data"]
        assert [row["model"] for row in rows] == ["simulated", "small", "small", "small"]
        sums = (await made.http.get("/v1/usage", params={"group_by": "model"})).json()["data"]
        assert {each["model"]: each["output_tokens"] for each in sums} == {
            "simulated": rows[0]["output_tokens"],
            "small": sum(row["output_tokens"] for row in rows[1:]),
        }
        listed = (await made.http.get("/v1/models")).json()["data"]
        chatting = [model["id"] for model in listed if not model["capabilities"]["embedding"]]
        assert chatting == ["simulated"], "nobody chooses the smaller one"
        refused = await made.complete("Hello", model="small")
        assert refused.status_code == 404 and refused.json()["error"]["code"] == "model_not_found"


async def test_the_event_that_begins_the_response_says_so_and_the_session_keeps_its_model(tmp_path: Path) -> None:
    async with doors(tmp_path) as made, wire(made.server.server.port) as client:
        await client.hello()
        client.send({"type": "session.create", "id": "make", "session": "s"})
        await client.until(type="ok", id="make")
        client.send({"type": "subscribe", "id": "read", "session": "s", "offset": 0})
        await client.until(type="caught_up", session="s")
        client.send({"type": "message.create", "id": "say", "session": "s", "content": "Hi", "max_output_tokens": 5})
        created = (await client.event("response.created"))["event"]["response"]
        assert created["model"] == "small"
        assert created["service"] == {"brownout": 1, "smaller_model": "small"}
        ended = (await client.event("response.incomplete"))["event"]["response"]
        assert (ended["model"], ended["service"]) == ("small", created["service"])
        session = (await made.http.get("/v1/sessions/s")).json()
        assert session["model"] == "simulated"


async def test_metrics_keep_the_two_apart(tmp_path: Path) -> None:
    async with doors(tmp_path) as made:
        before = await made.metrics()
        await made.complete("Hello", 30)
        after = await made.metrics()
        assert after['sessile_admission_smaller_model_total{target="ttft"}'] == 1
        assert after['sessile_smaller_model_events_total{event="decoded_tokens"}'] == 30
        assert after["sessile_smaller_model_slots"] == 4 and after["sessile_num_slots"] == 1
        assert after['sessile_smaller_model_requests{state="running"}'] == 0
        name = "sessile_engine_decoded_tokens_total"
        assert after[name] > before[name] >= 400, "the model's own go on"
        assert not [each for each in after if each.startswith("sessile_engine_") and "smaller" in each]


async def test_without_one_the_step_holds_without_it(tmp_path: Path) -> None:
    async with doors(tmp_path, smaller=None) as made:
        answer = await made.complete("Hello")
        assert answer.status_code == 503 and answer.json()["error"]["code"] == "overloaded"
        assert not [each for each in await made.metrics() if "smaller_model_" in each and "admission" not in each]
