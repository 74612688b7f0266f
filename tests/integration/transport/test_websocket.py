"""Sessions over WebSocket, in the clear and over TLS."""

from __future__ import annotations

import asyncio
import base64
import datetime
import itertools
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from ipaddress import ip_address
from pathlib import Path
from typing import Any, NamedTuple

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

from inference.simulated import SimulatedOptions
from sessions.model.errors import BadInput
from sessions.model.types import Principal, TenantId
from tests.support.doors.assembly import Assembly, assembled
from tests.support.doors.websocket_wire import Closed, Wire, shake_hands, wire
from transport.auth.authenticator import key_digest
from transport.cli.settings import BadSetting, Settings
from transport.cli.start.security import certificate_watchers, tls_of
from transport.gateway import GatewayLimits
from transport.grpc_api import sessile_pb2 as pb
from transport.grpc_api.server import GrpcServer
from transport.grpc_api.sessile_pb2_grpc import SessionsStub
from transport.http.tls import ServerTls, read_server_tls
from transport.http_api.server import Server, ServerLimits
from transport.protocol.connection import ConnectionLimits, ConnectionTiming
from transport.websocket.websocket import WebSocketConnection

ENDLESS = SimulatedOptions(step_base_s=0.002, answer_tokens_mean=0)
ids = (f"c{number}" for number in itertools.count())


def limits(**fields: Any) -> ServerLimits:
    timing = {name: fields.pop(name) for name in list(fields) if name.endswith("_s")}
    return ServerLimits(connection=ConnectionLimits(timing=ConnectionTiming(**timing), **fields))


async def begin(client: Wire, session: str = "s") -> None:
    """Says hello, makes a session and reads it from its start."""
    await client.hello()
    client.send({"type": "session.create", "id": next(ids), "session": session})
    await client.until(type="ok")
    client.send({"type": "subscribe", "id": next(ids), "session": session, "offset": 0})
    await client.until(type="caught_up")


def say(text: str = "Hi", **fields: Any) -> dict[str, Any]:
    return {"type": "message.create", "id": next(ids), "session": "s", "content": text, **fields}


# -- commands ------------------------------------------------------------------------------------------------------


async def test_a_turn_may_name_its_model_and_one_that_is_not_there_is_refused_by_name() -> None:
    async with assembled() as server, wire(server.server.port) as client:
        await begin(client)
        for command in (
            say(model="giant"),
            {"type": "response.create", "id": next(ids), "session": "s", "model": "giant"},
        ):
            client.send(command)
            refused = await client.until(type="error", id=command["id"])
            assert refused["error"]["code"] == "model_not_found" and refused["error"]["param"] == "model"
            assert "'giant'" in refused["error"]["message"]
        client.send(say(model="simulated", max_output_tokens=3))
        begun = await client.until(type="event")
        assert begun["offset"] == 2, "nothing was written of those that were refused"


# -- the handshake -------------------------------------------------------------------------------------------------


async def test_handshakes_that_are_refused_say_why() -> None:
    async with assembled() as server:
        port = server.server.port
        for status, options in (
            (404, {"path": "/v1/other"}),
            (403, {"headers": {"Origin": "https://evil.example"}}),
            (403, {"headers": {"Host": "evil.example"}}),
            (400, {"subprotocols": ["chat.v9"]}),
            (400, {"headers": {"Sec-WebSocket-Key": "short"}}),
            (400, {"headers": {"Sec-WebSocket-Version": "8"}}),
        ):
            refused = (await shake_hands(port, **options)).handshake
            assert refused.status == status, options
        assert json.loads((await shake_hands(port, path="/v1/x")).handshake.body)["error"]["code"] == "not_found"
        assert server.server.connections == 0


async def test_the_subprotocol_is_echoed_and_a_client_without_one_speaks_json() -> None:
    async with assembled() as server:
        port = server.server.port
        async with wire(port, subprotocols=["sessile.v1+msgpack", "sessile.v1+json"]) as client:
            assert client.handshake.headers["sec-websocket-protocol"] == "sessile.v1+msgpack"
        async with wire(port, subprotocols=[]) as client:
            assert "sec-websocket-protocol" not in client.handshake.headers
            await client.hello()


async def test_credentials_by_header_hello_ticket_and_subprotocol() -> None:
    keys = {key_digest("sk-1"): Principal(tenant=TenantId("acme"), key_id="k1")}
    bearer = "sessile.bearer." + base64.urlsafe_b64encode(b"sk-1").decode().rstrip("=")
    async with assembled(keys=keys) as server:
        port = server.server.port
        good: list[tuple[dict[str, Any], dict[str, Any]]] = [
            ({"headers": {"Authorization": "Bearer sk-1"}}, {}),
            ({}, {"auth": "sk-1"}),
            ({"path": f"/v1/ws?ticket={await server.gateway.access.issue_ticket(next(iter(keys.values())))}"}, {}),
            ({"subprotocols": ["sessile.v1+json", bearer]}, {}),
            ({"subprotocols": [bearer]}, {}),
        ]
        for options, hello in good:
            async with wire(port, **options) as client:
                await client.hello(**hello)
                assert bearer not in str(client.handshake)
                client.send({"type": "session.list", "id": "l"})
                assert (await client.until(type="ok"))["data"] == []
        for options in (
            {"headers": {"Authorization": "Bearer wrong"}},
            {"headers": {"Authorization": "Basic sk-1"}},
            {"path": "/v1/ws?ticket=tkt_made_up"},
            {"path": good[2][0]["path"]},
            {"subprotocols": ["sessile.v1+json", "sessile.bearer.!!"]},
            {"subprotocols": ["sessile.v1+json", bearer[:-2]]},
        ):
            refused = (await shake_hands(port, **options)).handshake
            assert refused.status in (400, 401), options
        for hello in ({}, {"auth": "wrong"}):
            async with wire(port) as client:
                client.send({"type": "hello", **hello})
                error = await client.next()
                assert isinstance(error, dict) and error["error"]["code"] == "unauthorized"
                assert (await client.closed()).code == 4401


async def test_a_full_and_a_leaving_server_refuse_with_a_time_to_come_back() -> None:
    async with assembled(limits=ServerLimits(connections_max=1)) as server:
        async with wire(server.server.port) as first:
            await first.hello()
            refused = (await shake_hands(server.server.port)).handshake
            assert (refused.status, refused.headers["retry-after"]) == (429, "5")
        server.gateway.drain()
        refused = (await shake_hands(server.server.port)).handshake
        assert (refused.status, refused.headers["retry-after"]) == (503, "1")


# -- messages that end a connection ----------------------------------------------------------------------------------


BROKEN = (
    (0x82, b"{}", True, 1003),
    (0x81, b"{", True, 4400),
    (0x81, b'{"type":"\xff"}', True, 1007),
    (0x81, b"x" * 70_000, True, 1009),
    (0x81, b"{}", False, 1002),
    (0xC1, b"{}", True, 1002),
    (0x83, b"", True, 1002),
    (0x80, b"", True, 1002),
    (0x89, b"x" * 126, True, 1002),
    (0x88, b"\x03", True, 1002),
)


async def test_what_breaks_a_rule_gets_the_close_code_of_that_rule() -> None:
    async with assembled(limits=limits(frame_bytes_max=65_536)) as server:
        for first_byte, data, masked, code in BROKEN:
            async with wire(server.server.port) as client:
                await client.hello()
                client.send_frame(first_byte, data, masked=masked)
                assert (await client.closed()).code == code


async def test_a_message_in_fragments_is_one_message_and_has_the_same_limit() -> None:
    async with assembled(limits=limits(frame_bytes_max=65_536)) as server, wire(server.server.port) as client:
        await client.hello()
        client.send_frame(0x01, b'{"type":"session')
        client.send_frame(0x89, b"a ping may come between")
        client.send_frame(0x00, b"")
        client.send_frame(0x00, b'.list","id":')
        client.send_frame(0x80, b'"l"}')
        assert (await client.until(type="ok"))["id"] == "l"
        client.send_frame(0x01, b"x" * 60_000)
        client.send_frame(0x00, b"x" * 10_000)
        assert (await client.closed()).code == 1009


async def test_the_close_code_reaches_a_client_that_is_still_sending() -> None:
    async with assembled(limits=limits(frame_bytes_max=1024)) as server, wire(server.server.port) as client:
        await client.hello()
        client.send_frame(0x81, b"x" * 8_000_000)
        assert (await client.closed()).code == 1009


async def test_a_client_that_closes_is_answered_in_kind() -> None:
    async with assembled() as server:
        async with wire(server.server.port) as client:
            await client.hello()
            client.send_frame(0x88, b"\x03\xe8bye")
            assert await client.closed() == Closed(1000, "bye")
            assert await client.reader.read() == b""
        await server.server._door.empty.wait()  # type: ignore[union-attr]


# -- time ------------------------------------------------------------------------------------------------------------


async def test_silence_before_hello_and_after_it() -> None:
    async with assembled(limits=limits(hello_s=0.1, heartbeat_s=0.15, silence_s=0.3)) as server:
        async with wire(server.server.port) as mute:
            assert (await mute.closed()).code == 4400
        async with wire(server.server.port) as client:
            await client.hello()
            for _ in range(3):
                await client.until(type="ping")
                client.send({"type": "pong"})
            assert (await client.closed()).code == 4412


async def test_a_reader_that_acknowledges_nothing_is_closed_and_finds_everything_in_the_log() -> None:
    async with assembled(engine=ENDLESS, limits=limits(window_events=8, slow_reader_s=0.3)) as server:
        async with wire(server.server.port) as client:
            await begin(client)
            client.send(say(max_output_tokens=100))
            closed = await client.closed()
        assert closed.code == 4408
        assert client.frames[-1]["error"]["code"] == "slow_reader"
        events = [frame for frame in client.frames if frame["type"] == "event"]
        assert len(events) == 8
        async with wire(server.server.port) as again:
            epoch, offset = events[-1]["epoch"], events[-1]["offset"]
            await again.hello(resume=[{"session": "s", "epoch": epoch, "offset": offset}])
            assert (await again.until(type="resumed"))["from"] == offset + 1


async def test_a_client_that_stops_reading_its_socket_costs_a_bounded_buffer_and_then_its_connection() -> None:
    async with assembled(limits=limits(slow_reader_s=0.5, close_s=0.2)) as server:
        async with wire(server.server.port) as client:
            await begin(client)
            for _ in range(60):
                client.send(say("words " * 1000, respond=False))
                offset = (await client.until(type="ok"))["offset"]
                client.send({"type": "ack", "session": "s", "offset": offset})
            client.reader._transport.pause_reading()  # type: ignore[attr-defined]
            for _ in range(400):
                client.send({"type": "session.get", "id": next(ids), "session": "s"})
            (connection,) = server.server._door.connections  # type: ignore[union-attr]
            async with asyncio.timeout(60):
                await server.server._door.empty.wait()  # type: ignore[union-attr]
            assert server.gateway.counters["closed_4408"] == 1
            assert isinstance(connection, WebSocketConnection) and connection._out == []
        assert len(server.gateway.feeds) == 0
        assert server.gateway.tasks.failures == 0


async def test_goaway_is_announced_kept_and_final() -> None:
    async with assembled() as server, wire(server.server.port) as client, wire(server.server.port) as mute:
        await begin(client)
        draining = asyncio.create_task(server.server.drain("restart", after_ms=200))
        goaway = await client.until(type="goaway")
        assert (goaway["reason"], goaway["after_ms"]) == ("restart", 200)
        client.send(say(respond=False))
        assert (await client.event("item.created"))["offset"] == 2
        assert (await client.closed()).code == 1012
        assert (await mute.closed()).code == 1012
        client.send_frame(0x88, b"\x03\xf4")
        mute.send_frame(0x88, b"\x03\xf4")
        await draining
        assert server.server.connections == 0


# -- limits of one connection --------------------------------------------------------------------------------


async def test_a_flood_of_commands_is_answered_one_by_one_and_bounded() -> None:
    async with assembled(limits=limits(commands_max=4)) as server, wire(server.server.port) as client:
        await begin(client)
        commands = [say("x", respond=False) for _ in range(64)]
        client.send(commands)
        answers: dict[str, str] = {}
        while len(answers) < 64:
            message = await client.next()
            assert isinstance(message, dict)
            if message["type"] == "error":
                assert message["error"]["code"] == "rate_limited"
                assert message["error"]["retry_after_ms"] > 0
            if message["type"] in ("ok", "error"):
                answers[message["id"]] = message["type"]
        assert list(answers.values()).count("ok") == 4
        assert answers.keys() == {command["id"] for command in commands}


async def test_the_principals_share_is_bounded_over_all_its_connections() -> None:
    few = GatewayLimits(commands_per_principal_max=2)
    async with assembled(gateway_limits=few) as server, wire(server.server.port) as client:
        await begin(client)
        client.send([say("x", respond=False) for _ in range(3)])
        refused = await client.until(type="error")
        assert (refused["error"]["code"], refused["error"]["retry_after_ms"]) == ("rate_limited", 500)


async def test_the_number_of_subscriptions_is_bounded() -> None:
    async with assembled(limits=limits(subscriptions_max=2)) as server, wire(server.server.port) as client:
        await client.hello(resume=[{"session": f"s{n}"} for n in range(4)])
        gone = [await client.until(type="resumed") for _ in range(4)]
        assert (
            sorted(one["error"]["code"] for one in gone) == ["session_not_found"] * 2 + ["too_many_subscriptions"] * 2
        )
        for session in ("a", "b", "c"):
            client.send({"type": "session.create", "id": f"create-{session}", "session": session})
            await client.until(type="ok", id=f"create-{session}")
            client.send({"type": "subscribe", "id": f"sub-{session}", "session": session, "offset": 0})
        assert (await client.until(type="error", id="sub-c"))["error"]["code"] == "too_many_subscriptions"


# -- conversations --------------------------------------------------------------------------------


async def read_to_the_end(client: Wire, state: dict[str, Any]) -> bool:
    """Takes events in, strictly; True when the answer has ended."""
    while True:
        message = await client.next()
        if isinstance(message, Closed):
            return False
        if message["type"] == "resumed":
            assert message["mode"] == "replay"
            assert message["from"] == state["offset"] + 1
            state["epoch"] = message["epoch"]
        elif message["type"] == "event":
            assert message.get("first_offset", message["offset"]) == state["offset"] + 1
            state["offset"] = message["offset"]
            client.send({"type": "ack", "session": "s", "offset": message["offset"]})
            event = message["event"]
            if event["type"] == "response.output_text.delta":
                state["text"] += event["delta"]
                state["moved"].set()
            if event["type"] in ("response.completed", "response.incomplete"):
                state["moved"].set()
                state["said"] = event["response"]["output"][0]["content"][0]["text"]
                return True


async def test_a_connection_cut_in_mid_answer_ten_times_shows_the_log_once() -> None:
    async with assembled(engine=ENDLESS) as server:
        state: dict[str, Any] = {"offset": 0, "epoch": None, "text": "", "moved": asyncio.Event()}
        async with wire(server.server.port) as client:
            await client.hello()
            client.send({"type": "session.create", "id": next(ids), "session": "s"})
            await client.until(type="ok")
            client.send(say(max_output_tokens=600))
            await client.until(type="ok")
        cuts = 0
        while True:
            async with wire(server.server.port) as client:
                point = {"session": "s", "offset": state["offset"]}
                await client.hello(resume=[point | ({"epoch": state["epoch"]} if state["epoch"] else {})])
                reading = asyncio.create_task(read_to_the_end(client, state))
                if cuts < 10:
                    moved = state["moved"] = asyncio.Event()
                    await moved.wait()
                    client.cut()
                    cuts += 1
                if await reading:
                    break
        assert state["text"] == state["said"]
        assert cuts == 10


async def test_stopping_leaves_nothing_behind() -> None:
    before = asyncio.all_tasks()
    async with assembled(engine=ENDLESS) as server:
        clients = [await shake_hands(server.server.port) for _ in range(5)]
        for number, client in enumerate(clients[:4]):
            await begin(client, f"s{number}")
        clients[0].send({**say(), "session": "s0"})
        await clients[0].event("response.output_text.delta")
        held: Assembly = server
    assert len(held.gateway.feeds) == 0
    assert held.gateway.feeds.bytes == 0
    assert len(held.gateway.tasks) == 0
    assert held.server.connections == 0
    assert {task for task in asyncio.all_tasks() - before if not task.done()} == set()
    for client in clients:
        client.writer.close()


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
