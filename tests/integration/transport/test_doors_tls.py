"""Certificates at the public doors: HTTPS, secure WebSockets and gRPC, and what is refused."""

from __future__ import annotations

import asyncio
import datetime
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from ipaddress import ip_address
from pathlib import Path
from typing import NamedTuple

import grpc
import grpc.aio
import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from structlog.testing import capture_logs
from websockets.asyncio.client import connect

from sessions.model.errors import BadInput
from tests.support.doors.assembly import assembled
from transport.cli.settings import BadSetting, Settings
from transport.cli.start.security import certificate_watchers, tls_of
from transport.grpc_api import sessile_pb2 as pb
from transport.grpc_api.server import GrpcServer
from transport.grpc_api.sessile_pb2_grpc import SessionsStub
from transport.http.tls import ServerTls, read_server_tls
from transport.http_api.server import Server


def a_pair() -> tuple[bytes, bytes]:
    """A certificate for this machine, signed by itself, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return certificate.public_bytes(serialization.Encoding.PEM), private


CERTIFICATE, KEY = a_pair()


class Doors(NamedTuple):
    server: Server
    grpc: GrpcServer
    trust: ssl.SSLContext
    tls: ServerTls


@asynccontextmanager
async def doors() -> AsyncIterator[Doors]:
    tls = ServerTls(certificate=CERTIFICATE, key=KEY)
    async with assembled() as assembly:
        server = Server(assembly.gateway, host="127.0.0.1", port=0, tls=tls)
        await server.start()
        grpc_server = GrpcServer(assembly.gateway, host="127.0.0.1", port=0, tls=tls)
        assert await grpc_server.start()
        try:
            yield Doors(server, grpc_server, ssl.create_default_context(cadata=CERTIFICATE.decode()), tls)
        finally:
            await grpc_server.stop()
            await server.stop()


async def test_every_public_door_speaks_tls_with_the_certificate() -> None:
    async with doors() as open_:
        assert open_.server.url.startswith("https://")
        async with httpx.AsyncClient(verify=open_.trust, timeout=60) as client:
            assert (await client.get(f"{open_.server.url}/v1/sessions")).status_code == 200
        url = open_.server.url.replace("https", "wss") + "/v1/ws"
        async with connect(url, ssl=open_.trust, compression=None) as socket:
            await socket.send('{"type":"hello"}')
            assert '"ready"' in str(await socket.recv())
        trusted = grpc.ssl_channel_credentials(CERTIFICATE)
        async with grpc.aio.secure_channel(open_.grpc.address, trusted) as channel:
            await SessionsStub(channel).List(pb.ListRequest())


async def test_plain_text_old_versions_and_other_authorities_get_nowhere() -> None:
    async with doors() as open_:
        async with httpx.AsyncClient(timeout=60) as client:
            with pytest.raises(httpx.HTTPError):
                await client.get(f"http://127.0.0.1:{open_.server.port}/healthz")
            with pytest.raises(httpx.ConnectError):
                await client.get(f"{open_.server.url}/healthz")  # who does not trust the certificate
        old = ssl.create_default_context(cadata=CERTIFICATE.decode())
        with pytest.warns(DeprecationWarning, match="TLSv1_1"):
            old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_1
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await asyncio.open_connection("127.0.0.1", open_.server.port, ssl=old)


def test_what_is_no_pair_is_refused_by_name() -> None:
    _, other = a_pair()
    for certificate, key in ((CERTIFICATE, other), (b"nonsense", KEY), (CERTIFICATE, b"nonsense"), (KEY, CERTIFICATE)):
        with pytest.raises(BadInput, match="tls_certificate"):
            read_server_tls(certificate, key)
    for certificate, key in ((CERTIFICATE, b""), (b"", KEY)):
        with pytest.raises(BadInput, match="both or none"):
            read_server_tls(certificate, key)
    assert read_server_tls(b"", b"") is None


def test_an_encrypted_key_is_refused_and_nobody_is_asked_for_its_password() -> None:
    key = serialization.load_pem_private_key(KEY, None)
    encrypted = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(b"pass")
    )
    with pytest.raises(BadInput, match="unencrypted"):
        read_server_tls(CERTIFICATE, encrypted)


def test_settings_name_files(tmp_path: Path) -> None:
    (tmp_path / "c.pem").write_bytes(CERTIFICATE)
    (tmp_path / "k.pem").write_bytes(KEY)
    settings = Settings(tls_certificate=str(tmp_path / "c.pem"), tls_key=str(tmp_path / "k.pem"))
    assert tls_of(settings) is not None
    assert tls_of(Settings()) is None
    with pytest.raises(BadSetting, match="tls_key"):
        tls_of(Settings(tls_certificate=str(tmp_path / "c.pem"), tls_key=str(tmp_path / "none.pem")))


async def served(open_: Doors) -> list[bytes]:
    """The certificates that a new connection sees: at HTTPS and at gRPC."""
    ports = (open_.server.port, open_.grpc.port)
    return [(await asyncio.to_thread(ssl.get_server_certificate, ("127.0.0.1", port))).encode() for port in ports]


async def test_a_new_certificate_is_served_without_a_restart(tmp_path: Path) -> None:
    """New connections see it, one that is open goes on; a pair that does not fit changes nothing."""
    certificate, key = tmp_path / "c.pem", tmp_path / "k.pem"
    certificate.write_bytes(CERTIFICATE), key.write_bytes(KEY)
    settings = Settings(tls_certificate=str(certificate), tls_key=str(key))
    new_certificate, new_key = a_pair()
    async with doors() as open_:
        (watcher,) = certificate_watchers(settings, open_.tls)
        assert await served(open_) == [CERTIFICATE] * 2
        async with httpx.AsyncClient(verify=open_.trust, timeout=60) as client:
            assert (await client.get(f"{open_.server.url}/v1/sessions")).status_code == 200
            certificate.write_bytes(new_certificate)
            with capture_logs() as logs:
                assert not await watcher.look(), "its key is not there yet"
            assert "tls_certificate_refused" in [entry["event"] for entry in logs], "other parts of the server log too"
            assert await served(open_) == [CERTIFICATE] * 2
            key.write_bytes(new_key)
            assert await watcher.look()
            assert await served(open_) == [new_certificate] * 2
            assert (await client.get(f"{open_.server.url}/v1/sessions")).status_code == 200, "the connection stays"
        trusted = grpc.ssl_channel_credentials(new_certificate)
        async with grpc.aio.secure_channel(open_.grpc.address, trusted) as channel:
            await SessionsStub(channel).List(pb.ListRequest())
        assert not await watcher.look()


async def test_a_certificate_that_came_while_the_server_started_is_served(tmp_path: Path) -> None:
    """Between the reading of the settings and the doors a model is loaded, which takes long."""
    certificate, key = tmp_path / "c.pem", tmp_path / "k.pem"
    settings = Settings(tls_certificate=str(certificate), tls_key=str(key))
    new_certificate, new_key = a_pair()
    async with doors() as open_:
        certificate.write_bytes(new_certificate), key.write_bytes(new_key)
        (watcher,) = certificate_watchers(settings, open_.tls)
        assert await served(open_) == [new_certificate] * 2
        assert not await watcher.look()
