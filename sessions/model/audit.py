"""The audit log: what a row says, how rows are chained, and how a chain is checked. Pure.

One chain per tenant, and one of the installation (`INSTALLATION`) for what concerns all. Rows are numbered from 1:

    row n:  seq, at, about, key_id, body, prev, mac
            mac  = HMAC-SHA256(key, tenant | seq | at | about | key_id | body | prev)      prev = mac of row n-1
    head:   seq, mac of the last row, seal = HMAC-SHA256(key, "head" | tenant | seq | mac)

So a row that was changed, left out, put elsewhere or moved to another tenant does not fit any more, and the head shows
when the last ones are missing. A chain cannot show by itself that all of it was put back to an older state: for that
`AuditVerifier` takes anchors, (seq, mac) as recorded elsewhere.

Rows that are not kept any longer are deleted from the front (`sessions.governance.audit_trim`), and a floor records up
to which row:

    floor:  seq, mac of the last row taken away, until = the latest of their times, key_id,
            seal = HMAC-SHA256(key, "floor" | tenant | seq | mac | until | key_id)

A chain with a floor begins behind it. The row "audit.trimmed", written in the same transaction, names the same place;
the floor must be what the last such row says. So neither can be moved alone.

The key is the installation's secret, which the journal keeps, mixed with that of a file where one is given. Rows have
texts and end users' names as HMACs under keys derived from it and bound to the tenant, so whoever sees rows but not the
key cannot try out names or short texts. `Sealer.texts` says for which tenants rows also have the texts themselves.

Does not know where rows are stored, nor when something has to be written down.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, Protocol

import msgspec

from sessions.model.types import Json, Principal, TenantId, UnixMs
from sessions.model.verdicts import Finding

INSTALLATION: Final = TenantId("")  # no tenant can be called that
SECRET_BYTES: Final = 32
NOTHING: Final = bytes(32)  # `prev` of the first row
PAGE_MAX: Final = 1000

Action = Literal[
    "key.created",
    "key.revoked",
    "token.revoked",
    "user.signed_in",
    "user.signed_out",
    "session.deleted",
    "session.purged",
    "session.exported",
    "session.shared",
    "session.unshared",
    "user.exported",
    "user.erasure_asked",
    "user.erased",
    "content.retracted",
    "verdict",
    "policy.loaded",
    "policy.refused",
    "retention.loaded",
    "retention.refused",
    "replica.drain_asked",
    "replica.draining",
    "replica.undrain_asked",
    "replica.undrained",
    "session.hand_off_asked",
    "review.decided",
    "tool.called",
    "tool.decided",
    "tool.agreed",
    "tool.stored",
    "tool.deleted",
    "access.refused",
    "access.break_glass",
    "audit.trimmed",
    "encryption.changed",
]


class Audited(msgspec.Struct, frozen=True, kw_only=True):
    """Something to write into the audit log. If `by` is None the server itself did it, and the row shows the role
    "system".

    `user` is the end user whom it is about. The texts in `findings` are written only as hashes, unless the tenant's
    rows have texts.
    """

    action: Action
    at: UnixMs
    by: Principal | None = None
    user: str | None = None
    session: str = ""
    response: str = ""
    detail: Mapping[str, Json] = {}
    findings: tuple[Finding, ...] = ()

    def __repr__(self) -> str:
        return f"Audited({self.action!r}, {self.session!r})"


class AuditHead(NamedTuple):
    """The end of a chain: its last row's number and mac, and the seal over both."""

    seq: int
    mac: bytes
    seal: bytes


class AuditRow(NamedTuple):
    """A row of the audit log as it is stored."""

    tenant: TenantId
    seq: int
    at: int
    about: str  # pseudonym of the end user whom it is about; "" for none
    key_id: str
    body: bytes  # JSON
    prev: bytes
    mac: bytes


class AuditFloor(NamedTuple):
    """The record of what was deleted from the front of a chain: all rows up to `seq`, none of them later than
    `until`."""

    seq: int
    mac: bytes
    until: int
    key_id: str
    seal: bytes


class AuditEntry(NamedTuple):
    """A row before it has its number and place in a chain."""

    tenant: TenantId
    at: int
    about: str
    body: bytes


class AuditLog(Protocol):
    """The store of chains, in the journal's database. Every method raises Unavailable; `record` also OutcomeUnknown.

    The journal itself chains the rows of appends (`Append.audit`) and of its purges, in the same transaction.
    """

    @property
    def sealer(self) -> Sealer: ...

    async def record(self, tenant: TenantId, audited: Sequence[Audited]) -> None:
        """Adds rows in this order, without a gap between them; durable when it returns."""
        ...

    async def rows(
        self, tenant: TenantId, *, after: int, limit: int, about: Sequence[str] | None = None
    ) -> list[AuditRow]:
        """Returns at most `limit` rows with numbers greater than `after`, in order. `about` restricts them to those
        about these pseudonyms; None: no restriction."""
        ...

    async def head(self, tenant: TenantId) -> AuditHead | None:
        """Returns the end of a tenant's chain; None if it has no rows."""
        ...

    async def floor(self, tenant: TenantId) -> AuditFloor | None:
        """Returns the floor of a tenant's chain; None if no rows were ever deleted from it."""
        ...

    async def trim(self, tenant: TenantId, audited: Audited, *, expected: AuditFloor | None, floor: AuditFloor) -> bool:
        """Moves the floor, writes `audited`, and deletes the rows up to the floor, in one transaction. Returns False,
        having done nothing, if the floor is no longer `expected`. Only `sessions.governance.audit_trim` may call it."""
        ...

    async def tenants(self) -> list[TenantId]:
        """Returns every tenant that has a chain, in order."""
        ...


def _packed(*fields: str | bytes | int) -> bytes:
    """Returns fields joined with their lengths, so that different fields never give the same bytes."""
    parts = []
    for field in fields:
        raw = field if isinstance(field, bytes) else str(field).encode()
        parts += [len(raw).to_bytes(8, "big"), raw]
    return b"".join(parts)


def _hmac(key: bytes, *fields: str | bytes | int) -> bytes:
    return hmac.digest(key, _packed(*fields), "sha256")


class _Key:
    """One key of a chain, with the keys that are derived from it."""

    def __init__(self, root: bytes) -> None:
        self.chain = _hmac(root, "sessile-audit-chain")
        self.names = _hmac(root, "sessile-audit-names")
        self.texts = _hmac(root, "sessile-audit-texts")
        self.id = _hmac(root, "sessile-audit-id")[:8].hex()


class Sealer:
    """Makes rows of the audit log and checks them. `stored` is the secret in the journal, `file` that of a separate
    file, None if there is none."""

    def __init__(self, stored: bytes, file: bytes | None = None) -> None:
        plain = _Key(_hmac(stored, "stored"))
        self._current = plain if file is None else _Key(_hmac(file, "file", stored))
        self._known = {key.id: key for key in (plain, self._current)}
        self._stored = stored
        self.texts: Callable[[TenantId], bool] = lambda _: False
        """Whether a tenant's rows have texts as they are, besides their hashes."""

    @property
    def key_id(self) -> str:
        return self._current.id

    def names_key(self, purpose: str) -> bytes:
        """Returns a key for computing keyed names outside the journal. For each `purpose` it is the same in all
        processes that share the journal."""
        return _hmac(self._stored, "sessile-names", purpose)

    # -- making -----------------------------------------------------------------------------------------------------

    def entry(self, tenant: TenantId, audited: Audited) -> AuditEntry:
        by = audited.by
        body: dict[str, Json] = {"action": audited.action}
        if by is None:
            body["by"] = {"role": "system"}
        else:
            body["by"] = {"tenant": by.tenant, "key": by.key_id, "role": by.role}
            if by.user is not None:
                body["by"] |= {"user": self.pseudonym(tenant, by.user)}
                if by.key_id == by.user:  # a key that is a user of its own
                    body["by"]["key"] = body["by"]["user"]
        about = "" if audited.user is None else self.pseudonym(tenant, audited.user)
        names = {"user": about, "session": audited.session, "response": audited.response}
        body |= {name: value for name, value in names.items() if value}
        if audited.detail:
            body["detail"] = dict(audited.detail)
        if audited.findings:
            body["findings"] = [self._finding(tenant, each) for each in audited.findings]
        return AuditEntry(tenant, audited.at, about, msgspec.json.encode(body))

    def _finding(self, tenant: TenantId, found: Finding) -> dict[str, Json]:
        names = ("category", "action", "start", "end", "score", "model", "policy")
        row = {name: getattr(found, name) for name in names}
        if found.text:
            row["text_hmac"] = self.text_hash(tenant, found.text)
            if self.texts(tenant):
                row["text"] = found.text
        return row

    def pseudonym(self, tenant: TenantId, user: str) -> str:
        """Returns the name that rows have for an end user, made with the present key."""
        return _named(self._current, tenant, user)

    def pseudonyms(self, tenant: TenantId, user: str) -> list[str]:
        """Returns the names that rows may have for an end user: one for every key that rows may have been written
        with."""
        return [_named(key, tenant, user) for key in self._known.values()]

    def text_hash(self, tenant: TenantId, text: str) -> str:
        return _hmac(self._current.texts, tenant, text.encode("utf-8", "surrogatepass")).hex()

    def chained(self, head: AuditHead | None, entries: Iterable[AuditEntry]) -> tuple[list[AuditRow], AuditHead]:
        """Returns the rows of one tenant that follow `head`, and the head after them. There must be at least one
        entry."""
        seq, prev = (0, NOTHING) if head is None else (head.seq, head.mac)
        rows: list[AuditRow] = []
        for entry in entries:
            seq += 1
            bare = AuditRow(entry.tenant, seq, entry.at, entry.about, self._current.id, entry.body, prev, b"")
            prev = self._mac(self._current, bare)
            rows.append(bare._replace(mac=prev))
        tenant = rows[0].tenant
        return rows, AuditHead(seq, prev, self._seal(self._current, tenant, seq, prev))

    def floor(self, last: AuditRow, until: int) -> AuditFloor:
        """Returns the sealed floor of a chain whose rows up to `last` are deleted; `until` is the latest of their
        times."""
        bare = AuditFloor(last.seq, last.mac, until, self._current.id, b"")
        return bare._replace(seal=self._floor_seal(self._current, last.tenant, bare))

    @staticmethod
    def _floor_seal(key: _Key, tenant: TenantId, floor: AuditFloor) -> bytes:
        return _hmac(key.chain, "floor", tenant, *floor[:-1])

    @staticmethod
    def _mac(key: _Key, row: AuditRow) -> bytes:
        return _hmac(key.chain, "row", *row[:-1])

    @staticmethod
    def _seal(key: _Key, tenant: TenantId, seq: int, mac: bytes) -> bytes:
        return _hmac(key.chain, "head", tenant, seq, mac)

    # -- checking ---------------------------------------------------------------------------------------------------

    def trouble_of(self, row: AuditRow) -> str | None:
        """Returns in words what is wrong with a row by itself; None if nothing is."""
        key = self._known.get(row.key_id)
        if key is None:
            return "was written with a key that is not known here, or changed"
        return None if hmac.compare_digest(self._mac(key, row), row.mac) else "was changed"

    def sealed(self, tenant: TenantId, head: AuditHead, key_id: str) -> bool:
        key = self._known.get(key_id)
        return key is not None and hmac.compare_digest(self._seal(key, tenant, head.seq, head.mac), head.seal)

    def floored(self, tenant: TenantId, floor: AuditFloor) -> bool:
        key = self._known.get(floor.key_id)
        return key is not None and hmac.compare_digest(self._floor_seal(key, tenant, floor), floor.seal)


def _named(key: _Key, tenant: TenantId, user: str) -> str:
    return "u_" + _hmac(key.names, tenant, user)[:16].hex()


def public(row: AuditRow) -> dict[str, Any]:
    """Returns a row in the form that its readers see."""
    body: dict[str, Any] = msgspec.json.decode(row.body)
    return {"object": "audit.row", "tenant": row.tenant, "seq": row.seq, "at": row.at, **body, "mac": row.mac.hex()}
