"""`python app.py audit list|verify`: the audit log, in a journal that nobody has open or through a server.

Does not open journals: `app.py` hands an `AuditLog` over.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Literal
from urllib.parse import quote, urlencode

import msgspec

from sessions.governance.audit_verify import AuditVerification, parse_anchor, verify
from sessions.model.audit import INSTALLATION, PAGE_MAX, AuditLog, public
from sessions.model.types import TenantId
from transport.cli.api_client import Told, base_of, call
from transport.cli.settings import BadSetting

ABOUT = """\
Shows the audit log of a tenant, or checks that no row of it was changed, left out or put elsewhere; ends with status 1
where one was. Without --url it reads the journal of the settings (with SQLite the server must not be running), with
--url it asks a server, with the key in SESSILE_API_KEY. Keep the anchor that `verify` prints somewhere else, and show
it again with --anchor: a log that was put back whole to what it once was does not get past it."""


class AuditAsked(msgspec.Struct, frozen=True, kw_only=True):
    """What the command is asked to do. `tenant` None: `verify` goes over every chain; `list` shows the key's own."""

    action: Literal["list", "verify"]
    tenant: str | None = None
    user: str = ""
    after: int = 0
    limit: int = 100
    last: int = 0
    anchors: dict[int, str] = {}
    url: str = ""
    as_json: bool = False


def add_audit(role: argparse.ArgumentParser, add_settings: Callable[[argparse.ArgumentParser], None]) -> None:
    actions = role.add_subparsers(dest="action", required=True)
    listing = actions.add_parser("list", help="show rows, oldest first")
    listing.add_argument("--user", default="", help="only those about this end user")
    listing.add_argument("--after", type=int, default=0, metavar="N", help="rows behind this one")
    listing.add_argument("--limit", type=int, default=100, metavar="N", help=f"of a page, at most {PAGE_MAX} (100)")
    listing.add_argument("--last", type=int, default=0, metavar="N", help="the newest so many instead")
    check = actions.add_parser("verify", help="check the chain from its first row to its last")
    check.add_argument("--anchor", action="append", default=[], metavar="SEQ:MAC", help="a row that must be there")
    for each in actions.choices.values():
        each.add_argument("--tenant", default=None, help="whose; nothing ('') is the installation's own")
        each.add_argument("--url", default="", help="of a running server: http://127.0.0.1:8080")
        each.add_argument("--json", action="store_true", help="JSON instead of text")
        add_settings(each)


def taken_audit(given: dict[str, Any]) -> AuditAsked:
    """What `audit` is asked for, taken out of the flags. Raises BadSetting."""
    try:
        anchors = dict(parse_anchor(each) for each in given.pop("anchor", ()))
    except ValueError as error:
        raise BadSetting(f"anchor: {error}") from error
    asked = AuditAsked(
        action=given.pop("action"),
        tenant=given.pop("tenant"),
        user=given.pop("user", ""),
        after=given.pop("after", 0),
        limit=given.pop("limit", 100),
        last=given.pop("last", 0),
        anchors=anchors,
        url=given.pop("url"),
        as_json=given.pop("json"),
    )
    if not 1 <= asked.limit <= PAGE_MAX or not 0 <= asked.last <= PAGE_MAX or asked.after < 0:
        raise BadSetting(f"limit, last: at least 1, at most {PAGE_MAX}; after: at least 0")
    if asked.action == "list" and asked.tenant is None and not asked.url:
        raise BadSetting("tenant: say whose log (--tenant acme), or '' for the installation's")
    if asked.anchors and asked.tenant is None and not asked.url:
        raise BadSetting("anchor: an anchor is of one tenant's chain; name it with --tenant")
    return asked


async def on_log(audit: AuditLog, asked: AuditAsked) -> list[Told]:
    """Does what is asked on a journal that is open here: rows, or one report per chain. Raises Unavailable."""
    if asked.action == "verify":
        tenants = [TenantId(asked.tenant)] if asked.tenant is not None else await audit.tenants()
        return [told_of(await verify(audit, tenant, anchors=asked.anchors)) for tenant in tenants]
    tenant = TenantId(asked.tenant or INSTALLATION)
    after, limit = asked.after, asked.limit
    if asked.last:
        head = await audit.head(tenant)
        after, limit = max(0, (head.seq if head is not None else 0) - asked.last), asked.last
    about = audit.sealer.pseudonyms(tenant, asked.user) if asked.user else None
    return [public(row) for row in await audit.rows(tenant, after=after, limit=limit, about=about)]


async def on_server(asked: AuditAsked, credential: str) -> list[Told]:
    """The same, asked of a running server. Raises BadSetting, SessileError."""
    base = f"{base_of(asked.url, credential)}/v1/audit"
    whose = {} if asked.tenant is None else {"tenant": asked.tenant}
    if asked.action == "verify":
        anchors = [("anchor", f"{seq}:{mac}") for seq, mac in asked.anchors.items()]
        query = urlencode([*whose.items(), *anchors], quote_via=quote)
        return [await asyncio.to_thread(call, "GET", f"{base}/verify?{query}", credential, timeout_s=600)]
    page = {**whose, "limit": asked.limit, "after": asked.after, **({"user": asked.user} if asked.user else {})}
    if asked.last:
        found = await asyncio.to_thread(call, "GET", f"{base}/verify?{urlencode(whose)}", credential, timeout_s=600)
        page |= {"after": max(0, found["trimmed"] + found["rows"] - asked.last), "limit": asked.last}
    told = await asyncio.to_thread(call, "GET", f"{base}?{urlencode(page)}", credential)
    return list(told["data"])


def told_of(found: AuditVerification) -> Told:
    told: Told = msgspec.to_builtins(found)
    return told


def broken(asked: AuditAsked, told: list[Told]) -> bool:
    return asked.action == "verify" and not all(each["intact"] for each in told)


def printed(asked: AuditAsked, told: list[Told]) -> str:
    if asked.as_json:
        return "\n".join(msgspec.json.encode(each).decode() for each in told)
    return "\n".join(_verified(each) if asked.action == "verify" else _row(each) for each in told)


def _verified(found: Told) -> str:
    name = found["tenant"] or "(installation)"
    if not found["intact"]:
        return f"{name}: row {found['first_broken']} {found['why']}"
    trimmed = ""
    if found["trimmed"]:
        until = datetime.fromtimestamp(found["trimmed_until"] / 1000, UTC).isoformat(timespec="seconds")
        trimmed = f"; {found['trimmed']} before them were trimmed, up to {until}"
    if found["unchecked"]:
        trimmed += f"; {found['unchecked']} of the anchors given are of trimmed rows and prove nothing"
    weak = f"; {found['weak']} of them without the key file" if found["weak"] else ""
    return f"{name}: {found['rows']} rows, all as they were written{weak}{trimmed}; anchor {found['anchor'] or '-'}"


def _row(row: Told) -> str:
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
