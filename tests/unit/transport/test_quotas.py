"""What a command is taken to add to its conversation, before anybody has counted its tokens."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from actors.limits.memory import MemoryLimiter
from sessions.limits import Ceilings, Limits, Tally, TenantLimits
from sessions.model import commands as cm
from sessions.model.errors import Conflict, Limited, Overloaded, Unavailable
from sessions.model.request import Request, request_of
from sessions.model.types import (
    LOCAL_PRINCIPAL,
    CallId,
    CommandId,
    InputImage,
    InputText,
    ItemId,
    ResponseId,
    SessionId,
    SessionKey,
    TenantId,
)
from transport.quotas import (
    COUNT_PAUSE,
    RATE_LIMIT_STATE,
    Arrival,
    Quotas,
    RateLimitState,
    begins,
    http_arrival,
    stores,
)


def test_every_text_counts_in_bytes() -> None:
    session = SessionId("s")
    said = begins(cm.MessageCreate(id=CommandId("c"), session=session, content="日本"))
    told = begins(cm.ToolOutput(id=CommandId("c"), session=session, call_id=CallId("k"), output="日本"))
    assert said == told == 6


def test_an_image_counts_in_a_turn_by_its_pixels_and_in_what_is_stored_by_its_bytes() -> None:
    url = "data:image/jpeg;base64," + "A" * 400_000
    content = (InputText(text="12345"), InputImage(image_url=url, sha256="0" * 64, width=640, height=480))
    message = cm.MessageCreate(id=CommandId("c"), session=SessionId("s"), content=content)
    turn = cm.TurnCreate(id=CommandId("c"), session=SessionId("s"), items=(cm.NewMessage(content=content),))
    read, stored = 5 + 4 * 20 * 15, 5 + len(url)
    assert (begins(message), stores(message)) == (read, stored)
    assert (begins(turn), stores(turn)) == (read + 32, stored + 32)


def test_a_summary_that_is_requested_is_written_by_the_model_too() -> None:
    assert begins(cm.SessionCompact(id=CommandId("c"), session=SessionId("s"))) == 0
    assert begins(cm.CompactionUndo(id=CommandId("c"), session=SessionId("s"))) is None


class Stored:
    """So many bytes are stored, and no command was applied before."""

    def __init__(self, stored_bytes: int = 0) -> None:
        self.stored_bytes = stored_bytes
        self.counted = list[str | None]()  # whose, each time

    async def find_command(self, key: SessionKey, principal_id: str, command_id: CommandId) -> object | None:
        return None

    async def tally(self, tenant: TenantId, *, user: str | None, stored: bool) -> Tally:
        self.counted.append(user)
        await asyncio.sleep(0)
        return Tally(0, self.stored_bytes)


def quotas(table: TenantLimits, tallies: Stored | None = None) -> Quotas:
    limits = Limits(default=table)
    return Quotas(MemoryLimiter(lambda: 0.0), lambda: limits, tallies or Stored(), lambda: 0.0)


def message(name: str, *, respond: bool = True) -> Request:
    command = cm.MessageCreate(id=CommandId(name), session=SessionId("s"), content="Hello", respond=respond)
    return request_of(LOCAL_PRINCIPAL, command, None)


async def begun(request: Request) -> cm.Ok:
    return cm.Ok(id=request.command.id, response_id=ResponseId("resp"))


async def refused(request: Request) -> cm.Ok:
    raise Conflict("idempotency_conflict", "This command id was used for another command.", param="id")


async def test_a_journal_that_takes_long_to_count_is_asked_less_often() -> None:
    now = 0.0

    class Slow(Stored):
        async def tally(self, tenant: TenantId, *, user: str | None, stored: bool) -> Tally:
            nonlocal now
            now += 2.0
            return await super().tally(tenant, user=user, stored=stored)

    stored, limits = Slow(), Limits(default=TenantLimits(stored_bytes=1_000))
    held = Quotas(MemoryLimiter(lambda: 0.0), lambda: limits, stored, lambda: now)
    for number, (at, counts) in enumerate(((0.0, 1), (2.0 * COUNT_PAUSE - 1.0, 1), (2.0 * COUNT_PAUSE, 2))):
        now = max(now, at)
        await held.execute(message(f"{number}"), begun)
        assert len(stored.counted) == counts


async def test_many_messages_share_a_count_that_fails_and_the_next_one_counts_again() -> None:
    class Away(Stored):
        async def tally(self, tenant: TenantId, *, user: str | None, stored: bool) -> Tally:
            await super().tally(tenant, user=user, stored=stored)
            raise Unavailable("journal_unavailable", "The journal is away.")

    stored = Away()
    held = quotas(TenantLimits(stored_bytes=1_000), stored)
    ended = await asyncio.gather(*(held.execute(message(f"{n}"), begun) for n in range(10)), return_exceptions=True)
    assert {type(each) for each in ended} == {Unavailable} and stored.counted == [None]
    with pytest.raises(Unavailable):
        await held.execute(message("later"), begun)
    assert stored.counted == [None, None]


async def test_a_command_under_the_id_of_a_turn_gives_nothing_of_it_back() -> None:
    held = quotas(TenantLimits(concurrent_turns=1))
    await held.execute(message("one"), begun)
    with pytest.raises(Conflict):
        await held.execute(message("one"), refused)
    with pytest.raises(Limited) as error:
        await held.execute(message("two"), begun)
    assert error.value.param == "concurrent_turns"


WRITES: tuple[cm.ActorCommand, ...] = (
    cm.SessionCreate(id=CommandId("c")),
    cm.SessionUpdate(id=CommandId("c"), session=SessionId("s"), title="Hello"),
    cm.SessionDelete(id=CommandId("c"), session=SessionId("s")),
    cm.MessageCreate(id=CommandId("c"), session=SessionId("s"), content="Hello", respond=False),
    cm.ItemPin(id=CommandId("c"), session=SessionId("s"), item_id=ItemId("i"), pinned=True),
    cm.ItemDelete(id=CommandId("c"), session=SessionId("s"), item_id=ItemId("i")),
)


@pytest.mark.parametrize("command", WRITES, ids=lambda command: type(command).__name__)
@pytest.mark.parametrize(
    "table",
    [
        TenantLimits(requests_per_minute=3),
        TenantLimits(user=Ceilings(requests_per_minute=3)),
        TenantLimits(key_requests_per_minute=3),
    ],
    ids=["tenant", "user", "key"],
)
async def test_what_writes_and_begins_no_answer_is_a_request(table: TenantLimits, command: cm.ActorCommand) -> None:
    async def written(request: Request) -> cm.Ok:
        return cm.Ok(id=request.command.id)

    held = quotas(table)
    for number in range(4):
        request = request_of(LOCAL_PRINCIPAL, replace(command, id=CommandId(f"c{number}")), None)
        if number < 3:
            await held.execute(request, written)
            continue
        with pytest.raises(Limited) as error:
            await held.execute(request, written)
        assert "requests_per_minute" in (error.value.param or "")
    cancel = cm.ResponseCancel(id=CommandId("x"), session=SessionId("s"), response_id=ResponseId("r"))
    await held.execute(request_of(LOCAL_PRINCIPAL, cancel, None), written)  # at any time


async def test_a_request_counts_among_those_of_its_key_once_and_from_the_moment_it_arrives() -> None:
    held, post = quotas(TenantLimits(key_requests_per_minute=3)), http_arrival("POST", "/v1/responses", {})
    for number in range(2):
        token = RATE_LIMIT_STATE.set(RateLimitState())
        assert held.arrive(LOCAL_PRINCIPAL, post) == 0.0
        await held.execute(message(f"m{number}"), begun)
        RATE_LIMIT_STATE.reset(token)
    token = RATE_LIMIT_STATE.set(RateLimitState())
    held.arrive(LOCAL_PRINCIPAL, post)  # and turns out to be nothing that begins an answer
    held.give_back(LOCAL_PRINCIPAL, post)  # another limit has refused it
    held.give_back(LOCAL_PRINCIPAL, post)
    RATE_LIMIT_STATE.reset(token)
    for _ in range(9):
        held.arrive(LOCAL_PRINCIPAL, http_arrival("GET", "/v1/sessions", {}))
    for method, path in (("POST", "/v1/responses"), ("GET", "/v1/sessions")):
        for refuse in (held.check_arrival, held.arrive):
            with pytest.raises(Limited) as error:
                refuse(LOCAL_PRINCIPAL, http_arrival(method, path, {}))
            assert error.value.param == "key_requests_per_minute"
    held.arrive(LOCAL_PRINCIPAL, http_arrival("POST", "/v1/responses/r/cancel", {}))
    held.arrive(
        LOCAL_PRINCIPAL, http_arrival("POST", "/v1/responses", {b"idempotency-key": b"k"})
    )  # it may be a repeat
    with pytest.raises(Limited):
        await held.execute(message("m3"), begun)


async def test_what_a_key_sends_at_once_waits_while_another_key_is_about() -> None:
    held, other = quotas(TenantLimits(key_requests_per_minute=10_000)), replace(LOCAL_PRINCIPAL, key_id="other")
    large = http_arrival("POST", "/v1/responses", {b"content-length": b"4000000"})
    assert [held.arrive(LOCAL_PRINCIPAL, large) for _ in range(9)] == [0.0] * 9
    assert held.arrive(other, Arrival()) == 0.0
    waits = [held.arrive(LOCAL_PRINCIPAL, large) for _ in range(9)]
    assert waits == sorted(waits) and len(set(waits)) == 9
    with pytest.raises(Limited) as error:
        for _ in range(100):
            held.arrive(LOCAL_PRINCIPAL, large)
    assert error.value.retry_after_ms
    assert held.arrive(other, Arrival()) == 0.0


async def test_who_asks_whether_there_is_room_takes_no_turn_of_those_that_connect() -> None:
    limits = Limits(connections_per_s=1.0)
    held = Quotas(MemoryLimiter(lambda: 0.0), lambda: limits, Stored(), lambda: 0.0)
    for _ in range(10):
        held.check_room()
    for _ in range(2):
        held.connect()
    with pytest.raises(Overloaded) as asked:
        held.check_room()
    with pytest.raises(Overloaded) as refused_one:
        held.connect()
    assert asked.value.retry_after_ms == refused_one.value.retry_after_ms == 1000
