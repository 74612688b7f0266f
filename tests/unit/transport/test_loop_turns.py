"""Turns on the event loop: a little work between two rounds of the loop, callers in rotation."""

from __future__ import annotations

import asyncio
import gzip
from collections import Counter
from typing import Any

import pytest

from sessions.model.types import Principal, TenantId, UnixMs
from transport.auth.authenticator import Authenticator
from transport.grpc_api import service
from transport.grpc_api import sessile_pb2 as pb
from transport.http.middleware import Message, Receive, RequestContextMiddleware, Scope, Send
from transport.loop_turns import PIECE_BYTES, ROUND_BYTES, LoopTurns

MANY = 20


class Rounds:
    """Counts the rounds of the event loop, and how much work was done in each."""

    def __init__(self) -> None:
        self._number = 0
        self.work = Counter[int]()
        self._count()

    def _count(self) -> None:
        self._number += 1
        self._timer = asyncio.get_running_loop().call_soon(self._count)

    def note(self) -> None:
        """Notes a piece of work in this round."""
        self.work[self._number] += 1

    def stop(self) -> None:
        self._timer.cancel()


async def test_in_each_round_one_large_piece_of_work_runs_and_callers_take_turns() -> None:
    turns, rounds, order = LoopTurns(), Rounds(), list[str]()

    async def work(caller: str, number: int) -> None:
        await turns.turn(caller, ROUND_BYTES)
        await turns.turn(caller, ROUND_BYTES)  # it has its turn
        rounds.note()
        order.append(f"{caller}{number}")

    tasks = [asyncio.create_task(work("a", number)) for number in range(MANY)]
    tasks += [asyncio.create_task(work("b", number)) for number in range(2)]
    await asyncio.gather(*tasks)
    rounds.stop()
    assert set(rounds.work.values()) == {1} and len(rounds.work) == MANY + 2
    assert order[:5] == ["a0", "a1", "b0", "a2", "b1"] and order[5:] == [f"a{number}" for number in range(3, MANY)]


async def test_a_round_has_room_for_several_small_pieces() -> None:
    """Else few requests begin where rounds are long, because much else is to be done in each."""
    turns, rounds = LoopTurns(), Rounds()

    async def work() -> None:
        await turns.turn("a")
        rounds.note()

    await asyncio.gather(*(work() for _ in range(MANY)))
    rounds.stop()
    assert set(rounds.work.values()) == {ROUND_BYTES // PIECE_BYTES}


async def test_work_that_is_given_up_takes_no_turn_and_leaves_nothing() -> None:
    turns, done = LoopTurns(), list[str]()

    async def work(name: str) -> None:
        await turns.turn(name, ROUND_BYTES)
        done.append(name)

    tasks = [asyncio.create_task(work(name)) for name in "abcd"]
    await asyncio.sleep(0)
    assert done == ["a"] and turns.num_waiting == 3
    tasks[2].cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert done == ["a", "b", "d"] and not turns.num_waiting
    await work("e")
    assert done[-1] == "e"


class Parser:
    """Reads bodies, and notes the round in which it has each of them."""

    def __init__(self, rounds: Rounds) -> None:
        self._rounds = rounds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        while (await receive())["more_body"]:
            pass
        self._rounds.note()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})


async def test_bodies_that_come_at_once_are_read_in_rounds_of_their_own() -> None:
    """Sixteen bodies of 160 kB that came together held the loop for 110 ms, one after the other in one round."""
    rounds, came = Rounds(), asyncio.Event()
    access = Authenticator({}, clock=lambda: 0.0, now_ms=lambda: UnixMs(0))

    async def refuse(error: Exception, *_: Any) -> None:
        raise error

    app = RequestContextMiddleware(Parser(rounds), access, 2 * ROUND_BYTES, lambda: "1", refuse)

    async def request(number: int, packed: bool) -> None:
        pieces = [gzip.compress(b"[]") if packed else bytes(ROUND_BYTES)]

        async def receive() -> Message:
            await came.wait()
            return {"type": "http.request", "body": pieces.pop(), "more_body": False}

        async def send(_: Message) -> None:
            return None

        by = Principal(tenant=TenantId(f"t{number % 3}"), key_id="k", role="service")
        headers = [(b"host", b"127.0.0.1"), *([(b"content-encoding", b"gzip")] if packed else [])]
        scope: Scope = {"type": "http", "method": "POST", "path": "/", "headers": headers, "state": {"principal": by}}
        await app(scope, receive, send)

    tasks = [asyncio.create_task(request(number, number % 2 == 0)) for number in range(MANY)]
    for _ in range(2 * MANY):
        await asyncio.sleep(0)  # each waits for its body
    came.set()
    await asyncio.gather(*tasks)
    rounds.stop()
    assert set(rounds.work.values()) == {1} and len(rounds.work) == MANY


async def test_messages_of_grpc_that_come_at_once_are_decoded_in_rounds_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Sixteen of 200 kB of nulls held the loop for 177 ms."""
    turns, rounds, decode = LoopTurns(), Rounds(), service.decoded
    message = pb.MessageCreate(id="m", content="x" * ROUND_BYTES)

    def noted(kind: Any, data: Any) -> Any:
        rounds.note()
        return decode(kind, data)

    class Call:
        async def read(self) -> bytes:
            return message.SerializeToString()

    monkeypatch.setattr(service, "decoded", noted)
    context: Any = Call()
    read = await asyncio.gather(
        *(service.read_decoded(pb.MessageCreate, context, turns, f"t{number % 3}") for number in range(MANY))
    )
    rounds.stop()
    assert read == [message] * MANY and set(rounds.work.values()) == {1}
