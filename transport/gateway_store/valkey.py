"""Tickets and the history index of all gateways of a cluster, in the directory's Valkey or Redis.

    {namespace}:ticket:DIGEST           STRING  the principal behind a ticket, for 30 s
    {{namespace}:places:ROOT}:CHAIN     ZSET    places by when they are forgotten (microseconds of the server's clock);
                                                before each, in one byte, how often it was given
    {{namespace}:near:CALLER}           HASH    of digests of what a caller's sessions begin with, the last such session

Names are digests: of the ticket, and keyed ones of everything that a history is (tenant and principal first), whose key
the journal keeps. So nobody can write another's, nothing that is kept here can be redeemed or read, and whoever has it
cannot try out what somebody may have written. ROOT stands for a conversation's first message: what
one call reads lies on one server of a cluster, and conversations spread over all of them.

Everybody shares one connection, a lane. After a failure the server is left alone for `PAUSE_S`, then one call tries it:
so nobody waits for a server that is away more often than that. The log says once that it is away, once that it is back.

Does not know what then holds: for tickets, that the client comes again; for histories, that they are not known.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import cache
from hashlib import blake2b, sha1
from typing import Any, ClassVar, Final

import msgspec
import structlog
from redis.exceptions import NoScriptError, RedisError

from actors.directory.address import client_for, parse
from actors.directory.pipelined_connection import NotSent, ReplyLost, Word
from actors.directory.topology import servers_for
from sessions.model.errors import Unavailable
from sessions.model.types import Principal, SessionId
from transport.auth import tickets
from transport.history_index import (
    GIVEN_MAX,
    GIVEN_TTL_S,
    HISTORY_TTL_S,
    MARKS_PER_CALLER_MAX,
    PLACES_PER_KEY_MAX,
    ROOT_BYTES,
    HistoryPlace,
)

TIMEOUT_S: Final = 0.3
PAUSE_S: Final = 1.0
NAME_BYTES: Final = 16

# What the scripts about one place share: `given` and `kept` say how often it was given and how it stands in the chain,
# nil where it does not. Each is passed all of `_change`'s bounds and takes those that its ARGV names.
_FIND: Final = """
local function find(key, place)
  for _, kept in ipairs(redis.call('ZRANGE', key, 0, -1)) do
    if kept:sub(2) == place then return kept:byte(), kept end
  end
end
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local function keep(key, given, place, seconds, most)
  redis.call('ZADD', key, now + seconds * 1000000, string.char(given) .. place)
  redis.call('ZREMRANGEBYRANK', key, 0, -1 - most)
  local last = redis.call('ZRANGE', key, -1, -1, 'WITHSCORES')[2]
  redis.call('PEXPIRE', key, math.ceil((last - now) / 1000))
end
local given, kept = find(KEYS[1], ARGV[1])
"""

# KEYS: the chain; ARGV: place, seconds, how many places
_PUT: Final = f"""{_FIND}
if given and given > 0 then return end
if kept then redis.call('ZREM', KEYS[1], kept) end
keep(KEYS[1], 0, ARGV[1], ARGV[2], ARGV[3])
"""

# KEYS: the chain; ARGV: place, seconds, how many places, seconds of one that was given, how often a place is given
_GIVE_BACK: Final = f"""{_FIND}
given = math.max(0, (given or ARGV[5]) - 1)
if kept then redis.call('ZREM', KEYS[1], kept) end
keep(KEYS[1], given, ARGV[1], given > 0 and ARGV[4] or ARGV[2], ARGV[3])
"""

# KEYS: the chain; ARGV: place
_DROP: Final = f"""{_FIND}
if kept then redis.call('ZREM', KEYS[1], kept) end
"""

# KEYS: chains, in the order in which they are tried; ARGV: how often a place is given, for how many seconds
_TAKE: Final = """
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
for at, key in ipairs(KEYS) do
  local kept = redis.call('ZRANGE', key, now, '+inf', 'BYSCORE', 'WITHSCORES')
  local chosen, until_then
  for n = #kept - 1, 1, -2 do
    if not chosen or kept[n]:byte() < chosen:byte() then chosen, until_then = kept[n], kept[n + 1] end
  end
  if chosen then
    local given, place = chosen:byte() + 1, chosen:sub(2)
    if given < tonumber(ARGV[1]) then
      if given == 1 then until_then = math.min(until_then, now + ARGV[2] * 1000000) end
      redis.call('ZADD', key, until_then, string.char(given) .. place)
    end
    redis.call('ZREM', key, chosen)
    local last = redis.call('ZRANGE', key, -1, -1, 'WITHSCORES')[2]
    if last then redis.call('PEXPIRE', key, math.ceil((last - now) / 1000)) end
    return {at, place}
  end
  redis.call('DEL', key)
end
return false
"""

# KEYS: the caller; ARGV: seconds, how many marks, session, marks
_MARK: Final = """
for at = 4, #ARGV do redis.call('HSET', KEYS[1], ARGV[at], ARGV[3]) end
redis.call('EXPIRE', KEYS[1], ARGV[1])
local over = redis.call('HLEN', KEYS[1]) - tonumber(ARGV[2])
if over > 0 then redis.call('HDEL', KEYS[1], unpack(redis.call('HRANDFIELD', KEYS[1], over))) end
"""

log = structlog.get_logger(__name__)


class ValkeyGatewayStore:
    """The connection of one gateway to the Valkey that all gateways share. `clock` is monotonic, in seconds."""

    def __init__(
        self, url: str, *, clock: Callable[[], float], timeout_s: float = TIMEOUT_S, namespace: str = "sessile"
    ) -> None:
        """Raises BadInput for a malformed `url` (`actors.directory.address`). Connects to nothing yet."""
        address = parse(url)
        self.where = address.where
        self.clock = clock
        self.namespace = namespace
        self.lost = False
        self._servers = servers_for(client_for(address, timeout_s=timeout_s), timeout_s=timeout_s)
        self._again_at = 0.0

    async def close(self) -> None:
        await self._servers.close()

    async def call(self, key: str, *words: Word) -> Any:
        """Sends the command `words`, whose key is `key`, and returns the answer. Raises Unavailable; the command may
        have run all the same."""
        if self.clock() < self._again_at:
            raise _store_unavailable()
        if self.lost:
            self._again_at = self.clock() + PAUSE_S  # this call tries it, for everybody
        try:
            answer = await self._servers.call(key, *words)
        except NoScriptError:
            self._mark_reachable()
            raise
        except (NotSent, ReplyLost, RedisError) as error:
            self._again_at = self.clock() + PAUSE_S
            if not self.lost:
                self.lost = True
                log.error("shared_store_lost", where=self.where, error=str(error))
            raise _store_unavailable() from error
        self._mark_reachable()
        return answer

    def _mark_reachable(self) -> None:
        if self.lost:
            self.lost, self._again_at = False, 0.0
            log.info("shared_store_recovered", where=self.where)

    async def run(self, script: str, keys: Sequence[str], *words: Word) -> Any:
        """Runs a Lua script on keys that share a hash tag, and returns its result. Raises Unavailable, as `call`
        does."""
        try:
            return await self.call(keys[0], "EVALSHA", _digest(script), len(keys), *keys, *words)
        except NoScriptError:
            return await self.call(keys[0], "EVAL", script, len(keys), *keys, *words)


class ValkeyTickets:
    """Implements `transport.auth.tickets.Tickets`. A gateway counts only the tickets that it made itself in the last
    `TICKET_S`; of those it makes at most `TICKETS_MAX`."""

    def __init__(self, store: ValkeyGatewayStore) -> None:
        self._store = store
        self._made: deque[float] = deque()  # until when each is good

    async def put(self, digest: str, principal: Principal) -> None:
        now = self._store.clock()
        while self._made and self._made[0] <= now:
            self._made.popleft()
        if len(self._made) >= tickets.TICKETS_MAX:
            raise tickets.too_many()
        self._made.append(now + tickets.TICKET_S)
        value, key = msgspec.msgpack.encode(principal), self._key(digest)
        try:
            await self._store.call(key, "SET", key, value, "NX", "PX", round(tickets.TICKET_S * 1000))
        except Unavailable as error:
            raise _unavailable(
                "Tickets cannot be kept at the moment: try again soon, or connect with the key itself."
            ) from error

    async def take(self, digest: str) -> Principal | None:
        key = self._key(digest)
        try:
            value = await self._store.call(key, "GETDEL", key)
        except Unavailable as error:
            raise _unavailable("Tickets cannot be looked up at the moment: connect again soon.") from error
        if value is None:
            return None
        try:
            return msgspec.msgpack.decode(value, type=Principal)
        except msgspec.MsgspecError as error:
            log.warning("ticket_refused", error=str(error))  # of a gateway of another version
            return None

    def _key(self, digest: str) -> str:
        return f"{self._store.namespace}:ticket:{digest}"


class ValkeyHistory:
    """Implements `transport.history_index.HistoryIndex`."""

    shared: ClassVar[bool] = True

    def __init__(self, store: ValkeyGatewayStore, secret: bytes) -> None:
        """`secret`: the same for all gateways that share the index."""
        self._store = store
        self._secret = secret

    async def take(self, chains: Sequence[bytes]) -> tuple[int, HistoryPlace] | None:
        if not chains:
            return None
        taken = await self._store.run(_TAKE, [self._key(chain) for chain in chains], GIVEN_MAX, round(GIVEN_TTL_S))
        if taken is None:
            return None
        at, place = taken
        return at - 1, msgspec.msgpack.decode(place, type=HistoryPlace)

    async def put(self, chain: bytes, place: HistoryPlace) -> None:
        await self._change(_PUT, chain, place)

    async def give_back(self, chain: bytes, place: HistoryPlace) -> None:
        await self._change(_GIVE_BACK, chain, place)

    async def drop(self, chain: bytes, place: HistoryPlace) -> None:
        await self._change(_DROP, chain, place)

    async def mark(self, caller: bytes, marks: Sequence[bytes], session: SessionId) -> None:
        bounds = round(HISTORY_TTL_S), MARKS_PER_CALLER_MAX
        await self._store.run(_MARK, [self._caller(caller)], *bounds, session, *map(self._keyed, marks))

    async def nearest(self, caller: bytes, marks: Sequence[bytes]) -> SessionId | None:
        key = self._caller(caller)
        found = await self._store.call(key, "HMGET", key, *map(self._keyed, marks))
        return next((SessionId(session.decode()) for session in found if session is not None), None)

    def _caller(self, caller: bytes) -> str:
        return f"{{{self._store.namespace}:near:{self._keyed(caller).hex()}}}"

    async def _change(self, script: str, chain: bytes, place: HistoryPlace) -> None:
        bounds = round(HISTORY_TTL_S), PLACES_PER_KEY_MAX, round(GIVEN_TTL_S), GIVEN_MAX
        await self._store.run(script, [self._key(chain)], msgspec.msgpack.encode(place), *bounds)

    def _key(self, chain: bytes) -> str:
        root = self._keyed(chain[:ROOT_BYTES])[:ROOT_BYTES]
        return f"{{{self._store.namespace}:places:{root.hex()}}}:{self._keyed(chain).hex()}"

    def _keyed(self, name: bytes) -> bytes:
        return blake2b(name, key=self._secret, digest_size=NAME_BYTES, person=b"sessile-history").digest()


@cache
def _digest(script: str) -> str:
    return sha1(script.encode(), usedforsecurity=False).hexdigest()


def _unavailable(message: str) -> Unavailable:
    return Unavailable("directory_unavailable", message, retry_after_ms=round(PAUSE_S * 1000))


def _store_unavailable() -> Unavailable:
    return _unavailable("What the gateways share cannot be reached at the moment.")
