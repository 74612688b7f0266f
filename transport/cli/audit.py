"""Shows the audit log of a tenant, or checks that no row of it was changed, left out or put elsewhere.

Without --url it reads the journal of the settings, or goes through the server that runs on that data folder; with --url
through that server. Through a server it takes the key in SESSILE_API_KEY.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Final
from urllib.parse import quote, urlencode

import msgspec

from sessions.model.audit import INSTALLATION, PAGE_MAX, public
from sessions.model.errors import SessileError
from sessions.model.types import TenantId
from transport.cli.api_client import JsonObject, base_of, call
from transport.cli.plain_text import plain
from transport.cli.settings import BadSetting
from transport.cli.shared_flags import Json, ServerUrl, text

if TYPE_CHECKING:
    from sessions.model.audit import AuditLog

TENANTS_TOLD_MAX: Final = 12
AuditTenant = Annotated[str | None, text("TENANT", "whose log; '' is the installation's own")]


class ListRows(msgspec.Struct, frozen=True, kw_only=True):
    """Shows rows of the audit log, oldest first."""

    tenant: AuditTenant = None
    user: Annotated[str, text("USER", "only those about this end user")] = ""
    after: Annotated[int, text("SEQ", "rows behind this one")] = 0
    limit: Annotated[int, text("N", f"rows of a page, at most {PAGE_MAX} [default: 100]")] = 100
    last: Annotated[int, text("N", "the newest so many instead")] = 0
    url: ServerUrl = ""
    as_json: Json = False

    def __post_init__(self) -> None:
        """Raises BadSetting for options that are not allowed."""
        if not 1 <= self.limit <= PAGE_MAX or not 0 <= self.last <= PAGE_MAX or self.after < 0:
            raise BadSetting(f"limit, last: at least 1, at most {PAGE_MAX}; after: at least 0")


class VerifyChain(msgspec.Struct, frozen=True, kw_only=True):
    """Checks the chain of audit rows from its first to its last; ends with status 1 where one is broken.

    Keep the anchor that it prints somewhere else, and give it again with --anchor: then a log that somebody replaced by
    an older copy of itself is noticed. Without --tenant every chain is checked; a running server checks them for an
    operator's key only, and for another key the chain of its tenant.
    """

    tenant: AuditTenant = None
    anchor: Annotated[tuple[str, ...], text("SEQ:MAC", "a row that must be there; may be repeated")] = ()
    all: Annotated[bool, text("", "every chain, the installation's too; fails where the key may not")] = False
    url: ServerUrl = ""
    as_json: Json = False

    def __post_init__(self) -> None:
        """Raises BadSetting for options that do not go together."""
        if self.all and (self.tenant is not None or self.anchor):
            raise BadSetting("all: every chain, or one that --tenant or --anchor means")
        if self.anchors and self.tenant is None and not self.url:
            raise BadSetting("anchor: an anchor is of one tenant's chain; name it with --tenant")

    @property
    def anchors(self) -> dict[int, str]:
        """The hashes of the anchors (`--anchor`) by row number. Raises BadSetting for a malformed one."""
        from sessions.governance.audit_verify import parse_anchor

        try:
            return dict(parse_anchor(each) for each in self.anchor)
        except ValueError as error:
            raise BadSetting(f"anchor: {error}") from error


AuditCommand = ListRows | VerifyChain


async def run_on_journal(audit: AuditLog, command: AuditCommand) -> list[JsonObject]:
    """Returns audit rows, or one report per chain, of a journal opened by this process. Raises Unavailable."""
    from sessions.governance.audit_verify import verify

    if isinstance(command, VerifyChain):
        tenants = [TenantId(command.tenant)] if command.tenant is not None else await audit.tenants()
        return [msgspec.to_builtins(await verify(audit, tenant, anchors=command.anchors)) for tenant in tenants]
    tenant = TenantId(command.tenant) if command.tenant is not None else await _only_tenant(audit)
    after, limit = command.after, command.limit
    if command.last:
        head = await audit.head(tenant)
        after, limit = max(0, (head.seq if head is not None else 0) - command.last), command.last
    about = audit.sealer.pseudonyms(tenant, command.user) if command.user else None
    return [public(row) for row in await audit.rows(tenant, after=after, limit=limit, about=about)]


async def _only_tenant(audit: AuditLog) -> TenantId:
    """Returns the only tenant that has an audit log, or the installation if no tenant has one. Raises BadSetting if
    several tenants have one."""
    tenants = sorted(tenant for tenant in await audit.tenants() if tenant != INSTALLATION)
    if len(tenants) > 1:
        some = ", ".join(tenants[:TENANTS_TOLD_MAX])
        raise BadSetting(f"tenant: name whose log with --tenant ({some}), or '' for the installation's")
    return tenants[0] if tenants else TenantId(INSTALLATION)


async def run_on_server(command: AuditCommand, credential: str) -> list[JsonObject]:
    """Returns the same as `run_on_journal`, through a server's `/v1/audit`. Raises BadSetting, SessileError."""
    base = f"{base_of(command.url, credential)}/v1/audit"
    whose = {} if command.tenant is None else {"tenant": command.tenant}
    if isinstance(command, VerifyChain):
        anchors = [("anchor", f"{seq}:{mac}") for seq, mac in command.anchors.items()]
        if anchors or command.tenant is not None:
            return [await _verified(base, [*whose.items(), *anchors], credential)]
        try:
            listed = await asyncio.to_thread(call, "GET", f"{base}/tenants", credential)
        except SessileError as error:
            if command.all or error.code != "forbidden":
                raise
            return [{**await _verified(base, [], credential), "only_this_tenant": True}]
        return [await _verified(base, [("tenant", tenant)], credential) for tenant in listed["data"]]
    page = {**whose, "limit": command.limit, "after": command.after, **({"user": command.user} if command.user else {})}
    if command.last:
        chain = await asyncio.to_thread(call, "GET", f"{base}/verify?{urlencode(whose)}", credential, timeout_s=600)
        page |= {"after": max(0, chain["trimmed"] + chain["rows"] - command.last), "limit": command.last}
    return list((await asyncio.to_thread(call, "GET", f"{base}?{urlencode(page)}", credential))["data"])


async def _verified(base: str, query: list[tuple[str, str]], credential: str) -> JsonObject:
    url = f"{base}/verify?{urlencode(query, quote_via=quote)}"
    return await asyncio.to_thread(call, "GET", url, credential, timeout_s=600)


def is_broken(command: AuditCommand, results: list[JsonObject]) -> bool:
    return isinstance(command, VerifyChain) and not all(each["intact"] for each in results)


def format_audit(command: AuditCommand, results: list[JsonObject]) -> str:
    if command.as_json:
        return "\n".join(msgspec.json.encode(each).decode() for each in results)
    if not results:
        return "No rows: nothing was recorded so far." if isinstance(command, VerifyChain) else "No such rows."
    return "\n".join(plain(_chain(each) if isinstance(command, VerifyChain) else _row(each)) for each in results)


def _chain(chain: JsonObject) -> str:
    name = chain["tenant"] or "(installation)"
    if not chain["intact"]:
        return f"{name}: row {chain['first_broken']} {chain['why']}"
    trimmed = ""
    if chain["trimmed"]:
        until = datetime.fromtimestamp(chain["trimmed_until"] / 1000, UTC).isoformat(timespec="seconds")
        trimmed = f"; {chain['trimmed']} before them were trimmed, up to {until}"
    if chain["unchecked"]:
        trimmed += f"; {chain['unchecked']} of the anchors given are of trimmed rows and prove nothing"
    if chain.get("only_this_tenant"):
        trimmed += "; no other chain was looked at, that takes an operator's key"
    weak = f"; {chain['weak']} of them without the key file" if chain["weak"] else ""
    count = f"{chain['rows']} rows, all as they were written" if chain["rows"] else "no rows"
    return f"{name}: {count}{weak}{trimmed}; anchor {chain['anchor'] or '-'}"


def _row(row: JsonObject) -> str:
    at = datetime.fromtimestamp(row["at"] / 1000, UTC).isoformat(timespec="milliseconds")
    by = row["by"]
    who = by["role"] if "key" not in by else f"{by['role']} {by['key']}"
    known = ("object", "tenant", "seq", "at", "action", "by", "mac")
    rest = " ".join(
        f"{name}={value if isinstance(value, str) else msgspec.json.encode(value).decode()}"
        for name, value in row.items()
        if name not in known
    )
    return f"{row['seq']:>8}  {at}  {row['action']:<24} {who}  {rest}".rstrip()
