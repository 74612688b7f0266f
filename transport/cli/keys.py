"""`python app.py keys create|list|revoke|show`: API keys, in a journal that nobody has open or through a server.

A data folder belongs to the process that runs on it, so for a running server the command speaks to `/v1/keys` with
`--url` and an operator's key (SESSILE_API_KEY). The very first key is made before the server runs, or on a server that
still listens on loopback without keys. What is printed is JSON with `--json`; the secret is printed once and kept
nowhere.

Does not open journals: `app.py` hands a `ApiKeyCache` over.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final, Literal, get_args
from urllib.parse import quote, urlencode

import msgspec

from sessions.model.api_keys import ApiKeyRequest
from sessions.model.errors import NotFound
from sessions.model.types import SCOPES, Authority, UnixMs
from transport.auth.api_key_cache import ApiKeyCache, public_key_fields
from transport.cli.api_client import Told, base_of, call
from transport.cli.settings import BadSetting

ABOUT: Final = """\
Makes, shows and revokes API keys. Without --url it works on the journal of the settings (--data, --journal), which for
SQLite must not be in use; with --url on a running server, with the key in SESSILE_API_KEY."""

UNITS: Final = {"m": 60, "h": 3600, "d": 86_400}


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What the command is asked to do."""

    action: Literal["create", "list", "revoke", "show"]
    key_id: str = ""
    tenant: str = ""
    role: Authority = "user"
    user: str = ""
    scopes: str = ""
    name: str = ""
    expires_in: str = ""
    url: str = ""
    as_json: bool = False


def add_keys(role: argparse.ArgumentParser, add_settings: Callable[[argparse.ArgumentParser], None]) -> None:
    actions = role.add_subparsers(dest="action", required=True)
    create = actions.add_parser("create", help="make a key; it is shown once")
    create.add_argument("--tenant", required=True, help="whose key it is")
    create.add_argument(
        "--role",
        dest="role_of_key",
        default="user",
        choices=get_args(Authority),
        help="user, service or operator (user)",
    )
    create.add_argument(
        "--user", default="", help="the end user that it acts for; a user's key without is one of its own"
    )
    create.add_argument("--scopes", default="", help=f"of {','.join(SCOPES)}; empty: what the role usually needs")
    create.add_argument("--label", dest="key_name", default="", help="what it is for, for people")
    create.add_argument("--expires-in", default="", metavar="30d", help="minutes, hours or days: 90m, 12h, 30d")
    listing = actions.add_parser("list", help="show keys, newest first")
    listing.add_argument("--tenant", default="", help="only those of this tenant")
    for action, about in (("revoke", "end a key for good, at once"), ("show", "show one key")):
        one = actions.add_parser(action, help=about)
        one.add_argument("key_id", metavar="ID", help="the part of the key behind sk-sessile-")
    for each in actions.choices.values():
        each.add_argument("--url", default="", help="of a running server: http://127.0.0.1:8080")
        each.add_argument("--json", action="store_true", help="JSON instead of text")
        add_settings(each)


def taken_keys(given: dict[str, Any]) -> Asked:
    """What `keys` is asked for, taken out of the flags. Raises BadSetting."""
    asked = Asked(
        action=given.pop("action"),
        key_id=given.pop("key_id", ""),
        tenant=given.pop("tenant", ""),
        role=given.pop("role_of_key", "user"),
        user=given.pop("user", ""),
        scopes=given.pop("scopes", ""),
        name=given.pop("key_name", ""),
        expires_in=given.pop("expires_in", ""),
        url=given.pop("url", ""),
        as_json=given.pop("json"),
    )
    scopes_of(asked)
    seconds_of(asked.expires_in)
    return asked


def scopes_of(asked: Asked) -> tuple[str, ...] | None:
    """Raises BadSetting for a word that is no scope."""
    words = tuple(word.strip() for word in asked.scopes.split(",") if word.strip())
    for word in words:
        if word not in SCOPES:
            raise BadSetting(f"scopes: {word!r} is none; allowed: {', '.join(SCOPES)}")
    return words or None


def seconds_of(text: str) -> int | None:
    """`30d` as seconds; None for nothing. Raises BadSetting."""
    if not text:
        return None
    number, unit = text[:-1], text[-1]
    if unit not in UNITS or not number.isascii() or not number.isdigit() or not 0 < int(number) <= 1_000_000:
        raise BadSetting(f"expires-in = {text!r}: a number with m, h or d behind it, for example 30d")
    return int(number) * UNITS[unit]


def _body(asked: Asked, now: UnixMs) -> Told:
    lasts_s, scopes = seconds_of(asked.expires_in), scopes_of(asked)
    body: Told = {"tenant": asked.tenant, "role": asked.role, "name": asked.name}
    if asked.user:
        body["user"] = asked.user
    if scopes is not None:
        body["scopes"] = scopes
    if lasts_s is not None:
        body["expires_at"] = now + lasts_s * 1000
    return body


async def on_ring(ring: ApiKeyCache, asked: Asked, now: UnixMs) -> Told | list[Told]:
    """Does what is asked on a journal that is open here. Raises SessileError."""
    await ring.refresh()
    match asked.action:
        case "create":
            wanted = msgspec.convert(_body(asked, now), ApiKeyRequest)
            key, written = await ring.create(wanted, created_by="")
            return {**public_key_fields(key, now), "key": written}
        case "list":
            return [public_key_fields(key, now) for key in ring.all() if asked.tenant in ("", key.tenant)]
        case "show":
            found = ring.find(asked.key_id)
        case "revoke":
            found = await ring.revoke(asked.key_id, revoked_by="")
    if found is None:
        raise NotFound("key_not_found", f"There is no key {asked.key_id!r}.", param="key_id")
    return public_key_fields(found, now)


# -- through a server -------------------------------------------------------------------------------------------------


async def on_server(asked: Asked, credential: str, now: UnixMs) -> Told | list[Told]:
    """The same, asked of a running server. Raises BadSetting, SessileError."""
    base = f"{base_of(asked.url, credential)}/v1/keys"
    match asked.action:
        case "create":
            return await asyncio.to_thread(call, "POST", base, credential, _body(asked, now))
        case "show":
            return await asyncio.to_thread(call, "GET", f"{base}/{quote(asked.key_id, safe='')}", credential)
        case "revoke":
            return await asyncio.to_thread(call, "DELETE", f"{base}/{quote(asked.key_id, safe='')}", credential)
        case "list":
            keys: list[Told] = []
            query = {"limit": "1000"} | ({"tenant": asked.tenant} if asked.tenant else {})
            while True:
                page = await asyncio.to_thread(call, "GET", f"{base}?{urlencode(query)}", credential)
                keys += page["data"]
                if not page["has_more"]:
                    return keys
                query["after"] = page["last_id"]


# -- what is printed --------------------------------------------------------------------------------------------------


def printed(told: Told | list[Told], *, as_json: bool) -> str:
    if as_json:
        return msgspec.json.encode(told).decode()
    if isinstance(told, list):
        rows = [("ID", "STATE", "TENANT", "ROLE", "USER", "SCOPES", "EXPIRES", "LABEL"), *map(_row, told)]
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
        return "\n".join(line.rstrip() for line in lines)
    text = "\n".join(f"{name:>10}  {_text(name, told[name])}" for name in told if name not in ("object", "key"))
    if "key" in told:
        text += f"\n\n{told['key']}\n\nThis is shown once. Keep it where secrets are kept."
    return text


def _row(key: Told) -> tuple[str, ...]:
    names = ("id", "state", "tenant", "role", "user", "scopes", "expires_at", "name")
    return tuple(_text(name, key[name]) for name in names)


def _text(name: str, value: Any) -> str:
    if value is None or value == "":
        return "-"
    if name.endswith("_at"):
        return datetime.fromtimestamp(value / 1000, UTC).isoformat(timespec="seconds")
    return ",".join(value) if isinstance(value, list | tuple) else str(value)
