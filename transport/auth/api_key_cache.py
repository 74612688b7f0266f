"""Caches every API key in this process's memory, and follows changes in the store.

Keys are few and small (at most `KEYS_MAX`, some 600 bytes each), so a gateway holds all of them. A wrong key
never costs a read of the journal, knowing a key takes one SHA-256, and a revocation reaches every gateway by one
small read a second of what has a later version.

How soon a revoked key ends, from the moment that the revocation is answered:

* in the process that revoked it: at once, connections and streams under way included;
* in every other: within `POLL_S` (1 s) and one read of the journal;
* in one that cannot read the journal: after `STALE_S` (15 s) and one read's patience (5 s) it trusts none of its keys
  any more. Nobody is let in by a key, and what is open by one is closed with a code that says: come back.

A change of the journal's incarnation (a restored backup) reads all keys anew: the backup is what is true now.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec
import structlog

from sessions.model.api_keys import (
    SECRET_BYTES,
    ApiKey,
    ApiKeyRequest,
    ApiKeyStore,
    make_api_key,
    parse_key,
    secret_matches,
)
from sessions.model.audit import Action, Audited
from sessions.model.errors import SessileError, Unauthorized, Unavailable
from sessions.model.types import Json, Principal, UnixMs
from transport.auth.store_follower import PAGE, STALE_S, StoreFollower

log = structlog.get_logger(__name__)


class KeyListener:
    """An object to be told when keys end. Methods may be overridden; none may raise."""

    def key_ended(self, key_id: str, error: SessileError) -> None:
        """Is called when a key is revoked: it authenticates nobody any more."""

    def key_refused(self, key: ApiKey, error: SessileError) -> None:
        """Is called when a revoked or expired key was used with the right secret."""

    def keys_stale(self, error: SessileError) -> None:
        """Is called when the store could not be read for too long, so that no key can be trusted."""


@dataclass(eq=False, repr=False)
class ApiKeyCache:
    """A copy of all API keys that follows the store. `clock` is monotonic, in seconds; `incarnation`: the journal's."""

    store: ApiKeyStore
    now_ms: Callable[[], UnixMs]
    clock: Callable[[], float]
    incarnation: Callable[[], str] = str
    random_bytes: Callable[[int], bytes] = secrets.token_bytes
    _keys: dict[str, ApiKey] = field(default_factory=dict, init=False)
    _version: int = field(default=0, init=False)
    _incarnation: str = field(default="", init=False)
    _listeners: list[KeyListener] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        follower = StoreFollower(self._read, self._stale, self.clock, name="keys", checked="Keys")
        self.check_fresh, self.refresh, self.run = follower.check_fresh, follower.refresh, follower.run

    def subscribe(self, listener: KeyListener) -> None:
        """Calls `listener` whenever a key ends, for as long as this object lives."""
        self._listeners.append(listener)

    # -- knowing ------------------------------------------------------------------------------------------------------

    def is_api_key(self, credential: str) -> bool:
        return parse_key(credential) is not None

    def principal_of(self, credential: str) -> Principal:
        """Returns a key's principal. Raises Unauthorized, whose message says that the key was revoked or has expired
        only if the secret is right, and Unavailable if the store was not read for too long."""
        self.check_fresh()
        parts = parse_key(credential)
        key = None if parts is None else self._keys.get(parts[0])
        if not secret_matches(key, parts[1] if parts else "") or key is None:
            raise Unauthorized("unauthorized", "This key is not known here.")
        match key.state(self.now_ms()):
            case "revoked":
                error = revoked()
            case "expired":
                error = expired()
            case "active":
                return key.principal
        for listener in self._listeners:
            listener.key_refused(key, error)
        raise error

    def find(self, key_id: str) -> ApiKey | None:
        return self._keys.get(key_id)

    def all(self) -> list[ApiKey]:
        """Returns all keys, newest first."""
        return sorted(self._keys.values(), key=lambda key: (-key.created_at, key.id))

    # -- changing -----------------------------------------------------------------------------------------------------

    async def create(
        self, request: ApiKeyRequest, *, created_by: str = "", by: Principal | None = None
    ) -> tuple[ApiKey, str]:
        """Makes and stores a key. Returns it together with its secret text, `sk-sessile-...`. `by` is the administrator
        who makes the key; None if it is made on the command line. Raises BadInput, Limited, Unavailable."""
        created_by = created_by if by is None else by.key_id
        key, written = make_api_key(
            request, self.random_bytes(SECRET_BYTES + 8), now=self.now_ms(), created_by=created_by
        )
        detail = {"key": key.id, "role": key.role, "scopes": list(key.scopes), "expires_at": key.expires_at}
        stored = await self.store.add(key, audit=_audited("key.created", key.created_at, by, key.user, detail))
        self._take(stored)
        log.info("key_created", key=stored.id, tenant=stored.tenant, role=stored.role, by=created_by)
        return stored, written

    async def revoke(self, key_id: str, *, revoked_by: str = "", by: Principal | None = None) -> ApiKey | None:
        """Revokes a key for good, in this process before it returns. Returns the revoked key; None if there is no key
        with this id. Raises Unavailable."""
        known, now = self._keys.get(key_id), self.now_ms()
        user = None if known is None else known.user
        key = await self.store.revoke(key_id, at=now, audit=_audited("key.revoked", now, by, user, {"key": key_id}))
        if key is not None:
            self._take(key)
            log.info("key_revoked", key=key.id, tenant=key.tenant, by=revoked_by if by is None else by.key_id)
        return key

    # -- following ----------------------------------------------------------------------------------------------------

    def _stale(self, stale: Unavailable) -> None:
        log.error("key_cache_expired", after_s=STALE_S)
        for listener in self._listeners:
            listener.keys_stale(stale)

    async def _read(self) -> None:
        incarnation = self.incarnation()
        if incarnation != self._incarnation:
            await self._read_anew()
            self._incarnation = incarnation
            return
        while changes := await self.store.changes(after=self._version, limit=PAGE):
            for key in changes:
                self._version = key.version
                self._take(key)

    async def _read_anew(self) -> None:
        keys: dict[str, ApiKey] = {}
        version = 0
        while changes := await self.store.changes(after=version, limit=PAGE):
            keys |= {key.id: key for key in changes}
            version = changes[-1].version
        missing = [key_id for key_id in self._keys if key_id not in keys]
        self._version = version
        for key_id in missing:
            del self._keys[key_id]
            self._end(key_id)
        for key in keys.values():
            self._take(key)

    def _take(self, key: ApiKey) -> None:
        known = self._keys.get(key.id)
        self._keys[key.id] = key
        if key.revoked_at is not None and (known is None or known.revoked_at is None):
            self._end(key.id)

    def _end(self, key_id: str) -> None:
        for listener in self._listeners:
            listener.key_ended(key_id, revoked())


def _audited(action: Action, at: UnixMs, by: Principal | None, user: str | None, detail: dict[str, Json]) -> Audited:
    return Audited(action=action, at=at, by=by, user=user, detail=detail)


def revoked() -> Unauthorized:
    return Unauthorized("unauthorized", "This key was revoked.")


def expired() -> Unauthorized:
    return Unauthorized("unauthorized", "This key has expired.")


def public_key_fields(key: ApiKey, now: UnixMs) -> dict[str, object]:
    """Returns a key's fields for administrators, without the digest of its secret."""
    shown = {name: value for name, value in msgspec.structs.asdict(key).items() if name not in ("digest", "version")}
    return {"object": "key", **shown, "scopes": list(key.scopes), "state": key.state(now)}
