"""Attacks through an identity provider: it answers slowly, never or in no HTTP, has keys of kinds that we do not know,
or strangers have us call it with codes that they made up. What else the server does goes on."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from sessions.model.errors import BadInput, Unauthorized
from tests.support.openid.provider import query_of, sign_in
from tests.support.openid.scripted import SETTINGS, ScriptedProvider
from tests.support.openid.world import a_sign_in_world
from transport.auth import jwt_issuers
from transport.auth.jwt_issuers import parse_jwks
from transport.auth.openid_provider import ProviderAnswer, Tokens, discover, send

FULL = 4  # connections that are open when somebody else needs a thread
NO_HTTP = {
    "another protocol": b"SSH-2.0-OpenSSH_9.6\r\n",
    "a piece of a body": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab",
    "a head without an end": b"HTTP/1.1 200 OK\r\nX: " + b"a" * 100_000,
    "nothing": b"",
    "another status": b"HTTP/1.1 abc\r\n\r\n",
}


class Host:
    """Sends `answer` to everybody; None: never anything. `full` is set by the fourth connection."""

    def __init__(self, answer: bytes | None) -> None:
        self.answer = answer
        self.full = asyncio.Event()
        self._writers: list[asyncio.StreamWriter] = []

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        if len(self._writers) == FULL:
            self.full.set()
        await reader.readuntil(b"\r\n\r\n")
        if self.answer is not None:
            writer.write(self.answer)
            writer.close()

    def close(self) -> None:
        for writer in self._writers:
            writer.close()


@asynccontextmanager
async def a_host(answer: bytes | None) -> AsyncIterator[tuple[Host, str]]:
    host = Host(answer)
    server = await asyncio.start_server(host.handle, "127.0.0.1", 0)
    try:
        yield host, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/keys"
    finally:
        host.close()
        server.close()


async def test_a_provider_that_never_answers_takes_no_thread_from_another() -> None:
    """Threads also read pages, KV and keys: six of them waited for the provider, and everybody with them."""
    async with a_host(None) as (host, url):
        calls = [asyncio.create_task(send(url, {"code": str(n)}, {})) for n in range(40)]
        await host.full.wait()
        async with asyncio.timeout(60):
            assert await asyncio.to_thread(int, "5") == 5
        for each in calls:
            each.cancel()
        await asyncio.gather(*calls, return_exceptions=True)


async def test_an_answer_that_does_not_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transport.auth.direct_fetch.WHOLE_S", 0.2)
    async with a_host(None) as (_, url):
        for fetched in (send(url, None, {}), jwt_issuers.fetch(url)):
            with pytest.raises(OSError, match="no whole answer"):
                await fetched


@pytest.mark.parametrize("kind", NO_HTTP)
async def test_what_is_no_http_is_a_provider_that_is_away(kind: str) -> None:
    async with a_host(NO_HTTP[kind]) as (_, url):
        for fetched in (send(url, {"code": "x"}, {}), jwt_issuers.fetch(url)):
            with pytest.raises(OSError, match=r".+"):
                await fetched


def test_a_key_of_an_unknown_kind_does_not_hide_the_rest_of_its_set() -> None:
    ours = {**json.loads(jwt.algorithms.ECAlgorithm.to_jwk(ec.generate_private_key(ec.SECP256R1()).public_key()))}
    others = [
        {"kty": "AKP", "alg": "ML-DSA-65", "kid": "post-quantum", "pub": "AA"},
        {"kty": "OKP", "crv": "X25519", "x": "AA", "kid": "agreement"},
        {"kty": "RSA", "alg": "RSA-OAEP", "n": "AQAB", "e": "AQAB", "kid": "encryption"},
        {"kty": 5, "kid": ["x"]},
    ]
    keys = parse_jwks(json.dumps({"keys": [*others, {**ours, "kid": "k1"}]}).encode(), ("RS256", "ES256"))
    assert set(keys) == {"k1"}


NESTED = b'{"more":' + b"[" * 100_000


async def test_an_answer_that_is_nested_too_deeply_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was a RecursionError: the server stopped reading keys, and whoever signed in got a 500."""
    for data in (NESTED, NESTED[8:]):
        with pytest.raises(ValueError, match="JSON"):
            parse_jwks(data, ("ES256",))

    statuses = iter((200, 200, 400))

    async def nested(*_: object) -> ProviderAnswer:
        return ProviderAnswer(next(statuses), NESTED)

    scripted = ScriptedProvider()
    with pytest.raises(BadInput, match="metadata"):
        await discover(SETTINGS, now_ms=scripted.now_ms, clock=lambda: 0.0, send=nested)
    monkeypatch.setattr(scripted, "send", nested)
    provider = await scripted.provider()
    for _ in range(2):
        with pytest.raises(Unauthorized):
            await provider.refresh("r")


async def test_of_many_made_up_codes_at_once_a_few_reach_the_provider() -> None:
    """Each was a request of ours to the provider: 256 at once from one address, without any key."""
    async with a_sign_in_world(failures=5) as world:
        go_on, calls, turned_away = asyncio.Event(), 0, 0

        async def exchange(**_: str) -> Tokens:
            nonlocal calls
            calls += 1
            if calls == 30:
                go_on.set()
            await go_on.wait()
            raise Unauthorized("unauthorized", "made up")

        async def guess(http: httpx.AsyncClient, state: str, n: int) -> None:
            nonlocal turned_away
            query = {"state": state, "iss": world.issuer, "code": f"c{n}"}
            answer = await http.get("/auth/callback", params=query)
            turned_away += answer.status_code == 429
            if turned_away >= 25:
                go_on.set()

        world.sign_in.provider.exchange = exchange  # type: ignore[method-assign]
        async with world.browser() as http:
            begun = await http.get("/auth/sign-in")
            state = httpx.QueryParams(query_of(begun.headers["location"]))["state"]
            await asyncio.gather(*(guess(http, state, n) for n in range(30)))
        assert (calls, turned_away) == (5, 25)


async def test_signing_in_costs_nobody_a_try() -> None:
    async with a_sign_in_world(failures=2) as world, world.browser() as http:
        for _ in range(5):
            assert (await sign_in(http, world.page, "ana")).status_code == 303
        await http.get("/auth/sign-in")
        for _ in range(5):  # nor does an answer of another sign-in
            assert (await http.get("/auth/callback?state=x&code=y")).status_code == 400
