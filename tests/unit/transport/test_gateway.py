"""A gateway's own decisions: who may, how much, of which models, and how an error is shown."""

from __future__ import annotations

import asyncio
import re
from base64 import b64encode
from pathlib import Path
from typing import get_args

import msgspec
import pytest
from msgspec.structs import replace

from actors.limits.memory import MemoryLimiter
from sessions.limits import Ceilings, Demand, Grant, Limits, Tally, TenantLimits
from sessions.model import commands as cm
from sessions.model import errors as kinds
from sessions.model.commands import ActorCommand, MessageCreate, Ok, SessionUpdate
from sessions.model.errors import BadInput, Conflict, Forbidden, Limited, NotFound, Overloaded, Unavailable
from sessions.model.generation import EngineInfo
from sessions.model.request import Request, request_of
from sessions.model.types import (
    LOCAL_PRINCIPAL,
    CallId,
    CommandId,
    IncompleteReason,
    InputImage,
    InputText,
    ItemId,
    Principal,
    ReplicaId,
    ResponseId,
    SessionId,
    SessionKey,
    TenantId,
)
from sessions.ports import Member, View
from sessions.routing.models_file import NO_POOLS, read_models
from testbed.images.made import a_pattern, encoded
from tests.support.doors.transport import FakeSessions, gateway_over, memory_sessions
from tests.support.images.inline import InlineImages
from transport import errors
from transport.errors import CODES, INNER, STARTUP, public, public_code, row
from transport.gateway import Gateway, GatewayLimits, GatewayServices
from transport.model_catalog import ModelCard, ModelCatalog, PooledModels, PoolFacts, card, card_of
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
from transport.tasks import Tasks

UPDATE = SessionUpdate(id=CommandId("c"), session=SessionId("s"), title="t")
READER = Principal(tenant=LOCAL_PRINCIPAL.tenant, key_id="k", scopes=("read",))


async def stuck(limits: GatewayLimits) -> tuple[Gateway, asyncio.Event]:
    """A gateway with one command under way until the event is set."""
    sessions, leave = await memory_sessions(), asyncio.Event()

    async def wait(_: Principal, command: ActorCommand) -> Ok:
        await leave.wait()
        return Ok(id=command.id)

    sessions.answer = wait
    gateway = gateway_over(sessions, limits=limits)
    gateway.tasks.start(run(gateway))
    await asyncio.sleep(0)
    return gateway, leave


async def run(gateway: Gateway) -> None:
    await gateway.execute(LOCAL_PRINCIPAL, UPDATE)


async def test_a_command_needs_its_scope_and_is_counted() -> None:
    gateway = gateway_over(await memory_sessions())
    assert (await gateway.execute(LOCAL_PRINCIPAL, UPDATE)).id == "c"
    with pytest.raises(Forbidden):
        await gateway.execute(READER, UPDATE)
    assert gateway.measures.commands.total == 2 and gateway.measures.refused.values == {("forbidden",): 1}


async def test_commands_under_way_are_limited_per_key_and_in_all() -> None:
    gateway, leave = await stuck(GatewayLimits(commands_per_principal_max=1))
    with pytest.raises(Limited):
        await gateway.execute(LOCAL_PRINCIPAL, UPDATE)
    leave.set()
    await gateway.tasks.settled()
    await gateway.execute(LOCAL_PRINCIPAL, UPDATE)
    full, leave = await stuck(GatewayLimits(commands_max=1))
    with pytest.raises(Overloaded):
        await full.execute(LOCAL_PRINCIPAL, UPDATE)
    leave.set()
    await full.tasks.settled()


async def test_a_cancel_that_comes_too_late_raises_nothing() -> None:
    sessions = FakeSessions((await memory_sessions()).journal)

    def late(_: Principal, command: ActorCommand) -> Ok:
        raise Conflict("response_in_progress", "It has ended.")

    sessions.answer = late
    await gateway_over(sessions).cancel(LOCAL_PRINCIPAL, SessionId("s"), [ResponseId("r")], id_prefix="http")
    assert [command.id for command in sessions.executed] == ["http_id0"]


async def test_erasures_are_swept_at_once_where_this_process_can() -> None:
    swept = []

    async def sweep() -> int:
        swept.append(1)
        raise Unavailable("journal_unavailable", "Away.")

    await gateway_over(await memory_sessions(), services=GatewayServices(erase=sweep)).sweep_erasures()
    await gateway_over(await memory_sessions()).sweep_erasures()
    assert swept == [1]


async def test_an_image_for_an_alias_or_of_a_repeat_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = InlineImages()
    models = (
        ModelCard(id="blind"),
        ModelCard(id="any", pool=PoolFacts(replicas=1, models=("blind", "seeing"))),
        ModelCard(id="seeing", images=True),
    )
    sessions = await memory_sessions()
    gateway = gateway_over(sessions, services=GatewayServices(models=lambda: models, images=decoder))
    url = "data:image/png;base64," + b64encode(encoded(a_pattern())).decode()
    command = MessageCreate(id=CommandId("m"), session=SessionId("s"), content=(InputImage(image_url=url),))
    for number, name in enumerate(("any", "seeing", "unheard of"), start=1):
        await gateway.execute(LOCAL_PRINCIPAL, replace(command, model=name))
        assert decoder.read == number
    with pytest.raises(BadInput):
        await gateway.execute(LOCAL_PRINCIPAL, replace(command, model="blind"))
    assert decoder.read == 3
    monkeypatch.setattr(gateway, "applied", applied)
    await gateway.execute(LOCAL_PRINCIPAL, replace(command, model="blind"))
    assert decoder.read == 4


async def applied(*_: object) -> bool:
    return True


ROOT = Path(__file__).resolve().parents[3]
CLASSES = {
    name for name, value in vars(kinds).items() if isinstance(value, type) and issubclass(value, kinds.SessileError)
}


PACKAGES = ("sessions", "actors", "inference", "persistence", "transport")


def raised() -> dict[str, set[str]]:
    """Every code that stands as a literal in the making of an error: code → files."""
    making = re.compile(rf'\b(?:{"|".join(CLASSES)})\(\s*"([^"]*)"')
    found: dict[str, set[str]] = {}
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            for code in making.findall(path.read_text()):
                found.setdefault(code, set()).add(path.relative_to(ROOT).as_posix())
    return found


def test_every_code_that_is_raised_has_a_row() -> None:
    codes = raised()
    assert len(codes) > 30, "the search finds what it should"
    known = CODES.keys() | INNER.keys() | STARTUP
    assert {code: files for code, files in codes.items() if code not in known} == {}


def test_every_reason_of_an_incomplete_answer_is_one_that_the_protocol_names() -> None:
    """Old logs may have others: `incomplete_details` is read as it is, and clients take any reason."""
    table = (ROOT / "docs/protocol.md").read_text().partition("| `reason` | the answer ended because |")[2]
    named = re.findall(r"`([a-z_]+)`", "".join(row.split("|")[1] for row in table.partition("\n\n")[0].split("\n")[2:]))
    assert sorted(named) == sorted(get_args(IncompleteReason))


def test_inner_codes_are_told_by_their_public_name() -> None:
    assert public(kinds.Unavailable("session_moving", "Changing hands.", retry_after_ms=200)) == {
        "type": "server_error",
        "code": "fenced",
        "message": "Changing hands.",
        "param": None,
        "retryable": True,
        "retry_after_ms": 200,
    }
    assert row("session_moving").http == 503


@pytest.mark.parametrize("code", ["never_heard_of", ""])
def test_a_code_without_a_row_says_nothing_of_itself(code: str) -> None:
    body = public(kinds.BadInput(code, "A secret of ours."))
    assert (body["code"], body["message"]) == ("internal_error", "The server failed to carry this out.")
    assert (public_code(code), row(code).close) == ("internal_error", errors.INTERNAL)


INFO = EngineInfo(
    model="small",
    build="b",
    model_fingerprint="w",
    context_window=8192,
    slots=4,
    sampling=frozenset({"temperature", "logprobs"}),
    tool_format="hermes",
)


def member(name: str, engine: EngineInfo | None = INFO, model: str = "small") -> Member:
    return Member(replica=ReplicaId(name), incarnation="i", address="", model=model, fingerprint="f", engine=engine)


class Cluster:
    """A view and a clock that the test moves."""

    def __init__(self, *members: Member) -> None:
        self.now = 0.0
        self.view = View(1, members)
        self.catalog = ModelCatalog(lambda: self.view, clock=lambda: self.now, created=7, keep_s=100.0)

    def names(self, *members: Member) -> list[str]:
        self.view = View(self.view.version + 1, members)
        return [each.id for each in self.catalog()]


def test_a_replica_that_does_not_say_what_it_can_leaves_it_open() -> None:
    (found,) = Cluster(member("r1"), member("r2", None)).catalog()
    assert (found.context_window, found.sampling) == (None, None)


def test_a_model_whose_replicas_are_gone_stays_for_a_while() -> None:
    cluster = Cluster(member("r1"), member("r2", model="large"))
    assert cluster.names(member("r1"), member("r2", model="large")) == ["large", "small"]
    cluster.now = 99.0
    assert set(cluster.names(member("r1"))) == {"large", "small"}
    cluster.now = 101.0
    assert cluster.names(member("r1")) == ["small"]


def test_nothing_served_yet_is_to_be_retried_and_an_unknown_name_is_not() -> None:
    with pytest.raises(Unavailable, match="No replica has joined yet") as refused:
        card(Cluster().catalog, "small")
    assert refused.value.retryable
    with pytest.raises(NotFound, match=r"'smal' does not exist here; served: small\. Did you mean 'small'"):
        card(Cluster(member("r1")).catalog, "smal")
    assert card(Cluster(member("r1")).catalog, "SMALL").id == "small"
    assert card(Cluster(member("r1")).catalog, None).id == "small"


def test_a_model_is_requested_by_each_of_its_names_and_answers_by_the_first() -> None:
    named = msgspec.structs.replace(INFO, aliases=("gpt-4o", "tiny"))
    cluster = Cluster(member("a", named), member("b"))
    assert card(cluster.catalog, "tiny").id == card(cluster.catalog, "small").id == "small"
    (only,) = cluster.catalog()
    assert only.names == ("small", "gpt-4o", "tiny") and only.public("tiny")["id"] == "tiny"
    with pytest.raises(NotFound):
        card(cluster.catalog, "gpt")
    own = card_of(named, notice="This is a toy.")
    assert own.aliases == named.aliases and own.public("tiny")["notice"] == "This is a toy."


def test_the_models_file_adds_its_aliases_and_what_it_says_of_pools() -> None:
    models = "[models.a]\nquality = 1\nwindow = 2048\ntools = false\n[models.b]\nquality = 2\n"
    pools = read_models(f"default = 'auto'\n{models}[aliases]\nauto = ['a', 'b']\nnone = 'b'\n")
    cards = [ModelCard(id="a", context_window=4_096, tools=True), ModelCard(id="c")]
    pooled = PooledModels(lambda: cards, lambda: pools, lambda name: 3)
    auto, own, other = pooled()
    assert (auto.id, own.id, other.id) == ("auto", "a", "c"), "the default first; b is not served, nor its alias"
    assert own.pool == PoolFacts(replicas=3, quality=1) and (own.context_window, own.tools) == (2_048, False)
    assert auto.pool == PoolFacts(replicas=3, models=("a",)) and other.pool is None
    assert own.public()["pool"] == {"replicas": 3, "quality": 1, "size_b": None, "vision": False, "models": ()}
    assert PooledModels(lambda: cards, lambda: NO_POOLS, lambda name: 3)() == cards


def test_an_alias_sees_images_if_one_of_its_models_does() -> None:
    models = "[models.a]\nquality = 1\n[models.b]\nquality = 2\n"
    pools = read_models(f"{models}[aliases]\nauto = ['a', 'b']\nblind = ['a']\n")
    cards = [ModelCard(id="a"), ModelCard(id="b", images=True)]
    seeing = {each.id for each in PooledModels(lambda: cards, lambda: pools, lambda name: 1)() if each.images}
    assert seeing == {"b", "auto"}


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


async def test_commands_that_a_key_sends_at_once_take_its_requests_before_the_limiter_has_answered() -> None:
    """Each of 32 commands on each connection found the last request of its key, while a limiter in Valkey was asked."""
    now = asyncio.Event()

    class Slow(MemoryLimiter):
        async def reserve(self, demand: Demand) -> Grant:
            await now.wait()
            return await super().reserve(demand)

    table = TenantLimits(key_requests_per_minute=2, concurrent_turns=1)
    held = Quotas(Slow(lambda: 0.0), lambda: Limits(default=table), Stored(), lambda: 0.0)
    running = [asyncio.create_task(held.execute(message(f"m{number}"), begun)) for number in range(5)]
    await asyncio.sleep(0)
    now.set()
    ended = await asyncio.gather(*running, return_exceptions=True)
    params = [each.param for each in ended if isinstance(each, Limited)]
    assert params == ["concurrent_turns"] + ["key_requests_per_minute"] * 3
    with pytest.raises(Limited) as error:  # what the other limit refused was given back
        await held.execute(message("m9"), begun)
    assert error.value.param == "concurrent_turns"


async def test_each_user_of_an_issuer_has_the_requests_of_a_key() -> None:
    """Who came by a token or had signed in was in no limit of requests but that of writing, and waited for nobody."""
    held = quotas(TenantLimits(key_requests_per_minute=3))
    ann, ben = (replace(LOCAL_PRINCIPAL, key_id="jwt:https://login.example", user=user) for user in ("ann", "ben"))
    post = http_arrival("POST", "/v1/responses", {})
    for _ in range(3):
        held.arrive(ann, post)
    for refuse in (held.check_arrival, held.arrive):
        with pytest.raises(Limited, match="This user may have 3 requests") as error:
            refuse(ann, post)
        assert error.value.param == "key_requests_per_minute"
    held.arrive(ben, post)


@pytest.mark.parametrize(("key_id", "user"), [("other", LOCAL_PRINCIPAL.user), ("jwt:https://login.example", "ben")])
async def test_what_a_key_or_a_user_sends_at_once_waits_while_another_is_about(key_id: str, user: str | None) -> None:
    held = quotas(TenantLimits(key_requests_per_minute=10_000))
    other = replace(LOCAL_PRINCIPAL, key_id=key_id, user=user)
    busy = replace(other, user="ann") if user == "ben" else LOCAL_PRINCIPAL
    large = http_arrival("POST", "/v1/responses", {b"content-length": b"4000000"})
    assert [held.arrive(busy, large) for _ in range(9)] == [0.0] * 9
    assert held.arrive(other, Arrival()) == 0.0
    waits = [held.arrive(busy, large) for _ in range(9)]
    assert waits == sorted(waits) and len(set(waits)) == 9
    with pytest.raises(Limited) as error:
        for _ in range(100):
            held.arrive(busy, large)
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


async def test_closing_cancels_waits_and_lets_nothing_new_begin() -> None:
    tasks = Tasks()
    seen: list[str] = []

    async def lasting() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.sleep(0)
            seen.append("cleaned up")
            raise

    tasks.start(lasting())
    await asyncio.sleep(0)
    await tasks.close()
    assert seen == ["cleaned up"]
    late = lasting()
    tasks.start(late)
    assert len(tasks) == 0
    await tasks.close()
