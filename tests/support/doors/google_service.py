"""Google as it stands on the wire for FCM: the token address, which checks a service account's assertion, and HTTP v1
of Firebase Cloud Messaging, which takes the tokens that the former gave."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs

import jwt
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

PROJECT, EMAIL, KEY_ID = "chat-1", "push@chat-1.iam.gserviceaccount.com", "k1"
SCOPE = "https://www.googleapis.com/auth/firebase.messaging"

Answer = tuple[int, dict[str, Any], dict[str, str]]  # status, body, headers


class Told(NamedTuple):
    """A message that was taken."""

    device: str
    message: dict[str, Any]
    headers: Mapping[str, str]


def failure(status: str, code: str = "", field: str = "") -> dict[str, Any]:
    """An error in Google's words."""
    details: list[dict[str, Any]] = []
    if code:
        details.append({"@type": "type.googleapis.com/google.firebase.fcm.v1.FcmError", "errorCode": code})
    if field:
        violations = [{"field": field, "description": "Invalid value"}]
        details.append({"@type": "type.googleapis.com/google.rpc.BadRequest", "fieldViolations": violations})
    return {"error": {"status": status, "message": "no", "details": details}}


class GoogleService:
    """Listens within its `async with`. `answer` says what is said of a device's next request, if it is in order."""

    def __init__(self) -> None:
        self.key = rsa.generate_private_key(65537, 2048)
        self.told: list[Told] = []
        self.exchanges = self.requests = 0
        self.expires_s = 3599
        self.given: set[str] = set()
        self.exchange: Callable[[], Answer | None] = lambda: None  # something else than a token
        self.answer: Callable[[str], Answer] = lambda device: (200, {"name": "projects/x/messages/1"}, {})
        self.came = asyncio.Condition()

    async def __aenter__(self) -> GoogleService:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._server.close()
        await self._server.wait_closed()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def account(self, **more: Any) -> dict[str, Any]:
        """What stands in the file that Google makes."""
        pem = self.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
        return {
            "type": "service_account",
            "project_id": PROJECT,
            "private_key_id": KEY_ID,
            "private_key": pem,
            "client_email": EMAIL,
            "client_id": "1",
            "token_uri": f"{self.url}/token",
            **more,
        }

    def account_file(self, folder: Path, **more: Any) -> Path:
        file = folder / "account.json"
        file.touch(mode=0o600)
        file.write_text(json.dumps(self.account(**more)))
        return file

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                _, path, _ = line.decode().split()
                headers = {}
                while (header := (await reader.readline()).decode().strip()) != "":
                    name, _, value = header.partition(":")
                    headers[name.lower()] = value.strip()
                body = await reader.readexactly(int(headers.get("content-length", "0")))
                status, said, more = self._token(body) if path == "/token" else await self._take(path, headers, body)
                text = json.dumps(said).encode()
                lines = [
                    f"HTTP/1.1 {status} x",
                    f"content-length: {len(text)}",
                    *(f"{k}: {v}" for k, v in more.items()),
                ]
                writer.write("\r\n".join([*lines, "", ""]).encode() + text)
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            return
        finally:
            writer.close()

    def _token(self, body: bytes) -> Answer:
        self.exchanges += 1
        if (other := self.exchange()) is not None:
            return other
        form = parse_qs(body.decode())
        if form.get("grant_type") != ["urn:ietf:params:oauth:grant-type:jwt-bearer"]:
            return 400, {"error": "unsupported_grant_type"}, {}
        try:
            claims = jwt.decode(
                form["assertion"][0],
                self.key.public_key(),
                algorithms=["RS256"],
                audience=f"{self.url}/token",
                issuer=EMAIL,
                options={"require": ["exp", "iat", "aud", "iss"], "verify_iat": False},  # tests look ahead
            )
        except (KeyError, jwt.PyJWTError):
            return 400, {"error": "invalid_grant"}, {}
        if claims["scope"] != SCOPE or claims["exp"] - claims["iat"] > 3600 or claims["exp"] < time.time():
            return 400, {"error": "invalid_scope"}, {}
        self.given.add(token := secrets.token_urlsafe(24))
        return 200, {"access_token": token, "expires_in": self.expires_s, "token_type": "Bearer"}, {}

    async def _take(self, path: str, headers: Mapping[str, str], body: bytes) -> Answer:
        self.requests += 1
        if headers.get("authorization", "").removeprefix("Bearer ") not in self.given:
            return 401, failure("UNAUTHENTICATED"), {}
        if path != f"/v1/projects/{PROJECT}/messages:send":
            return 403, failure("PERMISSION_DENIED"), {}
        message = json.loads(body)["message"]
        if not all(isinstance(each, str) for each in message["data"].values()):
            return 400, failure("INVALID_ARGUMENT", "INVALID_ARGUMENT", "message.data"), {}
        status, said, more = self.answer(message["token"])
        if status == 200:
            async with self.came:
                self.told.append(Told(message["token"], message, headers))
                self.came.notify_all()
        return status, said, more
