"""`python app.py users export|erase`: everything of one end user, in a journal that nobody has open or by a server.

What is erased without a server is written down, and done by whoever runs on that journal: at its next start, or, in a
cluster, by its replicas at once. Does not open journals: `app.py` hands one over.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import quote, urlencode

import msgspec

from sessions.governance.end_user_data import Erasure, export_user_data, status
from sessions.model.audit import Audited
from sessions.model.types import TenantId, UnixMs
from sessions.store import Store
from transport.cli.api_client import Told, base_of, call, opened
from transport.cli.settings import BadSetting

ABOUT = """\
Tells everything of one end user as JSON lines (sessions, items, usage, rows of the audit log), or erases it for good:
sessions are deleted and purged at once, their keys destroyed, their KV erased, usage kept without the name. Without
--url it works on the journal of the settings (with SQLite the server must not be running; what it is to erase it erases
at its next start), with --url on a running server, with the key in SESSILE_API_KEY."""

ASK_EVERY_S: Final = 0.5


class UsersAsked(msgspec.Struct, frozen=True, kw_only=True):
    action: Literal["export", "erase"]
    user: str
    tenant: str = ""
    out: str = ""
    wait_s: float = 60.0
    url: str = ""
    as_json: bool = False


def add_users(role: argparse.ArgumentParser, add_settings: Callable[[argparse.ArgumentParser], None]) -> None:
    actions = role.add_subparsers(dest="action", required=True)
    export = actions.add_parser("export", help="tell everything of an end user")
    export.add_argument("--out", default="", metavar="FILE", help="where to; else to the terminal")
    erase = actions.add_parser("erase", help="erase everything of an end user, for good")
    erase.add_argument("--wait", type=float, default=60.0, metavar="S", help="for it to be done (60)")
    erase.add_argument("--json", action="store_true", help="JSON instead of text")
    for each in actions.choices.values():
        each.add_argument("user", metavar="USER", help="as the tenant calls them")
        each.add_argument("--tenant", default="", help="whose user; with --url that of the key, where none is named")
        each.add_argument("--url", default="", help="of a running server: http://127.0.0.1:8080")
        add_settings(each)


def taken_users(given: dict[str, Any]) -> UsersAsked:
    """What `users` is asked for, taken out of the flags. Raises BadSetting."""
    asked = UsersAsked(
        action=given.pop("action"),
        user=given.pop("user"),
        tenant=given.pop("tenant"),
        out=given.pop("out", ""),
        wait_s=given.pop("wait", 60.0),
        url=given.pop("url"),
        as_json=given.pop("json", False),
    )
    if not asked.tenant and not asked.url:
        raise BadSetting("tenant: say whose user it is (--tenant acme)")
    return asked


async def on_journal(store: Store, asked: UsersAsked, now_ms: Callable[[], UnixMs], *, wait: bool) -> int:
    """Does it on a journal that is open here; returns the status to end with. `wait`: others may have it open too, and
    carry an erasure out. Raises Unavailable."""
    tenant = TenantId(asked.tenant)
    at = now_ms()
    if asked.action == "export":
        await store.audit.record(tenant, [Audited(action="user.exported", at=at, user=asked.user)])
        out = await asyncio.to_thread(open, asked.out, "wb") if asked.out else sys.stdout.buffer
        try:
            async for each in export_user_data(
                tenant,
                asked.user,
                personal=store.end_users,
                journal=store.journal,
                usage=store.usage,
                audit=store.audit,
                at=at,
            ):
                out.write(msgspec.json.encode(each) + b"\n")
        finally:
            if asked.out:
                out.close()
        return 0
    row = Audited(action="user.erasure_asked", at=at, user=asked.user)
    erasure = await store.end_users.request_erasure(
        Erasure(tenant=tenant, user=asked.user, asked_at=at, asked_by=""), row
    )
    until = time.monotonic() + (asked.wait_s if wait else 0)
    while erasure.done_at is None and time.monotonic() < until:
        await asyncio.sleep(ASK_EVERY_S)
        erasure = await store.end_users.find(tenant, asked.user) or erasure
    return _say(status(erasure, asked.user), asked)


def on_server(asked: UsersAsked, credential: str) -> int:
    """The same, asked of a running server. Blocking. Raises BadSetting, SessileError."""
    query = f"?{urlencode({'tenant': asked.tenant})}" if asked.tenant else ""
    base = f"{base_of(asked.url, credential)}/v1/users/{quote(asked.user, safe='')}"
    if asked.action == "export":
        with opened("GET", f"{base}/export{query}", credential, timeout_s=600) as answer:
            if asked.out:
                with Path(asked.out).open("wb") as out:
                    shutil.copyfileobj(answer, out)
            else:
                shutil.copyfileobj(answer, sys.stdout.buffer)
        return 0
    told = call("POST", f"{base}/erase{query}", credential, timeout_s=600)
    until = time.monotonic() + asked.wait_s
    while told["status"] != "done" and time.monotonic() < until:
        time.sleep(ASK_EVERY_S)
        told = call("GET", f"{base}/erase{query}", credential)
    return _say(told, asked)


def _say(told: Told, asked: UsersAsked) -> int:
    done = told["status"] == "done"
    if asked.as_json:
        print(msgspec.json.encode(told).decode())
    elif done:
        print(f"Everything of {asked.user} is erased.")
    else:
        print(
            f"The erasure of {asked.user} is under way: it is written down, and ends when a server has done its part."
        )
    return 0 if done else 3
