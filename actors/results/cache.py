"""Keeps answers sealed, each under a key of its tenant, within the tenant's bounds, and no personal ones.

The name of an answer is a keyed hash of the whole request, and the answer is encrypted (AES-256-GCM) with the name as
associated data. Both keys are made from the tenant's key: with another tenant's, or once a key was rotated or
destroyed, nothing is found and nothing can be decrypted. Who has the bytes learns how long answers are, and cannot try
out questions.

No link to users is kept. The answers that came from a session are dropped with it, or as soon as some text of it is
retracted; an end user's erasure drops all answers of its tenant. An answer that was being written meanwhile is not
stored.

Invariants: a turn never fails here, and waits for `WAIT_S` at most. Does not know engines or sessions' rules.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import weakref
from collections.abc import AsyncIterator, Sequence
from typing import Final, Protocol

import msgspec
import structlog
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from actors.results.store import MemoryResultStore, ResultStore, StoredResult
from sessions.limits import Limits, LimitsNow
from sessions.metrics import Metrics
from sessions.model.errors import SessileError
from sessions.model.types import Principal, SessionKey, TenantId
from sessions.turn.ledger import PromptPlan
from sessions.turn.result_cache import ANSWER_BYTES_MAX, CachedAnswer, ResultLookup

log = structlog.get_logger(__name__)

WAIT_S: Final = 0.25
NONCE_BYTES: Final = 12


class WritingKey(Protocol):
    @property
    def id(self) -> str: ...
    @property
    def secret(self) -> bytes: ...


class WritingKeys(Protocol):
    async def writing(self, tenant: TenantId) -> WritingKey:
        """Returns the tenant's key that encrypts new data now. Raises SessileError."""
        ...


class HasLimits(Protocol):
    @property
    def now(self) -> LimitsNow: ...


class PersonalCheck(Protocol):
    async def is_personal(self, principal: Principal, text: str) -> bool: ...


class ProcessKeys:
    """The key for a journal without encryption. It lives as long as the process, and after it nothing that it sealed
    can be opened."""

    def __init__(self) -> None:
        self.id, self.secret = "process", os.urandom(32)

    async def writing(self, tenant: TenantId) -> ProcessKeys:
        return self


class _Sealer:
    """Names and encrypts one tenant's answers under one key."""

    def __init__(self, tenant: TenantId, key: WritingKey) -> None:
        whose = msgspec.msgpack.encode(("results", tenant, key.id))
        secret = hashlib.blake2b(whose, key=key.secret, digest_size=64, person=b"sessile-results").digest()
        self._secret, self._cipher = secret[:32], AESGCM(secret[32:])

    def name(self, request: bytes) -> bytes:
        return hashlib.blake2b(request, key=self._secret, digest_size=32, person=b"request").digest()

    def mark(self, key: SessionKey) -> bytes:
        return hashlib.blake2b(key.session.encode(), key=self._secret, digest_size=16, person=b"session").digest()

    def seal(self, name: bytes, plain: bytes) -> bytes:
        nonce = os.urandom(NONCE_BYTES)
        return nonce + self._cipher.encrypt(nonce, plain, name)

    def open(self, name: bytes, sealed: bytes) -> CachedAnswer | None:
        try:
            plain = self._cipher.decrypt(sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], name)
            return msgspec.msgpack.decode(plain, type=CachedAnswer)
        except (InvalidTag, ValueError, msgspec.DecodeError):  # ValueError: too short to be one
            return None


class TenantResultCache:
    """A `ResultCache` with sealed answers, each tenant's under its own key."""

    def __init__(
        self, store: ResultStore, keys: WritingKeys, limits: LimitsNow, personal: PersonalCheck, metrics: Metrics
    ) -> None:
        self._store, self._keys, self._limits, self._personal = store, keys, limits, personal
        self._recording: weakref.WeakSet[ResultLookup] = weakref.WeakSet()
        about = "Deterministic requests of tenants with a result cache, by whether their answer was there."
        self._looked_up = metrics.counter("result_cache_lookups", about, "outcome")
        about = "Answers that were to be kept, by what came of it."
        self._stored = metrics.counter("result_cache_stores", about, "outcome")
        for outcome in ("hit", "miss"):
            self._looked_up.add(outcome, by=0)

    def serves(self, tenant: TenantId) -> bool:
        return self._limits().of(tenant).result_cache_s is not None

    async def find(self, key: SessionKey, request: bytes, plan: PromptPlan) -> ResultLookup:
        name, answer = b"", None
        async with _guard("result_lookup_failed"):
            sealer = await self._sealer(key.tenant)
            name = sealer.name(request)
            sealed = await self._store.get(key.tenant, name)
            answer = None if sealed is None else sealer.open(name, sealed)
        lookup = ResultLookup(key, name, plan, answer)
        self._looked_up.add(lookup.outcome)
        if answer is None:
            self._recording.add(lookup)
        return lookup

    async def store(self, lookup: ResultLookup, principal: Principal, texts: Sequence[str]) -> None:
        outcome = "unavailable"
        async with _guard("result_store_failed", wait_s=None):
            outcome = await self._keep(lookup, principal, texts)
        self._stored.add(outcome)

    async def _keep(self, lookup: ResultLookup, principal: Principal, texts: Sequence[str]) -> str:
        """Stores a recorded answer unless it is too large, personal or revoked; returns the outcome for metrics."""
        limits, outcome = self._limits().of(lookup.key.tenant), "unavailable"
        ttl_s, bytes_max = limits.result_cache_s, limits.result_cache_bytes
        if lookup.recorded is None or not lookup.name or ttl_s is None:
            return outcome
        plain = msgspec.msgpack.encode(lookup.recorded)
        if len(plain) > min(ANSWER_BYTES_MAX, bytes_max):
            return "too_large"
        if await self._personal.is_personal(principal, "\n\n".join(texts)):
            return "personal"
        async with _guard("result_store_failed"):
            sealer = await self._sealer(lookup.key.tenant)
            if not lookup.revoked:
                result = StoredResult(lookup.name, sealer.mark(lookup.key), sealer.seal(lookup.name, plain))
                await self._store.put(lookup.key.tenant, result, ttl_s=ttl_s, bytes_max=bytes_max)
                outcome = "stored"
        if lookup.revoked:  # forgotten while it was on its way
            await self.forget_session(lookup.key)
            outcome = "revoked"
        return outcome

    async def forget_session(self, key: SessionKey) -> None:
        self._revoke(key.tenant, key)
        if _in_use(self._limits()):
            async with _guard("result_drop_failed"):
                await self._store.drop(key.tenant, (await self._sealer(key.tenant)).mark(key))

    async def forget_tenant(self, tenant: TenantId) -> None:
        self._revoke(tenant)
        await self._store.drop(tenant, None)

    def _revoke(self, tenant: TenantId, session: SessionKey | None = None) -> None:
        for lookup in list(self._recording):
            if lookup.key.tenant == tenant and session in (None, lookup.key):
                lookup.revoked = True

    async def close(self) -> None:
        await self._store.close()

    async def _sealer(self, tenant: TenantId) -> _Sealer:
        return _Sealer(tenant, await self._keys.writing(tenant))


@contextlib.asynccontextmanager
async def _guard(event: str, *, wait_s: float | None = WAIT_S) -> AsyncIterator[None]:
    """Ends the block when it raises an error or takes longer than `wait_s`, and logs that as `event`: a turn must not
    fail because of the cache."""
    try:
        async with asyncio.timeout(wait_s):
            yield
    except Exception as error:
        log.warning(event, error=str(error), exc_info=not isinstance(error, SessileError | TimeoutError))


def _in_use(limits: Limits) -> bool:
    """Returns whether at least one tenant may have answers in the cache."""
    return any(tenant.result_cache_s is not None for tenant in (limits.default, *limits.tenants.values()))


def make_results(
    directory: str,
    megabytes: int,
    keys: WritingKeys | None,
    limited: HasLimits | None,
    personal: PersonalCheck,
    metrics: Metrics,
) -> TenantResultCache | None:
    """Makes the result cache that the settings name; returns None if they name none. `directory` is the URL of the
    cluster's Valkey, "" if this process is alone. `keys` None: the journal is not encrypted, so nothing is kept in
    Valkey, where it would be readable. `limited` None: there is no limits file, so no tenant uses the cache. Raises
    BadInput."""
    if not megabytes or limited is None:
        return None
    if directory and keys is None:
        if _in_use(limited.now()):
            log.warning("result_cache_disabled", reason="the journal is not encrypted: give every process --master-key")
        return None
    if directory:
        from actors.results.valkey import ValkeyResultStore  # redis' client takes half a second to load

        store: ResultStore = ValkeyResultStore(directory)
    else:
        store = here = MemoryResultStore(megabytes * 1_000_000, asyncio.get_running_loop().time)
        metrics.gauge("result_cache_bytes", "Bytes of cached answers.", (), lambda: {(): float(here.size)})
        metrics.gauge("result_cache_entries", "Cached answers.", (), lambda: {(): float(len(here))})
    return TenantResultCache(store, keys or ProcessKeys(), limited.now, personal, metrics)
