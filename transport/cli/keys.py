"""Makes, shows and revokes API keys.

Without --url it works on the journal of the settings (--data, --journal), or through the server that runs on that data
folder; with --url on another running server. Either way with the key in SESSILE_API_KEY. The very first key is made
before the server runs, or on a server that still listens on loopback without keys. A key is printed once and kept
nowhere.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Final
from urllib.parse import quote, urlencode

import msgspec

from sessions.model.api_keys import ApiKeyRequest
from sessions.model.errors import NotFound
from sessions.model.types import ALL_SCOPES, Authority, UnixMs
from transport.cli.api_client import JsonObject, base_of, call
from transport.cli.plain_text import plain
from transport.cli.settings import BadSetting
from transport.cli.shared_flags import Json, Reason, ServerUrl, Tenant, table, text

if TYPE_CHECKING:
    from transport.auth.api_key_cache import ApiKeyCache

UNIT_S: Final = {"m": 60, "h": 3600, "d": 86_400}


class CreateKey(msgspec.Struct, frozen=True, kw_only=True):
    """Makes an API key; it is shown once."""

    tenant: Annotated[str, text("TENANT", "whose key it is")]
    role: Annotated[Authority, text("ROLE", "what it may do")] = "user"
    user: Annotated[str, text("USER", "the end user that it acts for; a user's key without is one of its own")] = ""
    scopes: Annotated[str, text("SCOPE,...", f"of {','.join(ALL_SCOPES)}; else what the role usually needs")] = ""
    label: Annotated[str, text("LABEL", "what it is for, for people")] = ""
    expires_in: Annotated[str, text("TIME", "minutes, hours or days: 90m, 12h, 30d; else never")] = ""
    reason: Reason = ""
    url: ServerUrl = ""
    as_json: Json = False

    def __post_init__(self) -> None:
        """Raises BadSetting for options that are not allowed."""
        self.request(UnixMs(0))

    def request(self, now: UnixMs) -> JsonObject:
        """Returns the body of `POST /v1/keys`. Raises BadSetting."""
        body: JsonObject = {"tenant": self.tenant, "role": self.role, "name": self.label}
        if self.user:
            body["user"] = self.user
        if scopes := [word.strip() for word in self.scopes.split(",") if word.strip()]:
            if unknown := [word for word in scopes if word not in ALL_SCOPES]:
                raise BadSetting(f"scopes: {unknown[0]!r} is none; allowed: {', '.join(ALL_SCOPES)}")
            body["scopes"] = scopes
        if self.reason:
            body["reason"] = self.reason
        if self.expires_in:
            body["expires_at"] = now + seconds_of(self.expires_in) * 1000
        return body


class ListKeys(msgspec.Struct, frozen=True, kw_only=True):
    """Shows API keys, newest first."""

    tenant: Tenant = ""
    url: ServerUrl = ""
    as_json: Json = False


class _OneKey(msgspec.Struct, frozen=True):
    key_id: Annotated[str, text("ID", "the part of the key behind sk-sessile-")]


class ShowKey(_OneKey, frozen=True, kw_only=True):
    """Shows one API key, without its secret."""

    url: ServerUrl = ""
    as_json: Json = False


class RevokeKey(_OneKey, frozen=True, kw_only=True):
    """Revokes an API key for good, at once."""

    url: ServerUrl = ""
    as_json: Json = False


KeyCommand = CreateKey | ListKeys | ShowKey | RevokeKey


def seconds_of(duration: str) -> int:
    """Returns a duration such as `30d` in seconds. Raises BadSetting."""
    number, unit = duration[:-1], duration[-1]
    if unit not in UNIT_S or not number.isascii() or not number.isdigit() or not 0 < int(number) <= 1_000_000:
        raise BadSetting(f"expires-in = {duration!r}: a number with m, h or d behind it, for example 30d")
    return int(number) * UNIT_S[unit]


async def run_on_journal(cache: ApiKeyCache, command: KeyCommand, now: UnixMs) -> JsonObject | list[JsonObject]:
    """Runs a command on the keys of a journal opened by this process. Raises SessileError."""
    from transport.auth.api_key_cache import public_key_fields

    await cache.refresh()
    match command:
        case CreateKey():
            key, written = await cache.create(msgspec.convert(command.request(now), ApiKeyRequest), created_by="")
            return {**public_key_fields(key, now), "key": written}
        case ListKeys():
            return [public_key_fields(key, now) for key in cache.all() if command.tenant in ("", key.tenant)]
        case ShowKey(key_id):
            one = cache.find(key_id)
        case RevokeKey(key_id):
            one = await cache.revoke(key_id, revoked_by="")
    if one is None:
        raise NotFound("key_not_found", f"There is no key {key_id!r}.", param="key_id")
    return public_key_fields(one, now)


async def run_on_server(command: KeyCommand, credential: str, now: UnixMs) -> JsonObject | list[JsonObject]:
    """Runs a command through a server's `/v1/keys`. Raises BadSetting, SessileError."""
    base = f"{base_of(command.url, credential)}/v1/keys"
    match command:
        case CreateKey():
            return await asyncio.to_thread(call, "POST", base, credential, command.request(now))
        case ShowKey(key_id) | RevokeKey(key_id):
            method = "GET" if isinstance(command, ShowKey) else "DELETE"
            return await asyncio.to_thread(call, method, f"{base}/{quote(key_id, safe='')}", credential)
        case ListKeys():
            keys: list[JsonObject] = []
            query = {"limit": "1000"} | ({"tenant": command.tenant} if command.tenant else {})
            while True:
                page = await asyncio.to_thread(call, "GET", f"{base}?{urlencode(query)}", credential)
                keys += page["data"]
                if not page["has_more"]:
                    return keys
                query["after"] = page["last_id"]


COLUMNS: Final = ("id", "state", "tenant", "role", "user", "scopes", "expires_at", "name")
TITLES: Final = ("ID", "STATE", "TENANT", "ROLE", "USER", "SCOPES", "EXPIRES", "LABEL")


def format_keys(keys: JsonObject | list[JsonObject], *, as_json: bool) -> str:
    """Returns keys as a table, or one key with all its fields."""
    if as_json:
        return msgspec.json.encode(keys).decode()
    if isinstance(keys, list):
        return table([TITLES, *(tuple(_cell(name, key[name]) for name in COLUMNS) for key in keys)])
    text = "\n".join(f"{name:>10}  {_cell(name, keys[name])}" for name in keys if name not in ("object", "key"))
    if "key" in keys:
        text += f"\n\n{keys['key']}\n\nThis is shown once. Keep it where secrets are kept."
    return text


def _cell(name: str, value: Any) -> str:
    if value is None or value == "":
        return "-"
    if name.endswith("_at"):
        return datetime.fromtimestamp(value / 1000, UTC).isoformat(timespec="seconds")
    return plain(",".join(value) if isinstance(value, list | tuple) else str(value))
