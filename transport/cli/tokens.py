"""Ends tokens of issuers, and people's sign-ins, before their time.

Without --url it works on the journal of the settings, or through the server that runs on that data folder; with --url
through that server. Through a server it takes an operator's key in SESSILE_API_KEY. It is in force within a second, on
what is open too.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import msgspec

from sessions.model.audit import INSTALLATION
from sessions.model.revocations import make_revocation, revocation_audit
from sessions.model.types import UnixMs
from transport.cli.api_client import JsonObject, base_of, call
from transport.cli.keys import seconds_of
from transport.cli.settings import BadSetting
from transport.cli.shared_flags import Json, ServerUrl, table, text

if TYPE_CHECKING:
    from sessions.store import Store

PAGE: int = 1000


class RevokeTokens(msgspec.Struct, frozen=True, kw_only=True):
    """Revokes one token, or everything issued about a person until now."""

    subject: Annotated[str, text("SUBJECT", "as their tokens say it in `sub`")] = ""
    token_id: Annotated[str, text("ID", "of one token (`jti`), or of a sign-in as the audit log names it")] = ""
    issuer: Annotated[str, text("ISSUER", "whose tokens; with --url it may be left out where there is one")] = ""
    expires_in: Annotated[str, text("TIME", "when they have ended anyway: 90m, 12h, 30d; else 400 days")] = ""
    url: ServerUrl = ""
    as_json: Json = False

    def __post_init__(self) -> None:
        """Raises BadSetting for options that do not go together."""
        if bool(self.subject) == bool(self.token_id):
            raise BadSetting("give --subject or --token-id, one of the two")
        if not self.url and not self.issuer:
            raise BadSetting("give --issuer, or the --url of a server that knows it")
        self.expires_at(UnixMs(0))

    def expires_at(self, now: UnixMs) -> int | None:
        return now + seconds_of(self.expires_in) * 1000 if self.expires_in else None


class ListRevocations(msgspec.Struct, frozen=True, kw_only=True):
    """Shows the revocations that have not expired, newest first."""

    url: ServerUrl = ""
    as_json: Json = False


TokenCommand = RevokeTokens | ListRevocations


async def run_on_journal(store: Store, command: TokenCommand, now: UnixMs) -> JsonObject | list[JsonObject]:
    """Runs a command on a journal opened by this process. Raises SessileError."""
    if isinstance(command, RevokeTokens):
        revocation = make_revocation(
            command.issuer,
            subject=command.subject or None,
            token_id=command.token_id or None,
            at=now,
            expires_at=command.expires_at(now),
        )
        audit = revocation_audit(revocation, None)
        return _shown(await store.revocations.add(revocation, audit=audit, tenant=INSTALLATION))
    rows: list[JsonObject] = []
    after = 0
    while changes := await store.revocations.changes(after=after, limit=PAGE):
        after = changes[-1].version
        rows += [_shown(each) for each in changes if each.expires_at > now]
    return rows[::-1]


async def run_on_server(command: TokenCommand, credential: str, now: UnixMs) -> JsonObject | list[JsonObject]:
    """Runs a command through a server's `/v1/operator/revocations`. Raises BadSetting, SessileError."""
    url = f"{base_of(command.url, credential)}/v1/operator/revocations"
    if isinstance(command, RevokeTokens):
        names = {"issuer": command.issuer, "subject": command.subject, "token_id": command.token_id}
        body: JsonObject = {name: value for name, value in names.items() if value}
        if (until := command.expires_at(now)) is not None:
            body["expires_at"] = until
        return await asyncio.to_thread(call, "POST", url, credential, body)
    rows: list[JsonObject] = []
    where = f"{url}?limit={PAGE}"
    while True:
        page = await asyncio.to_thread(call, "GET", where, credential)
        rows += page["data"]
        if not page["has_more"]:
            return rows
        where = f"{url}?limit={PAGE}&after={page['last_id']}"


def format_revocations(result: JsonObject | list[JsonObject], *, as_json: bool) -> str:
    if as_json:
        return msgspec.json.encode(result).decode()
    rows = result if isinstance(result, list) else [result]
    titles = ("KIND", "NAME", "ISSUER", "REVOKED", "KEPT UNTIL", "BY")
    return table([titles, *(_cells(row) for row in rows)])


def _cells(row: JsonObject) -> tuple[str, ...]:
    times = (datetime.fromtimestamp(row[name] / 1000, UTC).isoformat(timespec="seconds") for name in _TIMES)
    return (row["kind"], row["name"], row["issuer"], *times, row["by"] or "-")


_TIMES = ("at", "expires_at")


def _shown(revocation: msgspec.Struct) -> JsonObject:
    fields = msgspec.structs.asdict(revocation)
    return {"object": "revocation", "id": fields.pop("version"), **fields}
