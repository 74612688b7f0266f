"""Calls a running server's HTTP API for commands with `--url`: JSON, with a key that never goes over an open line."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import msgspec

from sessions.model.errors import BadInput, SessileError, Unavailable
from transport.cli.settings import BadSetting

if TYPE_CHECKING:
    import urllib.error

ANSWER_BYTES_MAX: Final = 16 * 1024 * 1024
HOST_AND_PORT: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\s:/?#@]+):\d+/?")
WEB_SCHEMES: Final = {"ws": "http", "wss": "https"}
HOW_TO_GIVE_ONE: Final = "put one in SESSILE_API_KEY, or in a file that --api-key-file names"

JsonObject = dict[str, Any]


def base_of(server: str, credential: str) -> str:
    """Returns a server's URL without its last slash. `server` may be `http(s)://`, the chat's `ws(s)://`, or
    HOST:PORT. Raises BadSetting."""
    from transport.addresses import is_loopback

    scheme, given, rest = server.partition("://")
    if not given and HOST_AND_PORT.fullmatch(server):
        scheme, rest = "http", server
    base = f"{WEB_SCHEMES.get(scheme, scheme)}://{rest.removesuffix('/v1/ws').rstrip('/')}"
    try:
        url = urlsplit(base)
        host = url.hostname if url.port != 0 else None
    except ValueError:  # a port that is none
        host = None
    if not host or url.scheme not in ("http", "https"):
        raise BadSetting(f"url = {server!r}: http://HOST:PORT or https://HOST:PORT is expected, or HOST:PORT")
    if url.scheme == "http" and not is_loopback(host) and credential:
        raise BadSetting(f"url = {server!r}: a key goes over https only, or to this machine")
    return base


def call(
    method: str, url: str, credential: str, body: JsonObject | None = None, *, timeout_s: float = 30
) -> JsonObject:
    """Sends one request and returns its JSON answer. Blocking. Raises the error that the server answers as
    SessileError, and Unavailable if it does not answer."""
    from http.client import HTTPException

    with open_response(method, url, credential, body, timeout_s=timeout_s) as response:
        try:
            body_of: JsonObject = msgspec.json.decode(response.read(ANSWER_BYTES_MAX))
            return body_of
        except (OSError, HTTPException, msgspec.DecodeError) as error:
            raise Unavailable("keys_unavailable", f"{url} does not answer: {error}") from error


def open_response(
    method: str, url: str, credential: str, body: JsonObject | None = None, *, timeout_s: float = 30
) -> Any:
    """Sends one request and returns the open answer, to be read and closed. Raises as `call` does."""
    import urllib.error
    import urllib.request

    from transport.auth.direct_fetch import open_direct

    headers = {"content-type": "application/json"}
    if credential:
        headers["authorization"] = f"Bearer {credential}"
    data = None if body is None else msgspec.json.encode(body)
    request = urllib.request.Request(url, data, headers, method=method)
    try:
        return open_direct(request, timeout_s)
    except urllib.error.HTTPError as error:
        if error.code == 401 and not credential:
            raise BadSetting("api_key: this server takes no request without a key; " + HOW_TO_GIVE_ONE) from error
        raise _refused(error) from error
    except OSError as error:
        raise Unavailable("keys_unavailable", f"{url} does not answer: {error}") from error


def _refused(error: urllib.error.HTTPError) -> SessileError:
    from http.client import HTTPException

    if 300 <= error.code < 400:
        to = error.headers.get("location", "elsewhere")
        return BadInput(
            "invalid_setting", f"url: the server sends to {to!r}; a key goes to the address of --url only.", param="url"
        )
    try:
        details = msgspec.json.decode(error.read(ANSWER_BYTES_MAX))["error"]
        return SessileError(str(details["code"]), str(details["message"]))
    except (OSError, HTTPException, msgspec.DecodeError, KeyError, TypeError):
        return SessileError("internal_error", f"The server answered {error.code}.")
