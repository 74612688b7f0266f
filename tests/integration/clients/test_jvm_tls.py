"""The Kotlin client over TLS: a server whose certificate is trusted and names it, and those that get no request."""

from __future__ import annotations

import asyncio
import datetime
import ssl
import subprocess
from ipaddress import ip_address
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.support.jvm import compiled, program

pytestmark = pytest.mark.slow

STORE_WORD = "of-this-test"


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    compiled()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a certificate for 127.0.0.1, signed by itself, its key, and a store in which the JVM trusts it."""
    folder = tmp_path_factory.mktemp("tls")
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "a test")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
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
    pem = serialization.Encoding.PEM
    (folder / "certificate.pem").write_bytes(made.public_bytes(pem))
    (folder / "key.pem").write_bytes(
        key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    store = ["-keystore", str(folder / "store.p12"), "-storetype", "PKCS12", "-storepass", STORE_WORD]
    command = [
        "keytool",
        "-importcert",
        "-noprompt",
        "-alias",
        "test",
        "-file",
        str(folder / "certificate.pem"),
        *store,
    ]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    return folder


@pytest.mark.parametrize("transport", ["http", "sockets"])
@pytest.mark.parametrize(
    ("host", "is_trusted"), [("127.0.0.1", True), ("127.0.0.1", False), ("localhost", True)], ids=str
)
async def test_only_a_server_that_is_trusted_and_named_gets_a_request(
    certificate: Path, tmp_path: Path, transport: str, host: str, is_trusted: bool
) -> None:
    requests: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        requests.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 401 No\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
        await writer.drain()
        writer.close()

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate / "certificate.pem", certificate / "key.pem")
    door = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=context)
    port = door.sockets[0].getsockname()[1]
    store = ("-Djavax.net.ssl.trustStore=" + str(certificate / "store.p12"),)
    trust = (*store, "-Djavax.net.ssl.trustStorePassword=" + STORE_WORD) if is_trusted else ()
    async with door, program(f"https://{host}:{port}", tmp_path, "json", transport, *trust) as run:
        if host == "127.0.0.1" and is_trusted:
            assert "401" in (await run.asked("create", "failed"))["failed"]
            assert b"\r\nUpgrade: websocket\r\n" in requests[0]
        else:
            await run.say("create")
            seen = [(await run.next("status"))["status"] for _ in range(4)]
            assert seen == ["connecting", "offline", "connecting", "offline"]
            assert requests == []
