"""The bytes of request bodies in memory: bounded for each caller and in all, and given back at each end."""

from __future__ import annotations

import asyncio
import gzip

import pytest

from sessions.model.errors import Limited, Overloaded, SessileError
from sessions.model.types import Principal, TenantId, UnixMs
from transport.auth.authenticator import Authenticator
from transport.http.body_budget import BodyBudget
from transport.http.middleware import LET_BODY_GO, UPLOADS, Message, Receive, RequestContextMiddleware, Scope, Send
from transport.loop_turns import LoopTurns

HALF = b"x" * 50


def test_callers_and_tenants_have_their_shares_and_all_have_the_whole() -> None:
    budget = BodyBudget(400)
    budget.take("a", "acme", 100)
    with pytest.raises(Limited, match="this key") as limited:
        budget.take("a", "acme", 1)
    assert limited.value.code == "rate_limited" and limited.value.retry_after_ms
    budget.take("b", "acme", 100)
    with pytest.raises(Limited, match="this tenant"):
        budget.take("c", "acme", 1)
    for other in "de":
        budget.take(other, "globex", 100)
    with pytest.raises(Overloaded):
        budget.take("f", "initech", 1)
    for caller, tenant in zip("abde", ("acme", "acme", "globex", "globex"), strict=True):
        budget.give_back(caller, tenant, 100)
    assert not budget._of and not budget._in_all


class Door:
    """The middleware over an application that reads bodies and then waits, for requests of one key."""

    def __init__(self, *, lets_go: bool) -> None:
        access = Authenticator({}, clock=lambda: 0.0, now_ms=lambda: UnixMs(0))
        self.budget = BodyBudget(400)
        self.refused = list[SessileError]()
        self.answer = asyncio.Event()
        self._read = asyncio.Semaphore(0)
        self._lets_go = lets_go
        self._app = RequestContextMiddleware(self.app, access, 1_000, lambda: "1", self.refuse, bodies=self.budget)

    async def refuse(self, error: SessileError, *_: object) -> None:
        self.refused.append(error)

    async def app(self, scope: Scope, receive: Receive, send: Send) -> None:
        more = True
        while more:
            more = (await receive())["more_body"]
            self._read.release()
        if self._lets_go:
            scope["state"][LET_BODY_GO]()
        await self.answer.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def read(self, pieces: int) -> None:
        """Waits until the application has read so many more pieces."""
        for _ in range(pieces):
            await asyncio.wait_for(self._read.acquire(), 60)

    def request(self, *pieces: bytes, **headers: str) -> asyncio.Task[None]:
        """Sends a request whose body lacks its end until the door answers, if no piece of it is the last."""
        left = list(pieces)

        async def receive() -> Message:
            if not left:
                await self.answer.wait()
                return {"type": "http.request", "body": b"", "more_body": False}
            piece = left.pop(0)
            return {
                "type": "http.request",
                "body": piece,
                "more_body": not piece.endswith(b"\n") and piece[:1] != b"\x1f",
            }

        async def send(_: Message) -> None:
            return None

        by = Principal(tenant=TenantId("acme"), key_id="k", role="service")
        raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
        scope = {"type": "http", "method": "POST", "path": "/", "headers": [*raw, (b"host", b"127.0.0.1")]}
        return asyncio.create_task(self._app({**scope, "state": {"principal": by}}, receive, send))


async def test_bodies_that_lack_their_end_count_and_the_next_is_refused_meanwhile() -> None:
    """Seven hundred connections of one key could hold four megabytes each for a minute."""
    door = Door(lets_go=False)
    waiting = [door.request(HALF), door.request(HALF)]
    await door.read(2)
    await asyncio.wait_for(door.request(HALF), 60)
    (refused,) = door.refused
    assert refused.code == "rate_limited"
    door.answer.set()
    await asyncio.wait_for(asyncio.gather(*waiting), 60)
    assert len(door.refused) == 1 and not door.budget._of


async def test_a_compressed_body_counts_as_unpacked() -> None:
    door = Door(lets_go=False)
    await asyncio.wait_for(door.request(gzip.compress(b"x" * 101), content_encoding="gzip"), 60)
    assert [error.code for error in door.refused] == ["rate_limited"] and not door.budget._of


@pytest.mark.parametrize(("lets_go", "held"), [(True, 0), (False, 101)])
async def test_a_body_counts_until_the_route_lets_it_go_or_answers(lets_go: bool, held: int) -> None:
    door = Door(lets_go=lets_go)
    door.budget = door._app.bodies = BodyBudget(1_000)
    asking = door.request(HALF, HALF, b"\n")
    await door.read(3)
    assert door.budget._in_all == held
    door.answer.set()
    await asyncio.wait_for(asking, 60)
    assert not door.refused and not door.budget._of


async def test_a_piece_of_an_upload_weighs_on_the_loop_what_it_has_and_one_of_another_body_all_before_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The last piece of another body is parsed with all of it, an upload goes to its file piece by piece. Each 64 KiB
    of a long upload took a round of the loop from everyone."""
    sizes = list[int]()

    async def noted(_: LoopTurns, caller: object, size: int = 0) -> None:
        sizes.append(size)

    async def app(_: Scope, receive: Receive, send: Send) -> None:
        while (await receive())["more_body"]:
            pass

    async def unused(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr(LoopTurns, "turn", noted)
    access = Authenticator({}, clock=lambda: 0.0, now_ms=lambda: UnixMs(0))
    door = RequestContextMiddleware(app, access, 1_000, lambda: "1", unused, upload_bytes_max=1_000)
    for path in (UPLOADS, "/"):
        left = [HALF, HALF, HALF]

        async def receive(left: list[bytes] = left) -> Message:
            return {"type": "http.request", "body": left.pop(), "more_body": bool(left)}

        scope = {"type": "http", "method": "POST", "path": path, "headers": [(b"host", b"127.0.0.1")]}
        await door(scope, receive, unused)
    assert sizes == [0, 50, 50, 50, 0, 50, 100, 150]
