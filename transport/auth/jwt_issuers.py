"""Verifies JWTs of configured issuers, and makes principals of them.

A token is looked at in this order, and the first thing that is wrong ends it: its issuer is one of ours; its algorithm
is on that issuer's list (asymmetric ones only: an issuer's public key never becomes an HMAC secret, and `none` is no
algorithm); its `typ`, where it has one, is that of an access token; its `kid` names a key of the issuer's set, made for
that algorithm; signature, `exp`, `nbf`, `iat`, `aud`, `iss`; then its claims say tenant, user, authority and scopes,
within what the configuration allows this issuer to say.

What was checked is remembered by digest until the token ends or the issuer's keys change. A key set is read again every
`refresh_s`, and at once (at most every `UNKNOWN_KID_S`) when a token names a key that is not in it: its bearer is asked
to come back in a second. A set that cannot be read or understood changes nothing: the old one stays in force.

Does not know doors. PyJWT checks signatures; RFC 7519, RFC 8725 (what to refuse and why), RFC 7517 (key sets).
"""

from __future__ import annotations

import asyncio
import hashlib
import urllib.request
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import InitVar, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple, get_args
from urllib.parse import urlsplit

import jwt
import msgspec
import structlog
from msgspec import Meta

from sessions.model.api_keys import check_name
from sessions.model.errors import BadInput, Unauthorized, Unavailable
from sessions.model.types import DEFAULT_SCOPES, NEVER, SCOPES, Authority, Principal, Scope, TenantId, TokenRef, UnixMs
from sessions.setting_files import parse_toml, reason
from transport.addresses import is_loopback
from transport.auth.authenticator import TOKEN_PREFIX
from transport.auth.direct_fetch import fetch_direct

JWKS_BYTES_MAX: Final = 256 * 1024
JWKS_KEYS_MAX: Final = 100
FETCH_S: Final = 5.0
FILE_S: Final = 5.0  # how often a file is read
RETRY_S: Final = 5.0  # after an error
UNKNOWN_KID_S: Final = 10.0
REMEMBERED_MAX: Final = 10_000

Algorithm = Literal["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "ES256K", "EdDSA"]
Text = Annotated[str, Meta(min_length=1, max_length=512)]
AUTHORITIES: Final[tuple[Authority, ...]] = get_args(Authority)  # by how much they may do, the least first

log = structlog.get_logger(__name__)


class JwtIssuer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One `[[issuers]]` table of the issuers file."""

    issuer: Text  # the `iss` of its tokens
    audience: Text  # must be in a token's `aud`
    jwks: Text  # a file, or https://... (http:// on loopback only)
    algorithms: Annotated[tuple[Algorithm, ...], Meta(min_length=1)] = ("RS256", "ES256")
    tenant: str = ""  # the tenant of all tokens ...
    tenant_claim: str = ""  # ... or the claim that names it: exactly one of the two is set
    types: Annotated[tuple[Text, ...], Meta(min_length=1)] = ("JWT", "at+jwt")  # of a token's `typ`, if it has one
    user_claim: Text = "sub"
    role_claim: str = ""  # the claim that names the role, one of `roles`
    roles: Annotated[tuple[Authority, ...], Meta(min_length=1)] = ("user",)  # allowed; the first one by default
    scope_claim: str = "scope"  # a list, or words with spaces between; unknown words are ignored
    scopes: tuple[Scope, ...] = DEFAULT_SCOPES  # allowed; all of them if the token has no such claim
    leeway_s: Annotated[float, Meta(ge=0, le=300)] = 30.0
    refresh_s: Annotated[float, Meta(ge=5, le=86_400)] = 300.0

    @property
    def remote(self) -> bool:
        return "://" in self.jwks


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    issuers: Annotated[tuple[JwtIssuer, ...], Meta(min_length=1, max_length=100)]


def read_issuers(path: str) -> tuple[JwtIssuer, ...]:
    """Reads the issuers file. Raises BadInput, which says what is wrong in it."""

    def bad(why: object) -> BadInput:
        return BadInput("invalid_setting", f"issuers = {path!r}: {why}", param="issuers")

    try:
        issuers = msgspec.convert(parse_toml(Path(path).read_text()), _File).issuers
    except (OSError, ValueError, msgspec.ValidationError) as error:  # tomllib's error is a ValueError
        raise bad(reason(error)) from error
    for each in issuers:
        if bool(each.tenant) == bool(each.tenant_claim):
            raise bad(f"{each.issuer}: give `tenant` or `tenant_claim`, one of the two")
        if each.remote:
            url = urlsplit(each.jwks)
            if url.scheme != "https" and not (url.scheme == "http" and is_loopback(url.hostname or "")):
                raise bad(f"{each.issuer}: jwks = {each.jwks!r} is not https")
    if len({each.issuer for each in issuers}) != len(issuers):
        raise bad("an issuer stands there twice")
    return issuers


class _Key(NamedTuple):
    key: Any  # an object of `cryptography`
    algorithm: str | None  # the only algorithm for this key, if its set says so


def parse_jwks(data: bytes, algorithms: Sequence[str]) -> dict[str, _Key]:
    """Returns the keys of a key set that can check signatures with these algorithms, by `kid` ("" if it has none).
    Raises ValueError if it is no key set or has no such key."""
    try:
        document = msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError(f"it is not JSON: {error}") from error
    entries = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(entries, list) or len(entries) > JWKS_KEYS_MAX:
        raise ValueError(f"it has no `keys`, a list of at most {JWKS_KEYS_MAX}")
    keys: dict[str, _Key] = {}
    for entry in entries:
        if not isinstance(entry, dict) or entry.get("kty") == "oct" or entry.get("use", "sig") != "sig":
            continue  # not for us: a set may have keys for other purposes
        try:
            key = jwt.PyJWK.from_dict(entry).key
        except (jwt.PyJWTError, ValueError, TypeError) as error:  # RFC 7517, 5: one that is not understood is ignored
            log.warning("jwk_ignored", kid=str(entry.get("kid"))[:64], error=str(error))
            continue
        if entry.get("alg") is None or entry["alg"] in algorithms:
            keys[str(entry.get("kid", ""))] = _Key(key, entry.get("alg"))
    if not keys:
        raise ValueError(f"it has no key for {', '.join(algorithms)}")
    return keys


Fetch = Callable[[str], Awaitable[bytes]]


async def fetch(where: str) -> bytes:
    """Returns a key set's bytes from a file or a URL. Raises OSError."""
    if "://" not in where:
        return await asyncio.to_thread(_read_file, where)
    request = urllib.request.Request(where, headers={"accept": "application/json", "user-agent": "sessile"})
    answer = await fetch_direct(request, FETCH_S, bytes_max=JWKS_BYTES_MAX)  # read_issuers has looked at the scheme
    if answer.status != 200:
        raise OSError(f"{where} answers {answer.status}")
    return answer.body


def _read_file(path: str) -> bytes:
    with Path(path).open("rb") as file:
        return file.read(JWKS_BYTES_MAX + 1)


@dataclass(eq=False, repr=False)
class _KeySet:
    """An issuer with its present keys."""

    issuer: JwtIssuer
    keys: dict[str, _Key] = field(default_factory=dict)
    data: bytes = b""
    refresh_requested: asyncio.Event = field(default_factory=asyncio.Event)  # for a key id not in the set
    requested_at: float | None = None
    looking: bool = False  # from that request until the set was read


@dataclass(eq=False, repr=False)
class JwtIssuers:
    """Implements `transport.auth.authenticator.TokenVerifier`. `clock` is monotonic, in seconds."""

    issuers: InitVar[Sequence[JwtIssuer]]
    now_ms: Callable[[], UnixMs]
    clock: Callable[[], float]
    fetch: Fetch = fetch
    _sets: dict[str, _KeySet] = field(init=False)
    _remembered: OrderedDict[bytes, Principal] = field(default_factory=OrderedDict, init=False)

    def __post_init__(self, issuers: Sequence[JwtIssuer]) -> None:
        self._sets = {each.issuer: _KeySet(each) for each in issuers}

    # -- key sets -----------------------------------------------------------------------------------------------------

    async def load(self) -> None:
        """Reads all key sets. Raises BadInput for a file that is no key set. A set at a URL may be read later; until
        then its tokens are refused."""
        for each in self._sets.values():
            try:
                await self._read(each)
            except (OSError, ValueError) as error:
                if not each.issuer.remote:
                    raise BadInput(
                        "invalid_setting", f"jwks = {each.issuer.jwks!r}: {error}", param="issuers"
                    ) from error
                log.warning("jwks_read_failed", issuer=each.issuer.issuer, error=str(error))

    async def run(self) -> None:
        """Keeps the key sets up to date until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for each in self._sets.values():
                tasks.create_task(self._keep(each))

    async def _keep(self, each: _KeySet) -> None:
        pause_s = self._pause_s(each)
        while True:
            try:
                async with asyncio.timeout(pause_s):
                    await each.refresh_requested.wait()
            except TimeoutError:
                pass  # it is time anyway
            each.refresh_requested.clear()
            try:
                await self._read(each)
                pause_s = self._pause_s(each)
            except (OSError, ValueError) as error:
                log.warning("jwks_read_failed", issuer=each.issuer.issuer, error=str(error), kept=len(each.keys))
                pause_s = RETRY_S
            each.looking = False

    @staticmethod
    def _pause_s(each: _KeySet) -> float:
        if not each.keys:
            return RETRY_S
        return each.issuer.refresh_s if each.issuer.remote else FILE_S

    async def _read(self, each: _KeySet) -> None:
        """Reads a key set. Raises OSError, ValueError; then the old set stays."""
        data = await self.fetch(each.issuer.jwks)
        if data == each.data:
            return
        if len(data) > JWKS_BYTES_MAX:
            raise ValueError(f"it has more than {JWKS_BYTES_MAX} bytes")
        each.keys = parse_jwks(data, each.issuer.algorithms)
        each.data = data
        self._remembered.clear()  # a token of a key that was removed is not valid any more
        log.info("jwks_read", issuer=each.issuer.issuer, keys=sorted(each.keys))

    # -- tokens -------------------------------------------------------------------------------------------------------

    def is_jwt(self, credential: str) -> bool:
        return credential.startswith("eyJ") and credential.count(".") == 2

    def names(self, tenant: str) -> bool:
        return any(each.issuer.tenant in ("", tenant) for each in self._sets.values())

    def known(self, credential: str) -> Principal | None:
        digest = hashlib.sha256(credential.encode()).digest()
        principal = self._remembered.get(digest)
        if principal is not None and principal.expires_at is not None and principal.expires_at <= self.now_ms():
            del self._remembered[digest]
            return None
        return principal

    def principal_of(self, credential: str) -> Principal:
        """Checks a token, remembers it, and returns its principal. Raises Unauthorized, Unavailable."""
        principal, _ = self.verify(credential)
        digest = hashlib.sha256(credential.encode()).digest()
        self._remembered[digest] = principal
        if len(self._remembered) > REMEMBERED_MAX:
            self._remembered.popitem(last=False)
        return principal

    def verify(self, credential: str) -> tuple[Principal, dict[str, Any]]:
        """Checks a token and returns its principal and claims. Raises Unauthorized, Unavailable."""
        issuer, claims = self._claims(credential, (), user_claim=True)
        return self._principal(issuer, claims), claims

    def claims_of(self, credential: str, *, types: Sequence[str]) -> dict[str, Any]:
        """Checks a token of another purpose, whose `typ`, if it has one, is one of `types`. Returns its claims. Raises
        Unauthorized, Unavailable."""
        issuer, claims = self._claims(credential, types, user_claim=False)
        self._check_times(issuer, claims)
        return claims

    def _claims(self, credential: str, types: Sequence[str], *, user_claim: bool) -> tuple[JwtIssuer, dict[str, Any]]:
        each, key, algorithm = self._key_of(credential, types)
        issuer = each.issuer
        required = ["exp", "iss", "aud", *((issuer.user_claim,) if user_claim else ())]
        try:
            claims: dict[str, Any] = jwt.decode(
                credential,
                key=key.key,
                algorithms=[algorithm],
                audience=issuer.audience,
                issuer=issuer.issuer,
                leeway=issuer.leeway_s,
                options={"require": required, "verify_exp": False, "verify_nbf": False},
            )
        except (jwt.PyJWTError, TypeError, ValueError, OverflowError) as error:  # a key of another kind; `iat` 1e999
            raise _token_refused("its signature or a claim is not right") from error
        return issuer, claims

    def _key_of(self, credential: str, types: Sequence[str]) -> tuple[_KeySet, _Key, str]:
        """Returns issuer, key and algorithm for checking a token, by its header, which is not verified yet. Raises
        Unauthorized, Unavailable."""
        try:
            header = jwt.get_unverified_header(credential)
            unverified = jwt.decode(credential, options={"verify_signature": False})
        except (jwt.PyJWTError, ValueError, RecursionError) as error:
            raise _token_refused("it cannot be read") from error
        issuer = unverified.get("iss")
        each = self._sets.get(issuer) if isinstance(issuer, str) else None
        if each is None:
            raise _token_refused("its issuer is not known here")
        algorithm = header.get("alg")
        if not isinstance(algorithm, str) or algorithm not in each.issuer.algorithms:
            raise _token_refused("its algorithm is not one that this issuer may use")
        kind = header.get("typ")  # RFC 8725, 3.11: a token made for something else (a log-out, a proof) is none for us
        if kind is not None and (
            not isinstance(kind, str) or _media_type(kind) not in map(_media_type, types or each.issuer.types)
        ):
            raise _token_refused("its typ is not one that this issuer may use")
        kid = header.get("kid")
        key: _Key | None
        if kid is None:
            key = next(iter(each.keys.values())) if len(each.keys) == 1 else None
        else:
            key = each.keys.get(kid) if isinstance(kid, str) else None
            if key is None:
                self._refetch_keys(each)
        if key is None or key.algorithm not in (None, algorithm):
            raise _token_refused("its key is not one of its issuer's")
        return each, key, algorithm

    def _refetch_keys(self, each: _KeySet) -> None:
        """Has an issuer's key set read again, because it may have a new key. Raises Unavailable while it is read, so
        that the token's holder tries again."""
        now = self.clock()
        if not each.looking and (each.requested_at is None or now - each.requested_at >= UNKNOWN_KID_S):
            each.requested_at, each.looking = now, True
            each.refresh_requested.set()
        if each.looking:
            raise Unavailable("keys_unavailable", "The issuer's keys are being read.", retry_after_ms=1000)

    def _check_times(self, issuer: JwtIssuer, claims: dict[str, Any]) -> float:
        """Checks a token's `exp` and `nbf`. Returns `exp` in unix seconds. Raises Unauthorized."""
        now_s = self.now_ms() / 1000
        ends, begins = claims["exp"], claims.get("nbf")
        if not _is_time(ends) or (begins is not None and not _is_time(begins)):
            raise _token_refused("exp and nbf are numbers")
        if ends + issuer.leeway_s <= now_s:
            raise Unauthorized("token_expired", "This token has expired.")
        if begins is not None and begins - issuer.leeway_s > now_s:
            raise _token_refused("it is not valid yet")
        return float(ends)

    def _principal(self, issuer: JwtIssuer, claims: dict[str, Any]) -> Principal:
        ends = self._check_times(issuer, claims)
        tenant = claim_of(claims, issuer.tenant_claim) if issuer.tenant_claim else issuer.tenant
        user = claims[issuer.user_claim]
        for name, value in (("tenant", tenant), ("user", user)):
            if not isinstance(value, str) or not check_name(value):
                raise _token_refused(f"its {name} is not a text of 1 to 128 characters")
        assert isinstance(tenant, str) and isinstance(user, str)
        role = _role(issuer, claims)
        if role not in issuer.roles:
            raise _token_refused("its role is not one that this issuer may give")
        subject, token_id, issued_at = claims.get("sub"), claims.get("jti"), claims.get("iat")
        return Principal(
            tenant=TenantId(tenant),
            key_id=TOKEN_PREFIX + issuer.issuer,
            user=user,
            role=role,
            scopes=_scopes(issuer, claims),
            expires_at=UnixMs(int((ends + issuer.leeway_s) * 1000)),
            token=TokenRef(
                issuer=issuer.issuer,
                subject=subject if isinstance(subject, str) else user,
                id=token_id if isinstance(token_id, str) else "",
                issued_at=UnixMs(int(issued_at * 1000)) if issued_at is not None and _is_time(issued_at) else NEVER,
            ),
        )


def claim_of(claims: dict[str, Any], name: str) -> Any:
    """Returns the claim of this name; if there is none, the value at the path that its dots spell, as in
    `realm_access.roles`. None if there is neither."""
    if name in claims:
        return claims[name]
    value: Any = claims
    for part in name.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value


def _role(issuer: JwtIssuer, claims: dict[str, Any]) -> Any:
    """Returns the token's role. In a list, which may have other words too, the allowed role that may do most counts."""
    claim = claim_of(claims, issuer.role_claim) if issuer.role_claim else None
    if claim is None and issuer.role_claim not in claims:
        return issuer.roles[0]
    if isinstance(claim, list):
        return next((role for role in reversed(AUTHORITIES) if role in issuer.roles and role in claim), issuer.roles[0])
    return claim


def _scopes(issuer: JwtIssuer, claims: dict[str, Any]) -> tuple[Scope, ...]:
    """Returns the token's scopes, limited to those that its issuer may give."""
    claim = claims.get(issuer.scope_claim) if issuer.scope_claim else None
    if claim is None:
        return issuer.scopes
    words = claim.split() if isinstance(claim, str) else claim
    if not isinstance(words, list):
        raise _token_refused("its scopes are neither a text nor a list")
    return tuple(scope for scope in SCOPES if scope in words and scope in issuer.scopes)


def _media_type(kind: str) -> str:
    """Returns a `typ` as RFC 7515 §4.1.9 compares them: in lower case, without `application/`."""
    return kind.lower().removeprefix("application/")


def _is_time(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e11


def _token_refused(why: str) -> Unauthorized:
    return Unauthorized("unauthorized", f"This token is not accepted: {why}.")
