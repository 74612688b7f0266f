"""Attacks by redirect, and by tokens made for something else."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from sessions.model.errors import BadInput, Unauthorized
from tests.support.authorisation.world import a_world
from transport.auth import jwt_issuers
from transport.cli.api_client import call

REDIRECTS = (301, 302, 303, 307, 308)


@contextmanager
def http_server(answer: tuple[int, dict[str, str], bytes]) -> Iterator[tuple[str, list[dict[str, str]]]]:
    """Its address, and the heads of the requests that it got."""
    got: list[dict[str, str]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            got.append({name.lower(): value for name, value in self.headers.items()})
            self.send_response(answer[0])
            for name, value in answer[1].items():
                self.send_header(name, value)
            self.send_header("content-length", str(len(answer[2])))
            self.end_headers()
            self.wfile.write(answer[2])

        do_POST = do_GET

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", got
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.parametrize("status", REDIRECTS)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_the_command_line_takes_its_key_to_no_other_host(status: int, method: str) -> None:
    with (
        http_server((200, {}, b"{}")) as (elsewhere, stolen),
        http_server((status, {"location": f"{elsewhere}/x"}, b"")) as (server, got),
    ):
        with pytest.raises(BadInput, match=r"--url only"):
            call(method, f"{server}/v1/keys", "sk-sessile-secret", {} if method == "POST" else None)
        assert got[0]["authorization"] == "Bearer sk-sessile-secret"
        assert stolen == []


@pytest.mark.parametrize("status", REDIRECTS)
def test_an_issuers_keys_come_from_no_redirect(status: int) -> None:
    with (
        http_server((200, {}, b'{"keys":[]}')) as (elsewhere, asked),
        http_server((status, {"location": f"{elsewhere}/keys"}, b"")) as (issuer, _),
    ):
        with pytest.raises(OSError, match=str(status)):
            asyncio.run(jwt_issuers.fetch(f"{issuer}/keys"))
        assert asked == []
        assert asyncio.run(jwt_issuers.fetch(f"{elsewhere}/keys")) == b'{"keys":[]}'


async def test_a_token_that_was_made_for_something_else_lets_nobody_in() -> None:
    async with a_world() as world:
        kind: object
        for kind in ("logout+jwt", "dpop+jwt", "secevent+jwt", "JWE", "application/logout+jwt", 5, ["JWT"]):
            token = world.token(typ=kind)
            answer = await world.http.get("/v1/models", headers={"authorization": f"Bearer {token}"})
            assert (kind, answer.status_code) == (kind, 401)
        for kind in ("JWT", "jwt", "at+jwt", "application/at+jwt", None):
            token = world.token(typ=kind)
            answer = await world.http.get("/v1/models", headers={"authorization": f"Bearer {token}"})
            assert (kind, answer.status_code) == (kind, 200)
        with pytest.raises(Unauthorized, match="typ"):
            world.assembly.gateway.access.authenticate(world.token(typ="logout+jwt"))
