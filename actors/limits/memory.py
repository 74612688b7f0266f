"""A `Limiter` in the memory of one process. It also counts in a cluster's place while that cluster's store is away.

Bounded: scopes that are full again and sessions that were silent for long are forgotten, oldest first. A restart
forgets everything, which fills every bucket.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final, Literal

from sessions.limits import (
    BUSY_RETRY_MS,
    WHAT,
    Bucket,
    BucketLevel,
    Ceilings,
    Demand,
    Grant,
    LimitRefusal,
    RateLimitStatus,
    nearest,
)
from sessions.model.types import ResponseId, SessionId, TenantId

REMEMBERED_MS: Final = 3_600_000  # how long an ended reservation is remembered, so that a repeat is not charged again
ENTRIES_MAX: Final = 200_000  # of each kind: scopes, reservations, sessions
WHOSE: Final[tuple[Literal["tenant", "user"], ...]] = ("tenant", "user")


class _Scope:
    """The counts of one tenant or user."""

    __slots__ = ("requests", "tokens", "turns")

    def __init__(self) -> None:
        self.requests: Bucket | None = None
        self.tokens: Bucket | None = None
        self.turns: dict[ResponseId, float] = {}  # turns under way, with the time when their place lapses

    def look(self, ceilings: Ceilings, now_ms: float) -> None:
        self.requests = _looked(self.requests, ceilings.requests_per_minute, now_ms)
        self.tokens = _looked(self.tokens, ceilings.tokens_per_minute, now_ms)
        turns = ceilings.concurrent_turns
        if turns is not None and len(self.turns) >= turns:  # lapse times are in no order: `hold_ms` can change
            for name in [name for name, until in self.turns.items() if until <= now_ms]:
                del self.turns[name]
        while self.turns and self.turns[oldest := next(iter(self.turns))] <= now_ms:
            del self.turns[oldest]

    def waits_ms(self, ceilings: Ceilings, tokens: int) -> list[tuple[int, int]]:
        """Returns for each limit, in the order of `WHAT`, how many milliseconds a turn of `tokens` would wait, and the
        limit's value; 0 and 0 for a limit that is not set."""
        turns = ceilings.concurrent_turns
        return [
            (0, 0) if self.requests is None else (self.requests.wait_ms(1), self.requests.ceiling),
            (0, 0) if self.tokens is None else (self.tokens.wait_ms(tokens), self.tokens.ceiling),
            (BUSY_RETRY_MS if turns is not None and len(self.turns) >= turns else 0, turns or 0),
        ]

    def take(self, requests: int, tokens: int) -> None:
        if self.requests is not None:
            self.requests.take(requests)
        if self.tokens is not None:
            self.tokens.take(tokens)

    @property
    def gauges(self) -> tuple[BucketLevel | None, BucketLevel | None]:
        return (
            None if self.requests is None else self.requests.gauge,
            None if self.tokens is None else self.tokens.gauge,
        )


class _Reserved:
    __slots__ = ("scopes", "tokens", "until_ms")

    def __init__(self, tokens: int, scopes: tuple[_Scope, _Scope], until_ms: float) -> None:
        self.tokens: int | None = tokens  # None: settled
        self.scopes = scopes
        self.until_ms = until_ms


class MemoryLimiter:
    """A `Limiter` in the memory of one process. `clock_ms` must never go back. The sizes of sessions are kept from the
    first demand on that has a ceiling of tokens (the first turns after it are charged for their own tokens, until they
    are settled); with `keep_sizes` always."""

    def __init__(self, clock_ms: Callable[[], float], *, keep_sizes: bool = False) -> None:
        self._clock_ms = clock_ms
        self._keep_sizes = keep_sizes
        self._scopes: OrderedDict[tuple[TenantId, str], _Scope] = OrderedDict()
        self._reserved: OrderedDict[tuple[TenantId, ResponseId], _Reserved] = OrderedDict()
        self._held: OrderedDict[tuple[TenantId, SessionId], int] = OrderedDict()  # tokens of a session's last turn

    async def reserve(self, demand: Demand) -> Grant:
        now = self._clock_ms()
        pairs = (
            (self._scope(demand.tenant, ""), demand.tenant_ceilings),
            (self._scope(demand.tenant, demand.user), demand.user_ceilings),
        )
        for scope, ceilings in pairs:
            scope.look(ceilings, now)
            self._keep_sizes |= ceilings.tokens_per_minute is not None
        self._forget(now)
        scopes = (pairs[0][0], pairs[1][0])
        name = (demand.tenant, demand.name)
        known = self._reserved.get(name)
        if known is not None and known.until_ms > now:
            return Grant(_standing(scopes), again=True)
        held = 0 if demand.session is None else self._held.get((demand.tenant, demand.session), 0)
        tokens = held + demand.input_tokens + demand.output_tokens
        worst: LimitRefusal | None = None
        for (scope, ceilings), whose in zip(pairs, WHOSE, strict=True):
            for (wait_ms, limit), what in zip(scope.waits_ms(ceilings, tokens), WHAT, strict=True):
                if wait_ms > (worst.retry_after_ms if worst is not None else 0):
                    worst = LimitRefusal(what, whose, limit, wait_ms)
        if worst is not None:
            return Grant(_standing(scopes), worst)
        for scope in scopes:
            scope.take(1, tokens)
            scope.turns[demand.name] = now + demand.hold_ms
        self._reserved[name] = _Reserved(tokens, scopes, now + demand.hold_ms)
        self._reserved.move_to_end(name)
        return Grant(_standing(scopes))

    async def settle(self, tenant: TenantId, name: ResponseId, session: SessionId | None, tokens: int) -> None:
        now = self._clock_ms()
        if session is not None and self._keep_sizes:
            self._held[(tenant, session)] = tokens
            self._held.move_to_end((tenant, session))
        while len(self._held) > ENTRIES_MAX:
            self._held.popitem(last=False)
        reserved = self._reserved.get((tenant, name))
        if reserved is None or reserved.tokens is None or reserved.until_ms <= now:
            return
        self._give_back(reserved, name, requests=0, tokens=reserved.tokens - tokens, now=now)
        reserved.tokens = None
        reserved.until_ms = now + REMEMBERED_MS
        self._reserved.move_to_end((tenant, name))

    async def release(self, tenant: TenantId, name: ResponseId, *, unasked: bool) -> None:
        reserved = self._reserved.get((tenant, name))
        now = self._clock_ms()
        if reserved is None or reserved.tokens is None or reserved.until_ms <= now:
            return
        del self._reserved[(tenant, name)]
        self._give_back(reserved, name, requests=int(unasked), tokens=reserved.tokens, now=now)

    def _give_back(self, reserved: _Reserved, name: ResponseId, *, requests: int, tokens: int, now: float) -> None:
        for scope in reserved.scopes:
            for bucket in (scope.requests, scope.tokens):
                if bucket is not None:
                    bucket.look(bucket.ceiling, now)
            scope.take(-requests, -tokens)
            scope.turns.pop(name, None)

    def _scope(self, tenant: TenantId, user: str) -> _Scope:
        scope = self._scopes.get((tenant, user))
        if scope is None:
            scope = self._scopes[(tenant, user)] = _Scope()
        self._scopes.move_to_end((tenant, user))
        while len(self._scopes) > ENTRIES_MAX:
            self._scopes.popitem(last=False)
        return scope

    def _forget(self, now: float) -> None:
        """Forgets at most two reservations whose time is over. That is enough at every call, since they are nearly in
        order of time."""
        for _ in range(2):
            first = next(iter(self._reserved), None)
            if first is None:
                return
            reserved = self._reserved[first]
            if reserved.until_ms <= now or len(self._reserved) > ENTRIES_MAX:
                del self._reserved[first]
            else:
                return


def _looked(bucket: Bucket | None, ceiling: int | None, now_ms: float) -> Bucket | None:
    if ceiling is None:
        return None
    if bucket is None:
        return Bucket(ceiling, now_ms)
    bucket.look(ceiling, now_ms)
    return bucket


def _standing(scopes: tuple[_Scope, _Scope]) -> RateLimitStatus:
    gauges = [scope.gauges for scope in scopes]
    return RateLimitStatus(nearest([requests for requests, _ in gauges]), nearest([tokens for _, tokens in gauges]))
