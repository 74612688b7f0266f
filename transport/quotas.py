"""Enforces tenant and user limits: each command reserves what it may take before any actor gets it.

A command that may begin a response, or requests a summary, reserves a request and tokens (its own text, what its
session held at the end of its last turn, and the output it may make at most) and is settled where that ends
(`actors.limits.settlement`). One that turns out to begin none, or is refused, gives its tokens back; where nobody
knows whether it was applied, the reservation stays until the response ends or it lapses. Any other command that writes
takes a request, and no turn. Listed sessions and stored bytes are counted in the journal, at most every `TALLY_S` per
tenant and user and in a twentieth of the time, and what this gateway lets in meanwhile is added. Where there is no room
left, the journal is searched for an earlier application of the command: its answer is given again (I5).

Whatever arrives at a door for a key counts in the requests of that key as soon as the key is known (`Arrival`), before
anything of it is parsed, and waits its turn there while other keys are about (`transport.arrival_pace`). Each user who
comes by an issuer's token, or has signed in, counts as a key.

Text is counted at `TEXT_BYTES_PER_TOKEN`, and an image as `patches_of` estimates it: no gateway has a tokenizer, and
the end puts it right. What is stored of an image is its base64.

`RateLimitState` carries where the buckets stand to the answer of the HTTP request, refused or not.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Final

import msgspec
import structlog

from sessions.limits import (
    BUSY_RETRY_MS,
    Bucket,
    BucketLevel,
    Ceilings,
    Demand,
    Limiter,
    LimitRefusal,
    LimitsNow,
    RateLimitStatus,
    Tallies,
    TenantLimits,
    user_scope,
)
from sessions.machine.responses import compaction_id_of, response_id_of
from sessions.model import commands as cm
from sessions.model.errors import Limited, Overloaded, SessileError, Unavailable
from sessions.model.inspection import Answer, Question
from sessions.model.request import Request
from sessions.model.types import CommandId, InputImage, Principal, ResponseId, SessionId, TenantId
from sessions.turn.images import ImageName, patches_of
from transport.arrival_pace import ArrivalPace
from transport.auth.authenticator import TOKEN_PREFIX
from transport.auth.connection_shares import key_of
from transport.connection_rate import ConnectionRate

TEXT_BYTES_PER_TOKEN: Final = 4
MESSAGE_TOKENS: Final = 8  # that a template adds around each message
NO_TURN_HOLD_MS: Final = 1  # how long a command without a turn is counted as running: it takes no turn's place
TALLY_S: Final = 15.0
COUNT_PAUSE: Final = 20.0  # a count is followed by a pause of this many times its duration: large histories take long
TALLIES_MAX: Final = 10_000
FULL_RETRY_MS: Final = 60_000  # there is room again only when something is deleted
READ_WEIGHT: Final = 0.1  # requests that a read, or a request that a limit refuses, counts as
BODY_UNIT_BYTES: Final = 8_192  # so much of a body costs the loop as much as a request without one
BODY_UNITS_MAX: Final = 32.0
PACE_MIN: Final = 50.0  # requests a second
PACE_BURST: Final = 2.0  # times its allowance: the rate at which a key may send while other keys are active

_SAYS: Final = {
    "requests_per_minute": "requests per minute",
    "tokens_per_minute": "tokens per minute",
    "concurrent_turns": "turns at the same time",
    "sessions": "sessions",
    "stored_bytes": "bytes of history",
}

_FREE: Final = (cm.ResponseCancel, cm.SessionWarm, cm.ReviewNotify)
"""Commands that write nothing by themselves: nothing is reserved for them."""

Execute = Callable[[Request], Awaitable[cm.Ok]]
ImageBytes = Callable[[InputImage], int]

log = structlog.get_logger(__name__)


class Arrival(msgspec.Struct, frozen=True):
    """How a request or message counts that a key has sent: `weight` in the key's requests per minute, `cost` in the
    pace at which its arrivals may begin. It is known before anything of the request is parsed."""

    weight: float = READ_WEIGHT  # counted so, in requests, in the key's requests per minute
    cost: float = 1.0  # of the loop's time, in requests
    is_exempt: bool = False  # let in even if the key has nothing left: it may be a repeat, or cancels something


def http_arrival(method: str, path: str, headers: Mapping[bytes, bytes]) -> Arrival:
    """Returns how an HTTP request counts for its key: as one request, or as less for reads and cancels (`weight`), and
    the larger its body, the more time it takes (`cost`)."""
    cancels = path.endswith("/cancel")
    weight = READ_WEIGHT if method in ("GET", "HEAD", "OPTIONS") or cancels else 1.0
    length = headers.get(b"content-length", b"0")
    size = int(length) if length.isdigit() and b"transfer-encoding" not in headers else BODY_UNIT_BYTES
    cost = 1.0 + min(size / BODY_UNIT_BYTES, BODY_UNITS_MAX)
    return Arrival(weight, cost, cancels or b"idempotency-key" in headers)


@dataclass(slots=True)
class RateLimitState:
    """How much of the caller's limits is left, as far as this request knows. Mutable; each HTTP request has its own."""

    standing: RateLimitStatus | None = None
    is_counted: bool = False  # it was counted for its key when it arrived

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        """The headers `x-ratelimit-{limit,remaining,reset}-{requests,tokens}` as OpenAI writes them."""
        headers: list[tuple[bytes, bytes]] = []
        if self.standing is not None:
            for name, gauge in (("requests", self.standing.requests), ("tokens", self.standing.tokens)):
                if gauge is not None:
                    headers += _headers(name, gauge)
        return headers


RATE_LIMIT_STATE: Final[ContextVar[RateLimitState | None]] = ContextVar("rate_limits", default=None)


@dataclass(slots=True)
class _Tally:
    sessions: int
    stored_bytes: int
    with_bytes: bool
    fresh_until: float


@dataclass(frozen=True, eq=False, repr=False)
class Quotas:
    """Reserves at the limiter what each command may use, and refuses what is over a limit. One per gateway."""

    limiter: Limiter
    limits: LimitsNow
    tallies: Tallies
    clock: Callable[[], float]
    counters: Counter[str] = field(default_factory=Counter)  # the gateway's own
    _key_buckets: OrderedDict[tuple[str, str], Bucket] = field(default_factory=OrderedDict)
    _pace: ConnectionRate = field(default_factory=ConnectionRate)
    _arrivals: ArrivalPace = field(default_factory=ArrivalPace)
    _tallied: OrderedDict[tuple[TenantId, str | None], _Tally] = field(default_factory=OrderedDict)
    _counting: dict[tuple[TenantId, str | None, bool], asyncio.Task[_Tally]] = field(default_factory=dict)

    def table(self, tenant: TenantId) -> TenantLimits:
        """Returns the limits in force for a tenant."""
        return self.limits().of(tenant)

    def connect(self) -> None:
        """Admits a new connection. Raises Overloaded, with a time to come again, if too many connect at once."""
        rate = self.limits().connections_per_s
        after_ms = self._pace.enter(self.clock(), rate) if rate is not None else 0
        if after_ms:
            self.counters["connections_paced"] += 1
            raise _too_many_connect(after_ms)

    def check_room(self) -> None:
        """Raises as `connect` would, without admitting anything: for callers that only want to know."""
        rate = self.limits().connections_per_s
        after_ms = self._pace.wait(self.clock(), rate) if rate is not None else 0
        if after_ms:
            raise _too_many_connect(after_ms)

    async def execute(self, request: Request, execute: Execute, summary: CommandId | None = None) -> cm.Ok:
        """Runs a command within its limits. `summary` is the id of the `session.compact` that the same HTTP request
        sends next: its tokens are reserved now, so that both count as one request. Raises Limited, which says which
        limit and when to retry; otherwise as `execute`."""
        principal, command = request.principal, request.command
        tenant = self.limits().of(principal.tenant)
        text_bytes = begins(command)
        await self._check_room(request, stores(command), tenant, tenant.user)
        writes = not isinstance(command, _FREE)
        bucket = await self._take_from_key(principal, request) if writes else None
        if summary is not None:
            compaction = cm.SessionCompact(id=summary, session=request.key.session)
            reserved_for, text_bytes = (
                msgspec.structs.replace(request, command=compaction),
                _added(command, _read_bytes),
            )
        else:
            reserved_for = request
        demand = self._demand(reserved_for, text_bytes, tenant, tenant.user)
        again = await self._reserve(demand, bucket)
        if demand is None or again:  # reserved before: it belongs to the turn that this command's id began
            return await execute(request)
        try:
            ok = await execute(request)
        except Unavailable:
            if text_bytes is None:
                await self._released(principal.tenant, demand.name, unasked=False)
            raise  # it may have been applied: the reservation is settled at its end, or lapses
        except SessileError as error:
            await self._released(principal.tenant, demand.name, unasked=error.status >= 500)
            raise
        if summary is None and (text_bytes is None or (ok.response_id is None and ok.compaction_id is None)):
            await self._released(principal.tenant, demand.name, unasked=False)
        return ok

    async def inspect(
        self, principal: Principal, question: Question, name: ResponseId, inspect: Callable[[], Awaitable[Answer]]
    ) -> Answer:
        """Answers a question about texts within the limits of turns. Raises Limited; otherwise as `inspect`."""
        tenant = self.limits().of(principal.tenant)
        bucket = await self._take_from_key(principal)
        if not (_counts(tenant) or _counts(tenant.user)):
            await self._reserve(None, bucket)
            return await inspect()
        tokens = len(msgspec.json.encode(question)) // TEXT_BYTES_PER_TOKEN
        demand = self._demand_of(principal, None, name, tokens, 0)
        await self._reserve(demand, bucket)
        try:
            answer = await inspect()
        except BaseException as error:  # also where its client has left
            unasked = isinstance(error, SessileError) and error.status >= 500
            await self._released(principal.tenant, name, unasked=unasked)
            raise
        try:
            await self.limiter.settle(principal.tenant, name, None, tokens)
        except Unavailable as error:
            log.warning("reservation_settle_failed", reservation=name, error=error.code)
        return answer

    async def _reserve(self, demand: Demand | None, bucket: Bucket | None) -> bool:
        """Reserves a demand at the limiter. The request that was taken from `bucket` is given back if the demand is
        refused, or had been reserved before; returns whether it had. Raises Limited."""
        again = True
        try:
            again = demand is not None and await self._grant(demand)
        finally:
            if again and bucket is not None:
                bucket.take(-1)
        return again

    async def _grant(self, demand: Demand) -> bool:
        """Reserves a demand at the limiter. Returns whether it had been reserved before. Raises Limited."""
        grant = await self.limiter.reserve(demand)
        rate_limits = RATE_LIMIT_STATE.get()
        if rate_limits is not None:
            rate_limits.standing = grant.standing
        if grant.refusal is not None:
            self.counters[f"limited_{grant.refusal.what}"] += 1
            raise _limited(grant.refusal)
        return grant.again

    async def _released(self, tenant: TenantId, name: ResponseId, *, unasked: bool) -> None:
        try:
            await self.limiter.release(tenant, name, unasked=unasked)
        except Unavailable as error:
            log.warning("reservation_release_failed", response=name, error=error.code)

    def _demand(self, request: Request, text_bytes: int | None, tenant: Ceilings, user: Ceilings) -> Demand | None:
        """Returns what a command may use at most; None if it writes nothing or no limit applies to it."""
        if isinstance(request.command, _FREE) or not (_counts(tenant) or _counts(user)):
            return None
        key, principal, command = request.key, request.principal, request.command
        name = response_id_of(key, principal, command.id)
        if isinstance(command, cm.SessionCompact):
            name = ResponseId(compaction_id_of(key, principal, command.id))
        if text_bytes is None:  # a request, but no turn
            demand = self._demand_of(principal, None, name, 0, 0)
            many = (msgspec.structs.replace(each, concurrent_turns=None) for each in (tenant, user))
            changes = {"hold_ms": NO_TURN_HOLD_MS, "tenant_ceilings": next(many), "user_ceilings": next(many)}
            return msgspec.structs.replace(demand, **changes)
        output_max = getattr(command, "max_output_tokens", None)
        return self._demand_of(
            principal,
            key.session,
            name,
            text_bytes // TEXT_BYTES_PER_TOKEN + MESSAGE_TOKENS,
            self.limits().output_tokens if output_max is None else output_max,
        )

    def _demand_of(
        self, principal: Principal, session: SessionId | None, name: ResponseId, input_tokens: int, output_tokens: int
    ) -> Demand:
        limits = self.limits()
        tenant = limits.of(principal.tenant)
        return Demand(
            tenant=principal.tenant,
            user=user_scope(principal),
            session=session,
            name=name,
            input_tokens=input_tokens,
            output_tokens=output_tokens,
            tenant_ceilings=tenant,
            user_ceilings=tenant.user,
            hold_ms=round(limits.reservation_s * 1000),
        )

    # -- what a key takes for all its users ------------------------------------------------------------------------

    def check_arrival(self, principal: Principal, arrival: Arrival) -> None:
        """Raises Limited if the key has not enough requests left for this arrival. It counts nothing."""
        bucket = self._bucket_of(principal)
        if bucket is not None and not arrival.is_exempt:
            self._check(principal, bucket, arrival.weight)

    def arrive(self, principal: Principal, arrival: Arrival) -> float:
        """Counts an arrival for its key. Returns the seconds that it has to wait for its turn. Raises Limited if the
        key has nothing left or too much waits already."""
        bucket = self._bucket_of(principal)
        if bucket is None:
            return 0.0
        if not arrival.is_exempt:
            self._check(principal, bucket, arrival.weight)
        rate = max(PACE_MIN, PACE_BURST * bucket.ceiling / 60)
        wait_s = self._arrivals.enter(key_of(principal), arrival.cost, rate, self.clock())
        if not bucket.wait_ms(arrival.weight):
            bucket.take(arrival.weight)
            rate_limits = RATE_LIMIT_STATE.get()
            if rate_limits is not None and arrival.weight >= 1:
                rate_limits.is_counted = True
        if wait_s is None:
            self.counters["limited_key_arrivals"] += 1
            raise Limited(
                "rate_limited", f"This {_caller(principal)} sends too much at once.", retry_after_ms=BUSY_RETRY_MS
            )
        return wait_s

    def give_back(self, principal: Principal, arrival: Arrival) -> None:
        """Counts an arrival that was refused because of a limit as a read, which takes less of the key's requests."""
        bucket = self._bucket_of(principal)
        rate_limits = RATE_LIMIT_STATE.get()
        if bucket is not None and rate_limits is not None and rate_limits.is_counted:
            rate_limits.is_counted = False
            bucket.take(READ_WEIGHT - arrival.weight)

    async def _take_from_key(self, principal: Principal, request: Request | None = None) -> Bucket | None:
        """Takes a request from those of a whole key, whatever user names it sends. Returns its bucket; None if it is
        not limited or the request was counted on arrival. Raises Limited if it is empty and `request` is no repeat."""
        rate_limits = RATE_LIMIT_STATE.get()
        bucket = self._bucket_of(principal)
        if bucket is None or (rate_limits is not None and rate_limits.is_counted):
            return None
        if bucket.wait_ms(1) and request is not None and await self._is_repeat(request):
            return None  # it gets its answer again
        self._check(principal, bucket, 1)
        bucket.take(1)  # before anything is awaited: others of this key are about to look
        return bucket

    def _bucket_of(self, principal: Principal) -> Bucket | None:
        """Returns the bucket of a key, or of a user who came by a token or has signed in, brought up to date; None if
        its requests are not limited."""
        ceiling = self.table(principal.tenant).key_requests_per_minute
        if ceiling is None:
            return None
        now_ms, name = self.clock() * 1000, key_of(principal)
        bucket = self._key_buckets.get(name)
        if bucket is None:
            bucket = self._key_buckets[name] = Bucket(ceiling, now_ms)
            if len(self._key_buckets) > TALLIES_MAX:
                self._key_buckets.popitem(last=False)
        self._key_buckets.move_to_end(name)
        bucket.look(ceiling, now_ms)
        return bucket

    def _check(self, principal: Principal, bucket: Bucket, amount: float) -> None:
        """Raises Limited if the bucket of a principal's key has less than `amount` left."""
        wait_ms = bucket.wait_ms(amount)
        if wait_ms:
            self.counters["limited_key_requests_per_minute"] += 1
            raise Limited(
                "rate_limited",
                f"This {_caller(principal)} may have {bucket.ceiling} requests per minute. Come again in"
                f" {wait_ms / 1000:.1f} s.",
                param="key_requests_per_minute",
                retry_after_ms=wait_ms,
            )

    # -- what is stored ---------------------------------------------------------------------------------------------

    async def _check_room(self, request: Request, text_bytes: int | None, tenant: Ceilings, user: Ceilings) -> None:
        """Raises Limited (`quota_exceeded`) if a command adds a session or text and there is no room left for it."""
        principal, command = request.principal, request.command
        lists = _lists(command)
        if not lists and text_bytes is None:
            return
        tallied: list[tuple[Ceilings, str | None, _Tally]] = []
        for ceilings, whose in ((tenant, None), (user, principal.user)):
            if whose is None and ceilings is user:
                continue  # the journal knows end users, not keys
            if (lists and ceilings.sessions is not None) or ceilings.stored_bytes is not None:
                stored = ceilings.stored_bytes is not None
                tallied.append((ceilings, whose, await self._tally(principal.tenant, whose, stored=stored)))
        for ceilings, whose, tally in tallied:
            if lists and ceilings.sessions is not None and tally.sessions >= ceilings.sessions:
                full = "sessions", ceilings.sessions
            elif ceilings.stored_bytes is not None and tally.stored_bytes >= ceilings.stored_bytes:
                full = "stored_bytes", ceilings.stored_bytes
            else:
                continue
            if not await self._is_repeat(request):
                raise self._full(*full, whose)
            return
        for _, _, tally in tallied:
            tally.stored_bytes += text_bytes or 0
            tally.sessions += lists

    async def _is_repeat(self, request: Request) -> bool:
        return await self.tallies.find_command(request.key, request.principal.id, request.command.id) is not None

    async def _tally(self, tenant: TenantId, user: str | None, *, stored: bool) -> _Tally:
        if (known := self._fresh(tenant, user, stored=stored)) is not None:
            return known
        name = tenant, user, stored
        counting = self._counting.get(name)
        if counting is None:  # all callers share one count, or its failure
            counting = self._counting[name] = asyncio.create_task(self._count(tenant, user, stored=stored))
            # Its failure is theirs who wait; where all have left, nobody's.
            counting.add_done_callback(lambda done: (self._counting.pop(name), done.cancelled() or done.exception()))
        return await asyncio.shield(counting)

    async def _count(self, tenant: TenantId, user: str | None, *, stored: bool) -> _Tally:
        began = self.clock()
        counted = await self.tallies.tally(tenant, user=user, stored=stored)
        fresh_until = began + max(TALLY_S, COUNT_PAUSE * (self.clock() - began))
        tally = self._tallied[(tenant, user)] = _Tally(counted.sessions, counted.stored_bytes, stored, fresh_until)
        self._tallied.move_to_end((tenant, user))
        while len(self._tallied) > TALLIES_MAX:
            self._tallied.popitem(last=False)
        return tally

    def _fresh(self, tenant: TenantId, user: str | None, *, stored: bool) -> _Tally | None:
        known = self._tallied.get((tenant, user))
        is_fresh = known is not None and self.clock() < known.fresh_until and (known.with_bytes or not stored)
        return known if is_fresh else None

    def _full(self, what: str, limit: int, user: str | None) -> Limited:
        self.counters[f"limited_{what}"] += 1
        scope = "tenant" if user is None else "user"
        return Limited(
            "quota_exceeded",
            f"This {scope} has its {limit} {_SAYS[what]}; delete some first.",
            param=what,
            retryable=False,
            retry_after_ms=FULL_RETRY_MS,
        )


def _caller(principal: Principal) -> str:
    """Returns whose requests are counted together: those of a key, or of a user who came without one."""
    return "user" if principal.key_id.startswith(TOKEN_PREFIX) else "key"


def _lists(command: cm.ActorCommand) -> bool:
    """Returns whether a command may make a session that lists show."""
    settings = cm.session_settings_of(command)
    return settings is not None and (isinstance(settings, cm.SessionCreate) or settings.listed)


def begins(command: cm.ActorCommand) -> int | None:
    """Returns the bytes of text that a command adds to its conversation before an answer or a summary, an image counted
    as the text of as many tokens; None if the model writes nothing for it."""
    match command:
        case cm.MessageCreate() | cm.MessageEdit() | cm.TurnCreate():
            return _added(command, _read_bytes) if command.respond else None
        case cm.ResponseCreate() | cm.SessionCompact() | cm.ResponseSteer() | cm.ToolOutput():
            return _added(command, _read_bytes)
    return None


def stores(command: cm.ActorCommand) -> int | None:
    """Returns the bytes that a command adds to its conversation, without the answer to come; None if it adds none."""
    return _added(command, _stored_bytes)


def _added(command: cm.ActorCommand, image_bytes: ImageBytes) -> int | None:
    match command:
        case cm.MessageCreate() | cm.MessageEdit() | cm.ResponseSteer():
            return _bytes(command.content, image_bytes)
        case cm.ResponseCreate() | cm.SessionCompact():
            return 0
        case cm.ToolOutput():
            return _size(command.output)
        case cm.TurnCreate():
            given = command.instructions if isinstance(command.instructions, str) else ""
            made = command.create.instructions if command.create is not None else None
            return _size(given) + _size(made or "") + sum(_item_bytes(item, image_bytes) for item in command.items)
        case cm.SessionCreate() | cm.SessionUpdate() | cm.ReviewAppeal() | cm.FeedbackSet():
            return len(msgspec.json.encode(command))
    return None


def _item_bytes(item: cm.NewItem, image_bytes: ImageBytes) -> int:
    match item:
        case cm.NewMessage():
            size = _bytes(item.content, image_bytes)
        case cm.NewCall():
            size = _size(item.name) + _size(item.arguments)
        case cm.NewOutput():
            size = _size(item.output)
    return size + MESSAGE_TOKENS * TEXT_BYTES_PER_TOKEN


def _bytes(content: cm.Content, image_bytes: ImageBytes) -> int:
    parts = cm.content_parts(content)
    return sum(image_bytes(part) if isinstance(part, InputImage) else _size(part.text) for part in parts)


def _stored_bytes(image: InputImage) -> int:
    return len(image.image_url or "")


def _read_bytes(image: InputImage) -> int:
    return patches_of(ImageName(image.sha256, image.width, image.height)) * TEXT_BYTES_PER_TOKEN


def _size(text: str) -> int:
    return len(text.encode())


def _counts(ceilings: Ceilings) -> bool:
    rates = (ceilings.requests_per_minute, ceilings.tokens_per_minute, ceilings.concurrent_turns)
    return any(ceiling is not None for ceiling in rates)


def _limited(refusal: LimitRefusal) -> Limited:
    return Limited(
        "rate_limited",
        f"This {refusal.scope} may have {refusal.limit} {_SAYS[refusal.what]}. Come again in"
        f" {max(1, refusal.retry_after_ms) / 1000:.1f} s.",
        param=refusal.what,
        retry_after_ms=refusal.retry_after_ms,
    )


def _headers(name: str, gauge: BucketLevel) -> list[tuple[bytes, bytes]]:
    values = (("limit", str(gauge.limit)), ("remaining", str(gauge.remaining)), ("reset", duration(gauge.reset_ms)))
    return [(f"x-ratelimit-{what}-{name}".encode(), value.encode()) for what, value in values]


def duration(ms: int) -> str:
    """Returns a duration as OpenAI writes it: `12ms`, `1.5s`, `6m0s`."""
    if ms < 1000:
        return f"{ms}ms"
    minutes, rest_ms = divmod(ms, 60_000)
    seconds = f"{rest_ms / 1000:.3f}".rstrip("0").rstrip(".")
    return f"{minutes}m{seconds}s" if minutes else f"{seconds}s"


def _too_many_connect(after_ms: int) -> Overloaded:
    return Overloaded(
        "overloaded", "Too many connect at once. Come again after the given time.", retry_after_ms=after_ms
    )
