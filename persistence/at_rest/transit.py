"""Wraps tenants' keys with a key service that speaks the transit API of Vault and OpenBao; the key stays there.

    POST ADDRESS/v1/MOUNT/encrypt/KEY   {"plaintext": base64}     -> {"data": {"ciphertext": "vault:v3:..."}}
    POST ADDRESS/v1/MOUNT/decrypt/KEY   {"ciphertext": "..."}     -> {"data": {"plaintext": base64}}
    POST ADDRESS/v1/MOUNT/rewrap/KEY    {"ciphertext": "..."}     -> {"data": {"ciphertext": "vault:v4:..."}}

The purpose of a secret is encrypted in front of it, so that it survives `rewrap`, which takes no associated data. The
token is read from its file for each call, so that an agent may renew it. Redirects are not followed.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import http.client
import ssl
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlsplit

import msgspec

from persistence.at_rest.wrapping import WrappedSecret
from sessions.model.errors import BadInput, Unavailable

ANSWER_BYTES_MAX: Final = 1 << 20
TIMEOUT_S: Final = 10.0
_ABOUT_BYTES: Final = 32
_LOOPBACK: Final = ("127.0.0.1", "::1", "localhost")


class TransitWrapper:
    """The port `KeyWrapper` on a transit engine at `URL/MOUNT/KEY`, as in
    https://vault.example:8200/transit/sessile."""

    def __init__(self, url: str, *, token: str = "", token_file: str = "", authority: str = "") -> None:
        """Takes the token itself or the file that has it. `authority` is a PEM file with the CA of the service's
        certificate. Blocking. Raises BadInput."""
        parts = urlsplit(url)
        mount, _, key = parts.path.strip("/").rpartition("/")
        if parts.scheme not in ("http", "https") or not parts.hostname or not mount or not key:
            raise _bad(f"{url!r} is no key service: https://HOST:8200/transit/KEY is expected.")
        if parts.scheme == "http" and parts.hostname not in _LOOPBACK:
            raise _bad("Keys go over https only, or to this machine.")
        if not token and not token_file:
            raise _bad("A key service needs a token: --key-service-token-file, or SESSILE_KEY_SERVICE_TOKEN.")
        self._name = f"{quote(mount)}/{{call}}/{quote(key)}"
        self._host, self._port = parts.hostname, parts.port or 8200
        self._token, self._token_file = token, token_file
        self._tls: ssl.SSLContext | None = None
        if parts.scheme == "https":
            try:
                self._tls = ssl.create_default_context(cafile=authority or None)
            except OSError as exc:
                raise _bad(f"The authority {authority} cannot be read.") from exc

    async def current(self) -> str:
        return (await self.wrap(b"", b"")).wrapper

    async def wrap(self, secret: bytes, about: bytes) -> WrappedSecret:
        plain = base64.b64encode(_digest(about) + secret).decode()
        return _wrapped(await self._call("encrypt", plaintext=plain))

    async def unwrap(self, wrapped: WrappedSecret, about: bytes) -> bytes | None:
        data = await self._call("decrypt", ciphertext=wrapped.data.decode("ascii", "replace"))
        if data is None:
            return None
        plain = base64.b64decode(data.get("plaintext", ""))
        return plain[_ABOUT_BYTES:] if plain[:_ABOUT_BYTES] == _digest(about) else None

    async def rewrap(self, wrapped: WrappedSecret, about: bytes) -> WrappedSecret | None:
        data = await self._call("rewrap", ciphertext=wrapped.data.decode("ascii", "replace"))
        return None if data is None else _wrapped(data)

    async def _call(self, call: str, **body: str) -> dict[str, Any] | None:
        """Calls the key service; returns its answer's data, or None if it refuses the input. Raises Unavailable."""
        return await asyncio.to_thread(self._exchange, call, msgspec.json.encode(body))

    def _exchange(self, call: str, body: bytes) -> dict[str, Any] | None:
        try:
            token = Path(self._token_file).read_text().strip() if self._token_file else self._token
            connection = (
                http.client.HTTPSConnection(self._host, self._port, timeout=TIMEOUT_S, context=self._tls)
                if self._tls is not None
                else http.client.HTTPConnection(self._host, self._port, timeout=TIMEOUT_S)
            )
            try:
                headers = {"X-Vault-Token": token, "Content-Type": "application/json"}
                connection.request("POST", f"/v1/{self._name.format(call=call)}", body, headers)
                answer = connection.getresponse()
                content = answer.read(ANSWER_BYTES_MAX)
            finally:
                connection.close()
            if answer.status == 400 and call != "encrypt":
                return None
            if answer.status != 200:
                raise Unavailable("keys_unavailable", f"The key service answers {answer.status} to {call}.")
            data: dict[str, Any] = msgspec.json.decode(content)["data"]
            return data
        except (OSError, http.client.HTTPException, msgspec.DecodeError, KeyError, TypeError) as exc:
            raise Unavailable("keys_unavailable", f"The key service does not answer ({type(exc).__name__}).") from exc


def _digest(about: bytes) -> bytes:
    return hashlib.blake2b(about, digest_size=_ABOUT_BYTES, person=b"sessile-transit").digest()


def _wrapped(data: dict[str, Any] | None) -> WrappedSecret:
    """Returns the answer's ciphertext, as in `vault:v3:...`, with its first two parts (`vault:v3`) as the wrapper's
    name. Raises Unavailable if the answer has none."""
    ciphertext = "" if data is None else str(data.get("ciphertext", ""))
    service, version, rest = [*ciphertext.split(":", 2), "", ""][:3]
    if not rest:
        raise Unavailable("keys_unavailable", "The key service's answer holds no ciphertext.")
    return WrappedSecret(f"{service}:{version}", ciphertext.encode())


def _bad(message: str) -> BadInput:
    return BadInput("bad_key_service", message, param="key_service")
