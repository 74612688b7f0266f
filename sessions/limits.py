"""Rate limits and quotas of tenants and their users: ceilings, demands, and the token buckets that decide.

Two scopes decide at once, the tenant and one of its users (the end user, or the key if there is none), and both must
agree. Each scope has a bucket of requests and one of tokens, each with a minute's worth and refilled evenly, and a
number of turns under way. A turn reserves its input and the longest output that it may have, and is settled at its end
with what it used. A reservation that is not settled in time (its processes died) frees its place, and its tokens stay
paid.

Invariants: a refusal charges nothing. A bucket is overdrawn by at most one reservation, and only when it was full: a
turn that needs more than a whole minute's worth is admitted when the bucket is full. A reservation has the name of its
response, so a command that is repeated is charged once (I5).

Pure, except for the ports at the end; `actors/limits/limits.lua` has the same arithmetic for counts that a cluster
shares. Does not know: files, stores, doors. Token buckets: RFC 2697's in one colour.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Final, Literal, Protocol, get_args, runtime_checkable

import msgspec
from msgspec import Meta

from sessions.model.knowledge.files import FileQuota, FileQuotas
from sessions.model.types import CommandId, ContextPolicy, Principal, ResponseId, SessionId, SessionKey, TenantId

MINUTE_MS: Final = 60_000
BUSY_RETRY_MS: Final = 1_000  # nobody knows when another turn ends

Count = Annotated[int, Meta(ge=1, le=10**15)]
What = Literal["requests_per_minute", "tokens_per_minute", "concurrent_turns"]
WHAT: Final[tuple[What, ...]] = get_args(What)  # in the order in which limiters count them


class Ceilings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The limits of one scope (a tenant or a user). A field that is None is unlimited."""

    requests_per_minute: Count | None = None
    tokens_per_minute: Count | None = None
    concurrent_turns: Count | None = None
    sessions: Count | None = None
    stored_bytes: Count | None = None
    files: Count | None = None
    file_bytes: Count | None = None  # of all files together

    def scaled(self, share: float) -> Ceilings:
        """Returns the limits with rates and turns multiplied by `share`, for a process that counts alone while the
        shared counts are away."""

        def part(ceiling: int | None) -> int | None:
            return None if ceiling is None else max(1, round(ceiling * share))

        return msgspec.structs.replace(
            self,
            requests_per_minute=part(self.requests_per_minute),
            tokens_per_minute=part(self.tokens_per_minute),
            concurrent_turns=part(self.concurrent_turns),
        )


class TenantLimits(Ceilings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A tenant's table: its own limits, those of each of its users, and its rank among tenants."""

    kv_bytes: Count | None = None  # at each replica, on the device and in its tiers; not per user
    weight: Annotated[float, Meta(gt=0, le=1_000)] = 1.0  # of the tenant's share of an engine
    priority: Annotated[int, Meta(ge=0, le=9)] = 5  # smaller is served earlier, whatever the shares
    user: Ceilings = Ceilings()
    key_requests_per_minute: Count | None = None  # requests at one gateway with one key, whatever users it acts for
    sharing: bool = True  # False: no share links are made, and existing ones show nothing
    context_policy: ContextPolicy | None = None  # for full context windows; None: by `--context-policy`

    @property
    def file_quotas(self) -> FileQuotas:
        """The quotas of stored files."""
        return FileQuotas(FileQuota(self.files, self.file_bytes), FileQuota(self.user.files, self.user.file_bytes))

    titles: bool = True  # False: conversations get no titles by the server (nor if `--titles` is off)
    memories: bool = False  # True: users' memories are part of the sessions that they create
    result_cache_s: Annotated[int, Meta(ge=1, le=604_800)] | None = None  # how long answers are cached; None: never
    result_cache_bytes: Count = 16_777_216  # size of the tenant's result cache


class Share(msgspec.Struct, frozen=True):
    """A tenant's rank in an engine's queue. Turns with smaller `priority` come first; among equals, tenants get turns
    in proportion to `weight`."""

    priority: int = 5
    weight: float = 1.0


class Forecast(msgspec.Struct, frozen=True, kw_only=True):
    """A forecast for a turn that came now: its place in the queue (0 if it would not wait), and its times."""

    position: int
    wait_s: float  # until it gets a slot
    ttft_s: float
    tpot_s: float  # at the engine's present pace
    idle: bool = False  # the engine has nothing else to do
    full: bool = False  # the queue has no place for it


class Target(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The latency target of a priority: time to the first token, and mean time per later token."""

    ttft_ms: Annotated[float, Meta(gt=0)]
    tpot_ms: Annotated[float, Meta(gt=0)] = 1_000.0


class BrownoutStep(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One step of brownout: what answers do without at it. Steps are not cumulative."""

    output_tokens: Count | None = None  # answers have at most so many tokens
    extras: bool = True  # False: no log probabilities, and no KV is computed ahead of a turn
    smaller_model: bool = False  # the smaller model answers turns that the model would be too late for


class Limits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A whole limits file. A tenant without a table of its own has the limits in `default`."""

    default: TenantLimits = TenantLimits()
    tenants: dict[str, TenantLimits] = {}
    targets: dict[Annotated[str, Meta(pattern="^(default|[0-9])$")], Target] = {}  # by priority; none: always let in
    brownout: tuple[Count | BrownoutStep, ...] = ()  # steps, while too many are refused; a number: output_tokens
    output_tokens: Count = 1_024  # reserved where a request names no max_output_tokens
    connections_per_s: Annotated[float, Meta(gt=0, le=1_000_000)] | None = None  # WebSockets opened at one gateway
    reservation_s: Annotated[float, Meta(ge=1, le=86_400)] = 900.0  # how long a turn may keep its reservation
    store_lost: Literal["local", "open", "closed"] = "local"  # what limiters do while the cluster's store is away
    local_share: Annotated[float, Meta(gt=0, le=1)] = 0.25  # of the limits, per process, for `local`

    def browned(self, level: int) -> tuple[int, BrownoutStep]:
        """Returns the level, at most that of the file's last step (the file may have changed), and the step in force at
        it."""
        level = min(level, len(self.brownout))
        step = self.brownout[level - 1] if level else BrownoutStep()
        return level, BrownoutStep(output_tokens=step) if isinstance(step, int) else step

    def target(self, priority: int) -> Target | None:
        return self.targets.get(str(priority), self.targets.get("default"))

    def share(self, principal: Principal) -> Share:
        tenant = self.of(principal.tenant)
        return Share(tenant.priority, tenant.weight)

    def of(self, tenant: TenantId) -> TenantLimits:
        return self.tenants.get(tenant, self.default)


DEFAULT_LIMITS: Final = Limits(
    default=TenantLimits(
        requests_per_minute=3_000,
        tokens_per_minute=5_000_000,
        concurrent_turns=256,
        sessions=100_000,
        files=100_000,
        file_bytes=100 << 30,
        user=Ceilings(
            requests_per_minute=300,
            tokens_per_minute=1_000_000,
            concurrent_turns=32,
            sessions=10_000,
            files=1_000,
            file_bytes=1 << 30,
        ),
        key_requests_per_minute=1_500,
    )
)
"""The limits if keys are required and no file says otherwise."""


UNLIMITED: Final = Limits()


def user_scope(principal: Principal) -> str:
    """Returns the name of a principal's user scope: its end user, whichever key acts for it, or else its key."""
    return f"u:{principal.user}" if principal.user is not None else f"k:{principal.key_id}"


# -- demands ----------------------------------------------------------------------------------------------------------


class Demand(msgspec.Struct, frozen=True, kw_only=True):
    """The reservation that a turn requests. `input_tokens` are those that it adds to what its session is known to
    contain."""

    tenant: TenantId
    user: str  # `user_scope`
    session: SessionId | None  # None: for no session, such as a question about texts
    name: ResponseId
    input_tokens: int
    output_tokens: int
    tenant_ceilings: Ceilings
    user_ceilings: Ceilings
    hold_ms: int


class BucketLevel(msgspec.Struct, frozen=True):
    """The state of a bucket: what is left of `limit`, and the milliseconds until it is full again."""

    limit: int
    remaining: int
    reset_ms: int


class RateLimitStatus(msgspec.Struct, frozen=True):
    """For requests and for tokens the bucket, of the tenant or the user, that has the least left; None if there is no
    limit."""

    requests: BucketLevel | None = None
    tokens: BucketLevel | None = None


class LimitRefusal(msgspec.Struct, frozen=True):
    what: What
    scope: Literal["tenant", "user"]
    limit: int
    retry_after_ms: int


class Grant(msgspec.Struct, frozen=True):
    """The answer to a reservation: it is granted if `refusal` is None."""

    standing: RateLimitStatus
    refusal: LimitRefusal | None = None
    again: bool = False  # granted before, to a turn that may be under way: the caller must release nothing


# -- buckets ----------------------------------------------------------------------------------------------------------


class Bucket:
    """A token bucket: it has a minute's worth and refills evenly. Mutable; `at_ms` is the time of the last `look`."""

    __slots__ = ("at_ms", "ceiling", "level")

    def __init__(self, ceiling: int, now_ms: float) -> None:
        self.ceiling = ceiling
        self.level = float(ceiling)
        self.at_ms = now_ms

    def look(self, ceiling: int, now_ms: float) -> None:
        """Refills the bucket up to now. If the ceiling has changed the level changes by the same amount, so that what
        was spent stays spent."""
        self.level += max(0.0, now_ms - self.at_ms) * self.ceiling / MINUTE_MS
        self.level = min(self.level, self.ceiling) + ceiling - self.ceiling
        self.ceiling, self.at_ms = ceiling, now_ms

    def wait_ms(self, amount: float) -> int:
        """Returns the milliseconds until `amount` may be taken; 0 if it may be taken now."""
        short = min(amount, self.ceiling) - self.level
        return 0 if short <= 1e-6 else max(1, -int(-short * MINUTE_MS // self.ceiling))

    def take(self, amount: float) -> None:
        """Takes an amount; a negative amount gives it back."""
        self.level = min(self.level - amount, float(self.ceiling))

    @property
    def gauge(self) -> BucketLevel:
        reset_ms = -int(-(self.ceiling - self.level) * MINUTE_MS // self.ceiling)
        return BucketLevel(self.ceiling, max(0, int(self.level + 1e-6)), max(0, reset_ms))


def nearest(gauges: list[BucketLevel | None]) -> BucketLevel | None:
    """Returns the bucket with the least left; None if there is none."""
    return min((gauge for gauge in gauges if gauge is not None), key=lambda gauge: gauge.remaining, default=None)


# -- ports ------------------------------------------------------------------------------------------------------------


class Limiter(Protocol):
    """Counts what tenants and users take. Every call is one atomic decision.

    Its methods raise Unavailable if the counts cannot be reached, and OutcomeUnknown if a decision may have been made;
    then a repeat under the same name gets that decision.
    """

    async def reserve(self, demand: Demand) -> Grant:
        """Takes `demand` from both scopes, or nothing. If a reservation of the same name was granted, it is granted
        again without a charge, up to an hour after that one's end."""
        ...

    async def settle(self, tenant: TenantId, name: ResponseId, session: SessionId | None, tokens: int) -> None:
        """Settles a response that has ended and used `tokens`, input and output: gives back the rest, or takes what is
        missing. Idempotent; for an unknown name only the session's size changes."""
        ...

    async def release(self, tenant: TenantId, name: ResponseId, *, unasked: bool) -> None:
        """Undoes the reservation of a turn that did not begin: gives back its tokens and place, and also the request if
        the failure was ours (`unasked`). Idempotent."""
        ...


class Tally(msgspec.Struct, frozen=True):
    """The sessions and bytes that a scope has in the journal."""

    sessions: int  # listed and not deleted
    stored_bytes: int  # of its logs, including deleted ones until they are purged


class Tallies(Protocol):
    """The counts that limits read from the journal. Its methods raise Unavailable."""

    async def find_command(self, key: SessionKey, principal_id: str, command_id: CommandId) -> object | None:
        """Returns the record of a command that was applied, None if it was not (see `sessions.ports.Journal`)."""
        ...

    async def tally(self, tenant: TenantId, *, user: str | None, stored: bool) -> Tally:
        """Counts a tenant's sessions, or those of `user`. With `stored` it also counts their bytes, which reads much
        more."""
        ...


class Holdings(Protocol):
    """The size of each tenant's KV at one engine (`inference.kv.tenant_quota`)."""

    ceiling: Callable[[TenantId], int | None]
    """Returns a tenant's limit in bytes, whenever KV of it is stored. None: as much as there is room for."""

    def bytes_of(self, tenant: TenantId) -> int: ...


@runtime_checkable
class HoldsKV(Protocol):
    """An engine whose KV can be limited by tenant."""

    @property
    def holdings(self) -> Holdings: ...


LimitsNow = Callable[[], Limits]
"""Returns the limits in force: those of the last valid file."""
