"""Revocations of tokens, and of people's sign-ins, before they expire; and the port of their store.

A revocation names a token by its id (`jti`; for a sign-in the id of its session), or a subject: then it covers
everything issued for the subject up to that moment, and nothing issued later. It is kept until what it covers has
expired.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Literal, Protocol

import msgspec

from sessions.model.audit import Audited
from sessions.model.errors import BadInput, Limited
from sessions.model.types import Json, Principal, TenantId, TokenRef, UnixMs

REVOCATIONS_MAX: Final = 100_000  # of an installation
KEPT_MS: Final = 400 * 86_400_000  # if nobody says when the tokens end

RevocationKind = Literal["token", "subject"]


class Revocation(msgspec.Struct, frozen=True, kw_only=True):
    """The revocation of a token, or of all tokens of a subject. `version` is its number in the order of all changes,
    set by the store."""

    issuer: str
    kind: RevocationKind
    name: str  # the token's id, or the subject
    at: UnixMs
    expires_at: UnixMs
    by: str = ""  # the key that revoked; "" for the command line
    version: int = 0

    @property
    def place(self) -> tuple[str, RevocationKind, str]:
        return self.issuer, self.kind, self.name

    def covers(self, token: TokenRef) -> bool:
        if token.issuer != self.issuer:
            return False
        if self.kind == "token":
            return token.id == self.name
        return token.subject == self.name and token.issued_at <= self.at


def make_revocation(
    issuer: str, *, subject: str | None, token_id: str | None, at: UnixMs, expires_at: int | None, by: str = ""
) -> Revocation:
    """Returns a revocation of a subject or of a token. Without `expires_at` it is kept for `KEPT_MS`. Raises
    BadInput."""
    if (subject is None) == (token_id is None):
        raise BadInput("invalid_request", "Give `subject` or `token_id`, one of the two.", param="subject")
    if expires_at is not None and expires_at <= at:
        raise BadInput("invalid_request", "expires_at: that is not in the future.", param="expires_at")
    kind: RevocationKind = "subject" if token_id is None else "token"
    until = UnixMs(at + KEPT_MS if expires_at is None else expires_at)
    return Revocation(issuer=issuer, kind=kind, name=token_id or subject or "", at=at, expires_at=until, by=by)


def revocation_audit(revocation: Revocation, by: Principal | None) -> Audited:
    """Returns the row that a revocation writes into the installation's audit log."""
    user = revocation.name if revocation.kind == "subject" else None
    detail: dict[str, Json] = {"issuer": revocation.issuer, "kind": revocation.kind}
    if revocation.kind == "token":
        detail["token"] = revocation.name
    return Audited(action="token.revoked", at=revocation.at, by=by, user=user, detail=detail)


def merged(known: Revocation | None, new: Revocation) -> Revocation:
    """Returns one revocation in place of two for the same token or subject, with the later one of each time."""
    if known is None:
        return new
    at, until = max(known.at, new.at), max(known.expires_at, new.expires_at)
    return msgspec.structs.replace(new, at=UnixMs(at), expires_at=UnixMs(until))


def places_of(token: TokenRef) -> Iterable[tuple[str, RevocationKind, str]]:
    """Yields the keys under which revocations that would cover this token are stored."""
    yield token.issuer, "subject", token.subject
    if token.id:
        yield token.issuer, "token", token.id


class RevocationStore(Protocol):
    """The store of revocations, in the journal's database. Every method raises Unavailable."""

    async def add(
        self, revocation: Revocation, *, audit: Audited | None = None, tenant: TenantId | None = None
    ) -> Revocation:
        """Stores a revocation, `merged` with an earlier one; durable when the call returns. Drops those that have
        expired by its `at`. The row `audit` is written to the chain of `tenant` with it. Raises Limited beyond
        `REVOCATIONS_MAX`."""
        ...

    async def changes(self, *, after: int, limit: int) -> list[Revocation]:
        """Returns the revocations whose version is greater than `after`, in order of versions, with the same guarantee
        as `ApiKeyStore.changes`."""
        ...


def too_many_revocations() -> Limited:
    return Limited("rate_limited", f"There are {REVOCATIONS_MAX} revocations that have not expired.", retryable=False)
