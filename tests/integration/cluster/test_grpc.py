"""The cluster on real sockets: gRPC streams between gateways and replicas in one process."""

from __future__ import annotations

import asyncio
import datetime
import socket
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from actors.peer import frames as pf
from actors.peer.client import Connector
from actors.peer.links import Carrier, LinkDown, LinkLimits
from actors.peer.wire import Wire
from actors.routing.router import Router
from actors.routing.router_limits import RouterLimits
from persistence.sqlite.database import SqliteDatabase
from persistence.sqlite.store import SqliteStore
from sessions.model.errors import BadInput, Unavailable
from sessions.model.events import SessionMigrated
from sessions.model.types import ReplicaId
from sessions.ports import Member
from testbed.real_cluster import TOKEN, RealCluster, Story, create, new_id, real_cluster, say
from transport.cli.settings import Settings
from transport.cli.start.security import certificate_watchers, peer_security
from transport.peer import GrpcDialer, PeerCertificates, PeerSecurity, PeerServer

HASTY = RouterLimits(patience_s=1.0)


async def test_a_turn_over_grpc_with_a_journal_on_disk(tmp_path: Path) -> None:
    async with real_cluster(2, store=SqliteStore(SqliteDatabase(tmp_path))) as made:
        near, far = await made.add_gateway("g1"), await made.add_gateway("g2")
        key = await create(near, "one")
        stories = [Story(near, key), Story(far, key)]
        response = await say(near, key)
        for story in stories:
            await story.ends(response)
        assert stories[0].top == stories[1].top


async def test_a_replica_whose_port_closes_in_mid_answer_is_replaced_at_once() -> None:
    async with real_cluster(2) as made:
        router = await made.add_gateway("g1")
        key = await create(router, "one")
        story = Story(router, key)
        response = await say(router, key, tokens=300)
        await story.grows(5)
        owner = made.owner(key)
        await owner.crash()
        await story.ends(response)
        page = await made.journal.read(key, after=0, limit=1_000, bytes_max=1 << 30)  # a story may have gaps
        assert page is not None and any(isinstance(record.event, SessionMigrated) for record in page.records)
        assert owner.replica.runtime.actor(key) is None, "the one that was fenced shows nothing more"


async def test_a_hand_off_in_mid_answer_over_grpc() -> None:
    async with real_cluster(2) as made:
        router = await made.add_gateway("g1")
        key = await create(router, "one")
        story = Story(router, key)
        response = await say(router, key, "word " * 500, tokens=300)
        await story.grows(5)
        source = made.owner(key)
        target = next(each for each in made.replicas.values() if each is not source)
        owner = await source.replica.handoff.hand_off(key, target.member)
        assert owner.replica == target.member.replica
        await story.ends(response)


async def test_a_message_of_a_megabyte_and_its_answer_pass() -> None:
    async with real_cluster(1) as made:
        router = await made.add_gateway("g1")
        key = await create(router, "one")
        story = Story(router, key)
        with pytest.raises(BadInput) as error:
            await say(router, key, "x" * 900_000, tokens=1)
        assert error.value.code == "context_length_exceeded"
        await story.ends(await say(router, key, tokens=2))


async def test_operators_drain_a_replica_over_its_link() -> None:
    async with real_cluster(2) as made:
        router = await made.add_gateway("g1")
        keys = [await create(router, f"s{number}") for number in range(10)]
        victim = made.replicas["r1"]
        connect = Connector(GrpcDialer(made.security), kind="operator", name="test")
        link = await connect(victim.member)
        running = asyncio.create_task(link.run())
        reports: asyncio.Queue[pf.DrainProgress] = asyncio.Queue()
        done = await link.drain(reports)
        assert done.left == 0 and victim.replica.runtime.num_present == 0
        assert victim.replica.unready() == "draining"
        await link.undrain()
        assert victim.replica.unready() is None and victim.replica.membership.member is not None
        assert not victim.replica.membership.member.draining
        await link.close()
        assert (await running).reason == "closed"
        assert {made.owner(key).member.replica for key in keys if key in holders(made)} <= {"r2"}


def holders(made: RealCluster) -> set[object]:
    return {actor.key for each in made.replicas.values() for actor in each.replica.runtime.actors}


async def refused(made: RealCluster, router: Router, say_so: str) -> None:
    with pytest.raises(Unavailable) as error:
        await create(router, "one")
    assert error.value.code == "session_unavailable"
    assert say_so in str(error.value.__cause__)


async def test_a_gateway_with_another_token_is_refused() -> None:
    async with real_cluster(1) as made:
        router = await made.add_gateway("g1", security=PeerSecurity(token="another token entirely"), limits=HASTY)
        await refused(made, router, "token is missing or wrong")


async def test_a_gateway_without_a_token_is_refused() -> None:
    async with real_cluster(1) as made:
        router = await made.add_gateway("g1", security=PeerSecurity(), limits=HASTY)
        await refused(made, router, "token is missing or wrong")


async def test_a_refusal_that_crosses_a_first_message_still_says_why() -> None:
    async with real_cluster(1) as made:
        address = made.replicas["r1"].member.address
        stranger = GrpcDialer(PeerSecurity(token="another token entirely"))

        async def told() -> LinkDown:
            with pytest.raises(LinkDown) as error:
                carrier = await stranger.dial(address)
                for _ in range(3):
                    await carrier.send(bytes(100_000))
                await carrier.receive()
            return error.value

        found = await asyncio.gather(*(told() for _ in range(100)))
        assert {(each.reason, str(each)) for each in found} == {(found[0].reason, str(found[0]))}
        assert found[0].reason == "rejected" and "token is missing or wrong" in str(found[0])


async def test_another_model_is_refused_saying_what_differs() -> None:
    async with real_cluster(1) as made:
        with pytest.raises(BadInput, match="r2 cannot join r1: both serve 'simulated', but its model is other"):
            await made.add_replica("r2", fingerprint="other/model")
        member = made.replicas["r1"].member
        connect = Connector(GrpcDialer(made.security), kind="replica", name="r2", fingerprint="other/model")
        with pytest.raises(LinkDown) as down:
            await connect(member)
        assert down.value.reason == "rejected"
        assert member.fingerprint in down.value.detail and "other/model" in down.value.detail


async def test_another_protocol_is_refused_saying_what_differs() -> None:
    async with real_cluster(1) as made:
        member = made.replicas["r1"].member
        carrier = await GrpcDialer(made.security).dial(member.address)
        wire = Wire(carrier, LinkLimits())
        await wire.now(pf.PeerHello(7, "gateway", "g1", member.replica, member.incarnation, member.fingerprint))
        (said,) = await wire.first()
        assert isinstance(said, pf.PeerRefusal) and said.code == "protocol"
        assert "r1 speaks peer protocols 1 to 3" in said.message and "g1 speaks peer protocol 7" in said.message
        await carrier.close()


async def test_another_process_at_the_address_is_found_out() -> None:
    async with real_cluster(1) as made:
        member = made.replicas["r1"].member
        gone = Member(
            replica=ReplicaId("r0"),
            incarnation=new_id(),
            address=member.address,
            model=member.model,
            fingerprint=member.fingerprint,
        )
        connect = Connector(GrpcDialer(made.security), kind="gateway", name="g1")
        with pytest.raises(LinkDown) as down:
            await connect(gone)
        assert down.value.reason == "refused"


async def test_a_knock_is_answered_by_a_host_whose_process_stands_still() -> None:
    with socket.socket() as standing:
        standing.bind(("127.0.0.1", 0))
        standing.listen(8)  # and nobody accepts
        address = f"127.0.0.1:{standing.getsockname()[1]}"
        for _ in range(3):
            await GrpcDialer(PeerSecurity(token=TOKEN)).knock(address)
    with pytest.raises(LinkDown) as down:
        await GrpcDialer(PeerSecurity(token=TOKEN)).knock(address)
    assert down.value.reason == "refused"


async def test_knocks_do_not_disturb_a_replica() -> None:
    async with real_cluster(1) as made:
        router = await made.add_gateway("g1")
        member = made.replicas["r1"].member
        for _ in range(20):
            await GrpcDialer(made.security).knock(member.address)
        key = await create(router, "one")
        story = Story(router, key)
        await story.ends(await say(router, key, tokens=3))


def certificate(
    name: str, signer: tuple[x509.Certificate, ec.EllipticCurvePrivateKey] | None
) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    day = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    issuer, issuer_key = (signer[0].subject, signer[1]) if signer else (subject, key)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(day)
        .not_valid_after(day + datetime.timedelta(days=3650))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=signer is None, path_length=None), critical=True)
        .sign(issuer_key, hashes.SHA256())
    )
    return made, key


def pem(made: tuple[x509.Certificate, ec.EllipticCurvePrivateKey]) -> tuple[bytes, bytes]:
    certificate, key = made
    return certificate.public_bytes(serialization.Encoding.PEM), key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def mutual(authority: tuple[x509.Certificate, ec.EllipticCurvePrivateKey]) -> PeerSecurity:
    own, key = pem(certificate("peer.sessile", authority))
    certificates = PeerCertificates(authority=pem(authority)[0], certificate=own, key=key)
    return PeerSecurity(certificates=certificates, server_name="peer.sessile")


async def test_mutual_tls_carries_a_turn_and_keeps_strangers_out() -> None:
    authority = certificate("cluster authority", None)
    async with real_cluster(1, security=mutual(authority)) as made:
        router = await made.add_gateway("g1")
        key = await create(router, "one")
        story = Story(router, key)
        await story.ends(await say(router, key, tokens=3))
        stranger = mutual(certificate("another authority", None))
        for security in (stranger, PeerSecurity(token=TOKEN)):
            with pytest.raises(LinkDown):
                await Connector(GrpcDialer(security), kind="gateway", name="g2")(made.replicas["r1"].member)


async def test_peers_take_new_certificates_without_a_restart(tmp_path: Path) -> None:
    """A replica whose authority, certificate and key were replaced admits who has the new authority's certificates."""
    before, after = certificate("cluster authority", None), certificate("next authority", None)
    names = ("peer_authority", "peer_certificate", "peer_key")
    files: dict[str, Any] = {name: str(tmp_path / name) for name in names}
    settings = Settings(**files, peer_server_name="peer.sessile")

    def write(security: PeerSecurity) -> None:
        shown = security.certificates
        for name, text in zip(names, (shown.authority, shown.certificate, shown.key), strict=True):
            (tmp_path / name).write_bytes(text)

    async def dial(security: PeerSecurity) -> None:
        carrier = await GrpcDialer(security).dial(f"127.0.0.1:{port}")
        await carrier.close()

    async def accept(carrier: Carrier, _: str) -> None:
        with suppress(LinkDown):
            await carrier.receive()

    write(mutual(before))
    security = peer_security(settings)
    server = PeerServer(accept, security=security)
    port = await server.start("127.0.0.1", 0)
    try:
        (watcher,) = certificate_watchers(settings, None, security)
        await dial(mutual(before))
        write(mutual(after))
        assert await watcher.look()
        await dial(mutual(after))
        await dial(security)
        with pytest.raises(LinkDown):
            await dial(mutual(before))
    finally:
        await server.stop()


async def test_a_link_off_loopback_is_not_dialled_in_plain_text() -> None:
    """Its token would be read by whoever is on the way: it is not even sent."""
    with pytest.raises(LinkDown, match="mutual TLS"):
        await GrpcDialer(PeerSecurity(token=TOKEN)).dial("replica.invalid:7000")


async def test_without_tls_a_peer_link_listens_on_loopback_only() -> None:
    async def accept(*_: object) -> None:
        raise AssertionError("nobody dials")

    server = PeerServer(accept, security=PeerSecurity())
    with pytest.raises(BadInput, match="mutual TLS"):
        await server.start("0.0.0.0", 0)
    port = await server.start("localhost", 0)
    twice = PeerServer(accept, security=PeerSecurity())
    with pytest.raises(BadInput, match="cannot listen"):
        await twice.start("127.0.0.1", port)
    await server.stop()


@pytest.mark.parametrize("token", ["short", "line\nbreak in the token", "schlüssel für alle"])
def test_a_bad_token_is_refused_at_the_start(token: str) -> None:
    with pytest.raises(BadInput):
        PeerSecurity(token=token)


def test_half_a_set_of_certificates_is_refused_at_the_start() -> None:
    with pytest.raises(BadInput, match="authority, a certificate and its key"):
        PeerCertificates(authority=b"x")
