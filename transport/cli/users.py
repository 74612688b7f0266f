"""Exports or erases everything of an end user.

Without --url it works on the journal of the settings, or through the server that runs on that data folder; with --url
through that server. Through a server it takes the key in SESSILE_API_KEY. On a journal an erasure is carried out by
whoever runs on it: at its next start, or, in a cluster, by its replicas at once.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO, Final
from urllib.parse import quote, urlencode

import msgspec

from sessions.model.audit import Audited
from sessions.model.types import TenantId, UnixMs
from transport.cli.api_client import JsonObject, base_of, call, open_response
from transport.cli.plain_text import plain
from transport.cli.settings import BadSetting
from transport.cli.shared_flags import Json, Reason, ServerUrl, text

if TYPE_CHECKING:
    from sessions.store import Store

POLL_S: Final = 0.5

UserTenant = Annotated[str, text("TENANT", "whose user; with --url the key's, where none is named")]


class _EndUser(msgspec.Struct, frozen=True):
    user: Annotated[str, text("USER", "as the tenant calls them")]


class _UserOptions(_EndUser, frozen=True, kw_only=True):
    tenant: UserTenant = ""
    reason: Reason = ""
    url: ServerUrl = ""

    def __post_init__(self) -> None:
        """Raises BadSetting if no tenant is named."""
        if not self.tenant and not self.url:
            raise BadSetting("tenant: name whose user it is (--tenant acme)")


class ExportUser(_UserOptions, frozen=True, kw_only=True):
    """Exports everything of an end user as JSON lines: sessions, items, usage, rows of the audit log."""

    out: Annotated[str, text("FILE", "where to; else to the terminal")] = ""


class EraseUser(_UserOptions, frozen=True, kw_only=True):
    """Erases everything of an end user, for good.

    Sessions are deleted and purged at once, their keys destroyed, their KV erased, usage kept without the name. Ends
    with status 3 while the erasure is under way.
    """

    wait: Annotated[float, text("SECONDS", "for it to be done [default: 60]")] = 60.0
    as_json: Json = False


UserCommand = ExportUser | EraseUser


async def run_on_journal(store: Store, command: UserCommand, now_ms: Callable[[], UnixMs], *, shared: bool) -> int:
    """Runs a command on a journal opened by this process; returns the exit status. `shared`: other processes may have
    it open too, and will carry an erasure out. Raises Unavailable."""
    from sessions.governance.end_user_data import Erasure, KeptForUsers, export_user_data, status

    tenant = TenantId(command.tenant)
    at = now_ms()
    if isinstance(command, ExportUser):
        out = await asyncio.to_thread(_private_file, command.out) if command.out else sys.stdout.buffer
        try:
            await store.audit.record(tenant, [Audited(action="user.exported", at=at, user=command.user)])
            async for each in export_user_data(
                tenant,
                command.user,
                personal=store.end_users,
                kept=KeptForUsers(store.push, store.files),
                journal=store.journal,
                usage=store.usage,
                audit=store.audit,
                at=at,
            ):
                out.write(msgspec.json.encode(each) + b"\n")
        finally:
            if command.out:
                out.close()
        return 0
    row = Audited(action="user.erasure_asked", at=at, user=command.user)
    erasure = await store.end_users.request_erasure(
        Erasure(tenant=tenant, user=command.user, asked_at=at, asked_by=""), row
    )
    loop = asyncio.get_running_loop()
    until = loop.time() + (command.wait if shared else 0)
    while erasure.done_at is None and loop.time() < until:
        await asyncio.sleep(POLL_S)
        erasure = await store.end_users.find(tenant, command.user) or erasure
    return _report(status(erasure, command.user), command)


def run_on_server(command: UserCommand, credential: str) -> int:
    """Runs a command through a server's `/v1/users`; returns the exit status. Blocking. Raises BadSetting,
    SessileError."""
    query = urlencode({name: value for name in ("tenant", "reason") if (value := getattr(command, name))})
    query = f"?{query}" if query else ""
    base = f"{base_of(command.url, credential)}/v1/users/{quote(command.user, safe='')}"
    if isinstance(command, ExportUser):
        with open_response("GET", f"{base}/export{query}", credential, timeout_s=600) as answer:
            if command.out:
                with _private_file(command.out) as out:
                    shutil.copyfileobj(answer, out)
            else:
                shutil.copyfileobj(answer, sys.stdout.buffer)
        return 0
    erasure = call("POST", f"{base}/erase{query}", credential, timeout_s=600)
    until = time.monotonic() + command.wait
    while erasure["status"] != "done" and time.monotonic() < until:
        time.sleep(POLL_S)
        erasure = call("GET", f"{base}/erase{query}", credential)
    return _report(erasure, command)


def _private_file(path: str) -> BinaryIO:
    """Opens a new file for an export, which only its owner may read. Raises BadSetting."""
    try:
        Path(path).unlink(missing_ok=True)  # what was there may be open to others
        return open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")
    except OSError as error:
        raise BadSetting(f"out = {path!r}: this file cannot be written ({error.strerror or error})") from error


def _report(erasure: JsonObject, command: EraseUser) -> int:
    done = erasure["status"] == "done"
    if command.as_json:
        print(msgspec.json.encode(erasure).decode())
    elif done:
        print(f"Everything of {plain(command.user)} is erased.")
    else:
        name = plain(command.user)
        print(f"The erasure of {name} is under way: it is recorded, and ends when a server has done its part.")
    return 0 if done else 3
