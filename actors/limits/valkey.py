"""A `Limiter` for a whole cluster on Valkey or Redis: one script, one round trip, the server's clock.

All that concerns a tenant carries the same hash tag, so a decision about the tenant and its user runs whole on one
server of a cluster too. The connection is a `PipelinedConnection`, as the directory's: a call that is cancelled leaves
no answer behind for the next one. Nothing is kept longer than it matters: full buckets, ended reservations and silent
sessions expire.

Does not know what holds while the server is away (`actors.limits.fallback`).
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, Final

import structlog
from redis.exceptions import RedisError

from actors.directory.address import client_for, parse
from actors.directory.pipelined_connection import NotSent, ReplyLost, Word
from actors.directory.scripts import read_script, run_script
from actors.directory.topology import servers_for
from sessions.limits import WHAT, BucketLevel, Ceilings, Demand, Grant, LimitRefusal, RateLimitStatus, nearest
from sessions.model.errors import OutcomeUnknown, Unavailable
from sessions.model.types import ResponseId, SessionId, TenantId

SCRIPT: Final = Path(__file__).parent / "limits.lua"

log = structlog.get_logger(__name__)


class ValkeyLimiter:
    """A `Limiter` on Valkey or Redis, whose counts a cluster shares."""

    def __init__(self, url: str, *, timeout_s: float = 0.5, namespace: str = "sessile") -> None:
        """Raises BadInput for a malformed `url` (`actors.directory.address`). Connects to nothing yet."""
        self.where = parse(url).where
        self._servers = servers_for(client_for(parse(url), timeout_s=timeout_s), timeout_s=timeout_s)
        self._namespace = namespace

    async def open(self) -> None:
        """Connects. Raises Unavailable. Calls before it, or after it has failed, connect by themselves."""
        try:
            await self._servers.open()
        except (NotSent, ReplyLost, RedisError) as error:
            raise _away(error) from error

    async def close(self) -> None:
        await self._servers.close()

    async def reserve(self, demand: Demand) -> Grant:
        answer = await self._run(
            demand.tenant,
            "reserve",
            demand.name,
            demand.session or "",
            demand.user,
            demand.hold_ms,
            demand.input_tokens,
            demand.output_tokens,
            *_words(demand.tenant_ceilings),
            *_words(demand.user_ceilings),
        )
        wait_ms, what, whose, limit, *numbers = answer
        gauges = [
            None if numbers[at] < 0 else BucketLevel(numbers[at], numbers[at + 1], numbers[at + 2])
            for at in (0, 3, 6, 9)
        ]
        standing = RateLimitStatus(nearest(gauges[0::2]), nearest(gauges[1::2]))
        if not wait_ms:
            return Grant(standing, again=bool(numbers[12]))
        return Grant(standing, LimitRefusal(WHAT[what - 1], "tenant" if whose == 1 else "user", limit, wait_ms))

    async def settle(self, tenant: TenantId, name: ResponseId, session: SessionId | None, tokens: int) -> None:
        await self._run(tenant, "settle", name, session or "", tokens)

    async def release(self, tenant: TenantId, name: ResponseId, *, unasked: bool) -> None:
        await self._run(tenant, "release", name, int(unasked))

    async def _run(self, tenant: TenantId, *words: Word) -> Any:
        tag = hashlib.blake2b(tenant.encode(), digest_size=12).hexdigest()  # a tenant's name may hold a brace
        key = f"{{{self._namespace}:limits:{tag}}}:"
        try:
            return await run_script(self._servers, read_script(SCRIPT), (key,), *words)
        except ReplyLost as error:
            raise OutcomeUnknown("limits_outcome_unknown", "The counts of limits did not answer.") from error
        except (NotSent, RedisError) as error:
            if isinstance(error, RedisError):
                log.error("limits_refused", error=str(error))
            raise _away(error) from error


def _words(ceilings: Ceilings) -> tuple[int, int, int]:
    given = (ceilings.requests_per_minute, ceilings.tokens_per_minute, ceilings.concurrent_turns)
    first, second, third = (-1 if ceiling is None else ceiling for ceiling in given)
    return first, second, third


def _away(error: Exception) -> Unavailable:
    return Unavailable("limits_unavailable", f"The counts of limits cannot be reached ({type(error).__name__}).")
