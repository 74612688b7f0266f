"""API keys: their properties and written form, what of them is stored, and the port of the store.

A key is `sk-sessile-ID-SECRET`: a prefix that scanners of leaked secrets can look for, an id that may be shown, and 256
random bits that are shown once. The SHA-256 of the secret is stored. A slow hash (bcrypt, Argon2) exists to make
guessing of secrets that people chose expensive; nobody guesses 256 random bits, at any speed, so a slow hash would only
let strangers burn our CPU before they are known. A pepper is not needed for the same reason: who reads the table learns
nothing with which to get in.

Pure: random bytes and time are arguments.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from base64 import b32encode
from collections.abc import Sequence
from typing import Final, Literal, Protocol

import msgspec

from sessions.model.audit import Audited
from sessions.model.errors import BadInput, Conflict, Limited
from sessions.model.types import Authority, Principal, Scope, TenantId, UnixMs

PREFIX: Final = "sk-sessile-"
ID_LENGTH: Final = 12
SECRET_BYTES: Final = 32
KEYS_MAX: Final = 100_000  # per installation, with ended keys whose usage may still be read
KEPT_MS: Final = 400 * 86_400_000  # how long a key that has ended is remembered

_KEY: Final = re.compile(r"^sk-sessile-([a-z2-7]{12})-([a-z2-7]{52})$(?!\n)")
_NAME: Final = re.compile(r"^[^\x00-\x1f\x7f]{1,128}$(?!\n)")

KeyState = Literal["active", "expired", "revoked"]


class ApiKey(msgspec.Struct, frozen=True, kw_only=True):
    """An API key as it is stored. `version` is its number in the order of all changes, set by the store, so that a
    reader can ask for the changes after those that it knows."""

    id: str
    digest: bytes  # SHA-256 of the secret
    tenant: TenantId
    role: Authority
    user: str | None
    scopes: tuple[Scope, ...]
    name: str
    created_at: UnixMs
    created_by: str  # the key that made it; "" for the command line
    expires_at: UnixMs | None = None
    revoked_at: UnixMs | None = None
    version: int = 0

    @property
    def principal(self) -> Principal:
        return Principal(
            tenant=self.tenant,
            key_id=self.id,
            user=self.user,
            role=self.role,
            scopes=self.scopes,
            expires_at=self.expires_at,
        )

    def state(self, now: UnixMs) -> KeyState:
        if self.revoked_at is not None:
            return "revoked"
        return "expired" if self.expires_at is not None and self.expires_at <= now else "active"


class ApiKeyRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The properties of a key that is to be made."""

    tenant: str
    role: Authority = "user"
    user: str | None = None
    scopes: tuple[Scope, ...] | None = None  # None: those that the role usually needs
    name: str = ""
    expires_at: int | None = None


USUAL_SCOPES: Final[dict[Authority, tuple[Scope, ...]]] = {
    "user": ("chat", "read"),
    "service": ("chat", "read", "usage"),
    "operator": ("read", "usage", "review", "admin"),
}
"""The scopes of a new key that names none. An operator's key does not chat: operators need no conversations of
their own."""


def make_api_key(
    request: ApiKeyRequest, random_bytes: bytes, *, now: UnixMs, created_by: str = ""
) -> tuple[ApiKey, str]:
    """Returns a new key and its written form, which is shown once. `random_bytes` are 40 bytes. Raises BadInput, which
    says what is wrong with `request`.

    A user's key that names no user acts for an end user of its own, who has the sessions that were made with it.
    """
    if len(random_bytes) != SECRET_BYTES + 8:
        raise AssertionError("a key is made of 40 random bytes")
    if request.name and not _NAME.match(request.name):
        raise BadInput("invalid_request", "name: at most 128 characters, none of control.", param="name")
    if request.expires_at is not None and request.expires_at <= now:
        raise BadInput("invalid_request", "expires_at: that is not in the future.", param="expires_at")
    scopes = request.scopes if request.scopes is not None else USUAL_SCOPES[request.role]
    name, secret = _letters(random_bytes[:8])[:ID_LENGTH], _letters(random_bytes[8:])
    user = user_of_key(name, request, scopes)
    key = ApiKey(
        id=name,
        digest=digest_of(secret),
        tenant=TenantId(request.tenant),
        role=request.role,
        user=user,
        scopes=tuple(dict.fromkeys(scopes)),
        name=request.name,
        created_at=now,
        created_by=created_by,
        expires_at=None if request.expires_at is None else UnixMs(request.expires_at),
    )
    return key, f"{PREFIX}{name}-{secret}"


def user_of_key(key_id: str, request: ApiKeyRequest, scopes: Sequence[Scope]) -> str | None:
    """Returns the end user that a key acts for; None if it acts for no particular one. A user's key that names none
    acts for an end user of its own, because else it could act for everybody. Raises BadInput for properties that no key
    may have."""
    for name, value in (("tenant", request.tenant), ("user", request.user)):
        if value is not None and not _NAME.match(value):
            raise BadInput("invalid_request", f"{name}: 1 to 128 characters, none of control.", param=name)
    if request.role != "user" and request.user is not None:
        raise BadInput("invalid_request", f"user: a {request.role}'s key acts for no one user.", param="user")
    if not scopes:
        raise BadInput("invalid_request", "scopes: a key needs at least one.", param="scopes")
    if request.role == "user" and "admin" in scopes:
        raise BadInput("invalid_request", "scopes: `admin` is for services and operators.", param="scopes")
    if request.role != "operator" and "break_glass" in scopes:
        raise BadInput("invalid_request", "scopes: `break_glass` is for operators.", param="scopes")
    return request.user if request.role != "user" else request.user or key_id


def check_name(name: str) -> bool:
    """Returns whether a tenant or an end user may have this name."""
    return _NAME.match(name) is not None


def parse_key(written: str) -> tuple[str, str] | None:
    """Returns a written key's id and secret; None if the text does not have a key's form."""
    match = _KEY.match(written)
    return (match[1], match[2]) if match else None


def digest_of(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()


_NOBODY: Final = bytes(32)


def secret_matches(key: ApiKey | None, secret: str) -> bool:
    """Returns whether `secret` is the key's. Takes the same time for a key that does not exist."""
    right = hmac.compare_digest(_NOBODY if key is None else key.digest, digest_of(secret))
    return right and key is not None


def _letters(data: bytes) -> str:
    return b32encode(data).decode().rstrip("=").lower()


class ApiKeyStore(Protocol):
    """The store of API keys, in the journal's database. Every method raises Unavailable."""

    async def add(self, key: ApiKey, *, audit: Audited | None = None) -> ApiKey:
        """Stores a new key and returns it with its version; drops keys that ended long ago. The row `audit` is written
        to the tenant's chain with it. Raises Conflict if the id is taken, Limited if there are `KEYS_MAX` keys."""
        ...

    async def revoke(self, key_id: str, *, at: UnixMs, audit: Audited | None = None) -> ApiKey | None:
        """Revokes a key and returns it; durable when the call returns. A key that is revoked already stays as it is,
        and `audit` is not written. Returns None if there is no such key."""
        ...

    async def changes(self, *, after: int, limit: int) -> list[ApiKey]:
        """Returns the keys whose version is greater than `after`, in their present state and in order of versions.
        Versions become visible in their order, so a caller that knows version n has missed no change before it."""
        ...


def key_id_conflict() -> Conflict:
    return Conflict("idempotency_conflict", "There is a key of this id already.")


def too_many_keys() -> Limited:
    return Limited("rate_limited", f"There are {KEYS_MAX} keys; revoke some.", retryable=False)
