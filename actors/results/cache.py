"""Keeps answers sealed, each under a key of its tenant, within the tenant's bounds, and never what is personal.

A name is a keyed hash of the whole request, and what it leads to is encrypted (AES-256-GCM) with the name as associated
data. Both keys are made from the tenant's: under another tenant's, or once a key was rotated or destroyed, nothing is
found and nothing opens. Whoever has the bytes learns how long answers are, and cannot try out questions.

No link to users is kept. What came from a session is dropped with it, or as soon as something of it is taken back; an
end user's erasure drops all that its tenant has here, and time does the rest. An answer that was being
written meanwhile is not stored.

Invariants: a turn never fails here, and waits for `WAIT_S` at most. Does not know engines or sessions' rules.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import weakref
from collections.abc import Awaitable, Sequence
from typing import Final, NamedTuple, Protocol

import msgspec
import structlog
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from sessions.limits import LimitsNow
from sessions.metrics import Metrics
from sessions.model.errors import SessileError
from sessions.model.types import Principal, SessionId, SessionKey, TenantId
from sessions.turn.ledger import PromptPlan
from sessions.turn.result_cache import ANSWER_BYTES_MAX, CachedAnswer, ResultLookup

log = structlog.get_logger(__name__)

WAIT_S: Final = 0.25
NAME_BYTES: Final = 32
MARK_BYTES: Final = 16
_NONCE_BYTES: Final = 12
_CIPHERS_MAX: Final = 1_000  # tenants


class StoredResult(NamedTuple):
    """One sealed answer. `mark` names the session that it came from."""

    name: bytes
    mark: bytes
    body: bytes


class ResultStore(Protocol):
    """Holds sealed answers by tenant. Raises Unavailable, OutcomeUnknown."""

    async def get(self, tenant: TenantId, name: bytes) -> bytes | None: ...

    async def put(self, tenant: TenantId, result: StoredResult, *, ttl_s: int, bytes_max: int) -> None:
        """For `ttl_s`; the tenant's least recently used ones make room."""
        ...

    async def drop(self, tenant: TenantId, mark: bytes | None) -> None:
        """Those with a mark, or all of the tenant's."""
        ...

    async def close(self) -> None: ...


class WritingKey(Protocol):
    @property
    def id(self) -> str: ...
    @property
    def secret(self) -> bytes: ...


class WritingKeys(Protocol):
    async def writing(self, tenant: TenantId) -> WritingKey:
        """The key that writes now. Raises SessileError."""
        ...


class PersonalCheck(Protocol):
    async def is_personal(self, principal: Principal, text: str) -> bool: ...


class ProcessKey(msgspec.Struct, frozen=True):
    id: str
    secret: bytes

    def __repr__(self) -> str:
        return f"ProcessKey({self.id!r})"


class ProcessKeys:
    """Where the journal has no keys: gone with the process, and so is what they sealed."""

    def __init__(self) -> None:
        self._key = ProcessKey("process", os.urandom(32))

    async def writing(self, tenant: TenantId) -> ProcessKey:
        return self._key


class _Sealer:
    """Names and seals one tenant's answers under one key."""

    def __init__(self, tenant: TenantId, key: WritingKey) -> None:
        self.key_id = key.id
        whose = msgspec.msgpack.encode(("results", tenant, key.id))
        self._secret = hashlib.blake2b(whose, key=key.secret, digest_size=32, person=b"sessile-results").digest()
        sealing = hashlib.blake2b(whose, key=key.secret, digest_size=32, person=b"sessile-resseal").digest()
        self._cipher = AESGCM(sealing)

    def name(self, request: bytes) -> bytes:
        return hashlib.blake2b(request, key=self._secret, digest_size=NAME_BYTES, person=b"request").digest()

    def mark(self, session: SessionId) -> bytes:
        return hashlib.blake2b(session.encode(), key=self._secret, digest_size=MARK_BYTES, person=b"session").digest()

    def seal(self, name: bytes, plain: bytes) -> bytes:
        nonce = os.urandom(_NONCE_BYTES)
        return nonce + self._cipher.encrypt(nonce, plain, name)

    def open(self, name: bytes, sealed: bytes) -> CachedAnswer | None:
        try:
            plain = self._cipher.decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], name)
            return msgspec.msgpack.decode(plain, type=CachedAnswer)
        except (InvalidTag, ValueError, msgspec.DecodeError):  # ValueError: too short to be one
            return None


class TenantResultCache:
    """Implements `ResultCache`."""

    def __init__(
        self,
        store: ResultStore,
        keys: WritingKeys,
        limits: LimitsNow,
        personal: PersonalCheck,
        metrics: Metrics,
    ) -> None:
        self._store = store
        self._keys = keys
        self._limits = limits
        self._personal = personal
        self._sealers: dict[TenantId, _Sealer] = {}
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

        async def look() -> None:
            nonlocal name, answer
            sealer = await self._sealer(key.tenant)
            name = sealer.name(request)
            sealed = await self._store.get(key.tenant, name)
            answer = None if sealed is None else sealer.open(name, sealed)

        await self._guarded("result_lookup_failed", look())
        lookup = ResultLookup(key, name, plan, answer)
        self._looked_up.add(lookup.outcome)
        if answer is None:
            self._recording.add(lookup)
        return lookup

    async def store(self, lookup: ResultLookup, principal: Principal, texts: Sequence[str]) -> None:
        outcome = "unavailable"
        try:
            outcome = await self._keep(lookup, principal, texts)
        except Exception:  # it runs beside the replica's own work, which would end with it
            log.exception("result_store_failed")
        self._stored.add(outcome)

    async def _keep(self, lookup: ResultLookup, principal: Principal, texts: Sequence[str]) -> str:
        """Returns what came of it."""
        answer = lookup.recorder.answer if lookup.recorder is not None else None
        tenant = self._limits().of(lookup.tenant)
        if answer is None or not lookup.name or tenant.result_cache_s is None:
            return "unavailable"
        plain = msgspec.msgpack.encode(answer)
        if len(plain) > min(ANSWER_BYTES_MAX, tenant.result_cache_bytes):
            return "too_large"
        if await self._personal.is_personal(principal, "\n\n".join(texts)):
            return "personal"
        stored = False

        async def put() -> None:
            nonlocal stored
            sealer = await self._sealer(lookup.tenant)
            if lookup.revoked:
                return
            result = StoredResult(lookup.name, sealer.mark(lookup.session), sealer.seal(lookup.name, plain))
            assert tenant.result_cache_s is not None
            await self._store.put(
                lookup.tenant, result, ttl_s=tenant.result_cache_s, bytes_max=tenant.result_cache_bytes
            )
            stored = True

        await self._guarded("result_store_failed", put())
        if lookup.revoked:  # forgotten while it was on its way
            await self.forget_session(SessionKey(lookup.tenant, lookup.session))
            return "revoked"
        lookup.stored = stored
        return "stored" if stored else "unavailable"

    async def forget_session(self, key: SessionKey) -> None:
        self._revoke(key.tenant, key.session)

        async def drop() -> None:
            await self._store.drop(key.tenant, (await self._sealer(key.tenant)).mark(key.session))

        if self._in_use:
            await self._guarded("result_drop_failed", drop())

    async def forget_tenant(self, tenant: TenantId) -> None:
        self._revoke(tenant, None)
        await self._store.drop(tenant, None)

    def _revoke(self, tenant: TenantId, session: SessionId | None) -> None:
        for lookup in list(self._recording):
            if lookup.tenant == tenant and session in (None, lookup.session):
                lookup.revoked = True

    @property
    def _in_use(self) -> bool:
        """Some tenant may have answers here."""
        limits = self._limits()
        return any(each.result_cache_s is not None for each in (limits.default, *limits.tenants.values()))

    async def close(self) -> None:
        await self._store.close()

    async def _sealer(self, tenant: TenantId) -> _Sealer:
        key = await self._keys.writing(tenant)
        sealer = self._sealers.get(tenant)
        if sealer is None or sealer.key_id != key.id:
            if len(self._sealers) >= _CIPHERS_MAX:
                self._sealers.clear()
            sealer = self._sealers[tenant] = _Sealer(tenant, key)
        return sealer

    async def _guarded(self, event: str, work: Awaitable[None]) -> None:
        try:
            async with asyncio.timeout(WAIT_S):
                await work
        except (SessileError, TimeoutError) as error:
            log.warning(event, error=str(error))
        except Exception:  # a cache is no reason for a turn to fail
            log.exception(event)
