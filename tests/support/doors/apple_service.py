"""APNs as it stands on the wire: HTTP/2, a token of the team that is checked, headers and sizes that it insists on, and
answers in its words. With TLS, or in plain text with prior knowledge for processes that cannot be given a certificate.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import ssl
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jwt
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import ConnectionTerminated, DataReceived, Event, RequestReceived, StreamEnded, StreamReset
from h2.exceptions import ProtocolError

KEY_ID, TEAM, APP = "ABC123DEFG", "DEF123GHIJ", "com.example.chat"
HOST = "api.push.apple.com"
PAYLOAD_MAX = 4096

Requests = dict[int, tuple[dict[str, str], bytearray]]  # head and body, by stream
Answer = tuple[int, dict[str, Any], dict[str, str]]  # status, body, headers


class Told(NamedTuple):
    """A message that was taken, as the device is given it."""

    device: str
    said: dict[str, Any]
    headers: Mapping[str, str]
    claims: Mapping[str, Any]


def key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def tls_pair(folder: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Of a server that calls itself by Apple's name, and of who trusts it."""
    key, name = ec.generate_private_key(ec.SECP256R1()), x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, HOST)])
    now = dt.datetime.now(dt.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(HOST)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    file = folder / "apple.pem"
    file.write_bytes(key_pem(key) + certificate.public_bytes(Encoding.PEM))
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(file)
    server.set_alpn_protocols(["h2"])
    return server, ssl.create_default_context(cafile=str(file))


class AppleService:
    """Listens within its `async with`. `answer` says what is said of a device's next request, if it is in order."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.told: list[Told] = []
        self.requests = self.connections = 0
        self.tokens: set[str] = set()
        self.answer: Callable[[str], Answer] = lambda device: (200, {}, {})
        self.came = asyncio.Condition()
        self._tls = tls
        self._writers: set[asyncio.StreamWriter] = set()

    async def __aenter__(self) -> AppleService:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._tls)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._server.close()
        for writer in self._writers:
            writer.close()
        await self._server.wait_closed()

    @property
    def url(self) -> str:
        return f"https://{HOST}:{self.port}" if self._tls else f"http://127.0.0.1:{self.port}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.add(writer)
        wire = H2Connection(H2Configuration(client_side=False, header_encoding="utf-8"))
        wire.initiate_connection()
        requests: Requests = {}
        try:
            writer.write(wire.data_to_send())
            while data := await reader.read(65536):
                for event in wire.receive_data(data):
                    if isinstance(event, ConnectionTerminated):
                        return
                    await self._on(wire, requests, event)
                writer.write(wire.data_to_send())
                await writer.drain()
        except (ConnectionError, ProtocolError):
            return
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _on(self, wire: H2Connection, requests: Requests, event: Event) -> None:
        match event:
            case RequestReceived():
                requests[event.stream_id] = ({str(name): str(value) for name, value in event.headers}, bytearray())
            case DataReceived():
                requests[event.stream_id][1].extend(event.data)
                wire.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            case StreamReset():
                requests.pop(event.stream_id, None)
            case StreamEnded():
                headers, body = requests.pop(event.stream_id)
                status, said, more = await self._take(headers, bytes(body))
                if status == 0:  # no answer
                    wire.reset_stream(event.stream_id, ErrorCodes.REFUSED_STREAM)
                    return
                text = json.dumps(said).encode() if said else b""
                about = [(":status", str(status)), ("apns-id", headers.get("apns-id", "")), *more.items()]
                wire.send_headers(event.stream_id, about, end_stream=not text)
                if text:
                    wire.send_data(event.stream_id, text, end_stream=True)

    async def _take(self, headers: dict[str, str], body: bytes) -> Answer:
        self.requests += 1
        device = headers[":path"].removeprefix("/3/device/")
        if headers[":method"] != "POST":
            return 405, {"reason": "MethodNotAllowed"}, {}
        try:
            claims = self._claims(headers)
        except (KeyError, jwt.PyJWTError):
            return 403, {"reason": "InvalidProviderToken"}, {}
        if abs(time.time() - claims["iat"]) > 3600:
            return 403, {"reason": "ExpiredProviderToken"}, {}
        if reason := _malformed(headers, device, body):
            return 400, {"reason": reason}, {}
        status, said, more = self.answer(device)
        if status == 200:
            async with self.came:
                self.told.append(Told(device, json.loads(body), headers, claims))
                self.came.notify_all()
        return status, said, more

    def _claims(self, headers: Mapping[str, str]) -> dict[str, Any]:
        """Of a token that the team's key signed."""
        token = headers["authorization"].removeprefix("bearer ")
        self.tokens.add(token)
        if jwt.get_unverified_header(token).get("kid") != KEY_ID:
            raise jwt.InvalidKeyError("kid")
        options: Any = {"require": ["iss", "iat"], "verify_iat": False}
        claims: dict[str, Any] = jwt.decode(
            token, self.key.public_key(), algorithms=["ES256"], issuer=TEAM, options=options
        )
        return claims


def _malformed(headers: Mapping[str, str], device: str, body: bytes) -> str:
    if len(device) < 64 or any(each not in "0123456789abcdef" for each in device):
        return "BadDeviceToken"
    if headers.get("apns-topic") != APP:
        return "TopicDisallowed"
    if headers.get("apns-push-type") != "alert" or headers.get("apns-priority") not in ("5", "10"):
        return "InvalidPushType"
    if not 0 < len(headers.get("apns-collapse-id", "").encode()) <= 64:
        return "BadCollapseId"
    if not headers.get("apns-expiration", "").isdecimal():
        return "BadExpirationDate"
    if not 0 < len(body) <= PAYLOAD_MAX:
        return "PayloadEmpty"
    return "" if "aps" in json.loads(body) else "PayloadEmpty"
