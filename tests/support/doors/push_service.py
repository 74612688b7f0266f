"""A push service that stands in for a browser vendor's, with the devices behind it: takes what RFC 8030 says, checks
the signature (RFC 8292), and decrypts as the device would (RFC 8291)."""

from __future__ import annotations

import asyncio
import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import http_ece
import jwt
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from transport.push.vapid import VapidKey

AUTH = b"sixteen bytes of"


def base64url(raw: bytes) -> str:
    return urlsafe_b64encode(raw).rstrip(b"=").decode()


def vapid_key() -> VapidKey:
    return VapidKey(ec.generate_private_key(ec.SECP256R1()), "mailto:us@example.org")


def vapid_pem() -> bytes:
    key = ec.generate_private_key(ec.SECP256R1())
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


class Push(NamedTuple):
    """A message as its device reads it."""

    device: str
    said: dict[str, Any]
    headers: Mapping[str, str]
    claims: dict[str, Any]
    size: int


class PushService:
    """Listens within its `async with`. `answers` says what a device's next request is answered with."""

    def __init__(self) -> None:
        self.pushes: list[Push] = []
        self.requests = 0
        self.answer: Callable[[str], tuple[int, dict[str, str]]] = lambda device: (201, {})
        self.came = asyncio.Condition()
        self._key = ec.generate_private_key(ec.SECP256R1())

    async def __aenter__(self) -> PushService:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._server.close()
        await self._server.wait_closed()

    def device(self, name: str) -> dict[str, Any]:
        """What the browser of that device says of its subscription."""
        public = self._key.public_key().public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)
        return {
            "endpoint": f"http://127.0.0.1:{self.port}/push/{name}",
            "keys": {"p256dh": base64url(public), "auth": base64url(AUTH)},
        }

    async def wait_for(self, count: int) -> list[Push]:
        async with asyncio.timeout(60), self.came:
            await self.came.wait_for(lambda: len(self.pushes) >= count)
        return self.pushes

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                method, path, _ = line.decode().split()
                headers = {}
                while (header := (await reader.readline()).decode().strip()) != "":
                    name, _, value = header.partition(":")
                    headers[name.lower()] = value.strip()
                body = await reader.readexactly(int(headers.get("content-length", "0")))
                status, more = await self._take(method, path, headers, body)
                lines = [f"HTTP/1.1 {status} x", "content-length: 0", *(f"{k}: {v}" for k, v in more.items()), "", ""]
                writer.write("\r\n".join(lines).encode())
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            return
        finally:
            writer.close()

    async def _take(self, method: str, path: str, headers: dict[str, str], body: bytes) -> tuple[int, dict[str, str]]:
        assert method == "POST"
        self.requests += 1
        device = path.rsplit("/", 1)[1]
        status, more = self.answer(device)
        if status < 300:
            plain = http_ece.decrypt(body, private_key=self._key, auth_secret=AUTH, version="aes128gcm")
            push = Push(device, json.loads(plain), headers, self._claims(headers), len(body))
            async with self.came:
                self.pushes.append(push)
                self.came.notify_all()
        return status, more

    def _claims(self, headers: Mapping[str, str]) -> dict[str, Any]:
        """Of the token, whose signature is the key's that stands beside it."""
        token, key = headers["authorization"].removeprefix("vapid t=").split(", k=")
        raw = urlsafe_b64decode(key + "=" * (-len(key) % 4))
        public = ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), raw)
        origin = f"http://127.0.0.1:{self.port}"
        claims: dict[str, Any] = jwt.decode(token, public, algorithms=["ES256"], audience=origin)
        return claims
