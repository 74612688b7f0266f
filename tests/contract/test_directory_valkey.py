"""What only a directory on a server can do wrong: connections, time-outs, restarts, addresses, clusters that change."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import ipaddress
import random
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest
import uvloop
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from redis.crc import key_slot

from actors.directory import PARTITIONS, partition_of
from actors.directory.pipelined_connection import WAITING_MAX
from actors.directory.valkey import ValkeyDirectory
from sessions.model.errors import BadInput, OutcomeUnknown, SessileError, Unavailable
from sessions.model.types import ActivationId, ReplicaId, SessionId, SessionKey, TenantId
from sessions.ports import Member, Owner
from testbed.chaos.proxy import Flow, Proxy
from testbed.valkey_server import Sentinel, Server, cluster_url, free_port, running, running_cluster, started

pytestmark = pytest.mark.cluster

PATIENCE_S = 60.0


def member(replica: str = "r1") -> Member:
    return Member(replica=ReplicaId(replica), incarnation="i1", address="", model="m", fingerprint="f")


def owner(activation: str = "a1", replica: str = "r1") -> Owner:
    return Owner(ReplicaId(replica), "i1", ActivationId(activation))


def key(n: int) -> SessionKey:
    return SessionKey(TenantId("t"), SessionId(f"s{n}"))


@contextlib.asynccontextmanager
async def opened(url: str, **options: float) -> AsyncIterator[ValkeyDirectory]:
    directory = ValkeyDirectory(url, **options)  # type: ignore[arg-type]
    await directory.open()
    try:
        yield directory
    finally:
        await directory.close()


async def serves(directory: ValkeyDirectory) -> None:
    """Checks that claims are won and that watchers are told of activations."""
    assert (await directory.claim(key(1), owner())).won
    told = directory.activations("g")
    await directory.watch("g", [key(1)])
    await directory.activated(key(1), owner())
    assert await asyncio.wait_for(anext(told), PATIENCE_S) == (key(1), owner())


async def hears(told: AsyncIterator[tuple[SessionKey, Owner]], *, of: ValkeyDirectory) -> bool:
    """Whether a watcher is told of an activation before long."""
    await of.activated(key(1), owner())
    try:
        async with asyncio.timeout(0.1):
            return await anext(told) == (key(1), owner())
    except TimeoutError:
        return False


async def eventually(attempt: Callable[[], Awaitable[bool]]) -> None:
    """Asks until the answer is yes; a directory that is away is asked again."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            with contextlib.suppress(Unavailable):
                if await attempt():
                    return
            await asyncio.sleep(0)


@pytest.fixture
def server() -> Iterator[Server]:
    with running(port=free_port()) as server:
        yield server


@pytest.mark.parametrize("seed", range(4))
async def test_a_cancelled_call_never_leaves_its_answer_to_another(server: Server, seed: int) -> None:
    """Sessions have different owners, so an answer that went to the wrong caller shows. Every third call is cancelled
    at a random moment: waiting, being written, or half answered."""
    rng = random.Random(seed)
    async with Proxy(str(server.socket)) as proxy, opened(f"redis://127.0.0.1:{proxy.port}") as directory:
        await directory.announce(member())
        for n in range(50):
            await directory.claim(key(n), owner(f"a{n}"))
        proxy.set(down=Flow(jitter_s=0.002, rate_bytes_s=400_000))  # answers arrive in pieces
        cancelled = 0

        async def ask(n: int) -> None:
            found = await directory.locate(key(n))
            assert found == owner(f"a{n}")

        for _ in range(60):
            calls = [asyncio.ensure_future(ask(rng.randrange(50))) for _ in range(rng.randint(1, 30))]
            for call in calls:
                if rng.random() < 0.33:
                    asyncio.get_running_loop().call_later(rng.uniform(0, 0.006), call.cancel)
            for answer in await asyncio.gather(*calls, return_exceptions=True):
                if isinstance(answer, asyncio.CancelledError):
                    cancelled += 1
                elif answer is not None:
                    raise answer
        assert cancelled > 50
        assert proxy.counts.connections == 1  # and nothing had to be given up for it


async def test_calls_take_effect_in_order_also_those_that_were_cancelled(server: Server) -> None:
    async with opened(server.unix_url) as directory:
        await directory.announce(member())
        server.pause()
        claim = asyncio.ensure_future(directory.claim(key(1), owner()))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        claim.cancel()
        release = asyncio.ensure_future(directory.release(key(1), owner()))
        await asyncio.sleep(0)
        server.go_on()
        await release
        with pytest.raises(asyncio.CancelledError):
            await claim
        assert await directory.locate(key(1)) is None


async def test_a_paused_server_means_unknown_for_writes_and_unavailable_for_reads(server: Server) -> None:
    async with opened(server.unix_url, timeout_s=0.2) as directory:
        for write in (
            lambda: directory.claim(key(1), owner()),
            lambda: directory.release(key(1), owner()),
            lambda: directory.announce(member()),
            lambda: directory.watch("g", [key(1)]),
        ):
            await eventually(lambda: _announced(directory))
            server.pause()
            with pytest.raises(OutcomeUnknown):
                await write()
            with pytest.raises(Unavailable) as caught:
                await directory.locate(key(1))
            assert not isinstance(caught.value, OutcomeUnknown)
            server.go_on()
        # What was claimed while nobody answered may stand or not; asked again, the answer is true.
        await eventually(lambda: _won(directory, 1))
        assert await directory.locate(key(1)) == owner()


async def _won(directory: ValkeyDirectory, n: int) -> bool:
    return (await directory.claim(key(n), owner())).won


async def test_nobody_waits_for_ever_for_a_server_that_swallows_everything(server: Server) -> None:
    async with (
        Proxy(str(server.socket)) as proxy,
        opened(f"redis://127.0.0.1:{proxy.port}", timeout_s=0.2) as directory,
    ):
        await directory.announce(member())
        proxy.set(up=Flow(hole=True), down=Flow(hole=True))
        calls = [directory.claim(key(n), owner()) for n in range(500)]
        answers = await asyncio.gather(*calls, return_exceptions=True)
        assert all(isinstance(answer, Unavailable) for answer in answers)
        assert any(isinstance(answer, OutcomeUnknown) for answer in answers)
        assert any(not isinstance(answer, OutcomeUnknown) for answer in answers)  # these were never written
        proxy.heal()
        await eventually(lambda: _won(directory, 1))


@pytest.mark.parametrize("how", ["reset", "close"])
async def test_cuts_at_random_bytes_end_in_a_clear_answer_each(server: Server, how: str) -> None:
    """Every call is answered or fails as it may, and what is answered is true."""
    async with Proxy(str(server.socket), seed=3) as proxy, opened(f"redis://127.0.0.1:{proxy.port}") as directory:
        await eventually(lambda: _announced(directory))
        for n in range(20):
            await directory.claim(key(n), owner(f"a{n}"))
        flow = Flow(cut_within_bytes=3000, cut_by=how)  # type: ignore[arg-type]
        proxy.set(up=flow, down=flow)
        failed = 0
        for n in range(600):
            try:
                if n % 2:
                    assert await directory.locate(key(n % 20)) == owner(f"a{n % 20}")
                else:
                    claim = await directory.claim(key(n % 20), owner("other"))
                    assert (claim.won, claim.owner) == (False, owner(f"a{n % 20}"))
            except Unavailable:
                failed += 1
        assert proxy.counts.cuts > 10
        assert 0 < failed < 300


async def _announced(directory: ValkeyDirectory) -> bool:
    await directory.announce(member())
    return True


async def test_a_dead_server_is_unavailable_at_once_and_an_empty_one_is_filled_again(server: Server) -> None:
    async with opened(server.unix_url) as directory, opened(server.unix_url) as gateway:
        told = gateway.activations("g1")
        await directory.announce(member())
        await gateway.watch("g1", [key(1)])
        assert (await directory.claim(key(1), owner())).won
        server.kill()
        with pytest.raises(Unavailable):  # perhaps unknown: it may be sent before the end is noticed
            await directory.view()
        for call in (directory.claim, directory.release):
            with pytest.raises(Unavailable) as caught:
                await call(key(1), owner())
            assert not isinstance(caught.value, OutcomeUnknown), "nothing was listening, so nothing happened"
        server.start()
        with pytest.raises(Unavailable, match="lease_missing"):
            await directory.claim(key(1), owner())
        assert (await directory.announce(member())).rejoined == frozenset(range(PARTITIONS))
        assert (await directory.claim(key(1), owner())).won

        async def watched() -> bool:  # waits for the subscription, so it is Unavailable until that is back
            await gateway.watch("g1", [key(1)])
            return True

        await eventually(watched)
        await directory.activated(key(1), owner())
        assert await asyncio.wait_for(anext(told), PATIENCE_S) == (key(1), owner())


def test_a_reset_at_any_moment_ends_in_a_clear_answer_on_uvloop_too(server: Server) -> None:
    """It raises RuntimeError where asyncio's own loop raises ConnectionError, and that once ended whole replicas."""

    async def ask_and_reset() -> None:
        async with Proxy(("127.0.0.1", server.port)) as proxy, opened(f"redis://127.0.0.1:{proxy.port}") as directory:
            for turns_later in range(12):
                await eventually(lambda: seen(directory))  # what is not Unavailable ends the test here
                proxy.reset()
                for _ in range(turns_later):
                    await asyncio.sleep(0)
                with contextlib.suppress(Unavailable):
                    await directory.view()
            await eventually(lambda: seen(directory))

    async def seen(directory: ValkeyDirectory) -> bool:
        await directory.view()
        return True

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(ask_and_reset())


async def test_a_subscription_that_went_silent_is_found_out(server: Server) -> None:
    async with (
        Proxy(str(server.socket)) as proxy,
        opened(f"redis://127.0.0.1:{proxy.port}", quiet_s=0.05, timeout_s=0.3) as gateway,
        opened(server.unix_url) as replica,
    ):
        told = gateway.activations("g1")
        await gateway.watch("g1", [key(1)])
        proxy.half_open("client")  # the gateway's connections stay open, and nothing will ever come on them

        async def watched() -> bool:
            await gateway.watch("g1", [key(1)])
            return proxy.open_connections >= 2

        await eventually(watched)

        await eventually(lambda: hears(told, of=replica))


async def test_scripts_that_the_server_forgot_are_sent_again(server: Server) -> None:
    async with opened(server.unix_url) as directory:
        await directory.announce(member())
        with server.client() as client:
            client.script_flush()
        claims = await asyncio.gather(*(directory.claim(key(n), owner()) for n in range(10)))
        assert all(claim.won for claim in claims)


async def test_a_full_server_refuses_writes_whole_and_still_answers_reads(server: Server) -> None:
    async with opened(server.unix_url) as directory:
        await directory.announce(member())
        await directory.claim(key(1), owner())
        with server.client() as client:
            client.config_set("maxmemory", 1)
            with pytest.raises(Unavailable, match="directory_full"):
                await directory.claim(key(2), owner())
            with pytest.raises(Unavailable, match="directory_full"):
                await directory.announce(member())
            assert await directory.locate(key(1)) == owner()
            client.config_set("maxmemory", 0)
        assert (await directory.claim(key(2), owner())).won


async def test_a_server_that_became_a_replica_is_unavailable(server: Server) -> None:
    async with opened(server.unix_url) as directory:
        await directory.announce(member())
        with server.client() as client:
            client.replicaof("127.0.0.1", "1")
            with pytest.raises(Unavailable) as caught:
                await directory.claim(key(1), owner())
            assert not isinstance(caught.value, OutcomeUnknown)
            client.replicaof("no", "one")
        assert (await directory.claim(key(1), owner())).won


async def test_what_waits_is_bounded(server: Server) -> None:
    async with opened(server.unix_url, timeout_s=0.3) as directory:
        await directory.announce(member())
        server.pause()
        calls = [asyncio.ensure_future(directory.locate(key(n))) for n in range(WAITING_MAX + 200)]
        answers = await asyncio.gather(*calls, return_exceptions=True)
        server.go_on()
        assert all(isinstance(answer, Unavailable) for answer in answers)
        await eventually(lambda: _located(directory))


async def _located(directory: ValkeyDirectory) -> bool:
    return await directory.locate(key(1)) is None


async def test_closing_answers_whoever_still_waits(server: Server) -> None:
    async with opened(server.unix_url) as directory:
        await directory.announce(member())
        server.pause()
        calls = [asyncio.ensure_future(directory.claim(key(n), owner())) for n in range(100)]
        await asyncio.sleep(0)
        await directory.close()
        answers = await asyncio.gather(*calls, return_exceptions=True)
        assert all(isinstance(answer, Unavailable) for answer in answers)
        server.go_on()


async def refused(url: str) -> SessileError:
    directory = ValkeyDirectory(url, timeout_s=0.5)
    with pytest.raises(SessileError) as caught:
        await directory.open()
    await directory.close()
    return caught.value


async def test_nobody_there_is_said_at_the_start_without_the_password() -> None:
    error = await refused(f"redis://user:secret@127.0.0.1:{free_port()}")
    assert isinstance(error, Unavailable)
    assert "127.0.0.1" in error.public_message
    assert "secret" not in str(error)


async def test_passwords() -> None:
    with running("--requirepass", "p@ss/w", port=free_port()) as server:
        async with opened(f"redis://:p%40ss%2Fw@127.0.0.1:{server.port}/3") as directory:
            await directory.announce(member())
        for url in (f"redis://:wrong@127.0.0.1:{server.port}", f"redis://127.0.0.1:{server.port}"):
            error = await refused(url)
            assert isinstance(error, (BadInput, Unavailable))
            assert "wrong" not in str(error)
        assert isinstance(await refused(f"redis://:wrong@127.0.0.1:{server.port}"), BadInput)


async def test_a_lone_server_is_no_cluster_and_a_node_of_one_no_lone_server(server: Server) -> None:
    alone = await refused(f"redis+cluster://127.0.0.1:{server.port}")
    assert isinstance(alone, BadInput)
    assert "not part of a cluster" in alone.public_message
    with running_cluster() as servers:
        node = await refused(servers[0].url)
        assert isinstance(node, BadInput)
        assert "redis+cluster://" in node.public_message


async def test_sentinel_names_the_master() -> None:
    with running(port=free_port()) as master, started(Sentinel(master.port)) as sentinel:
        url = f"redis+sentinel://127.0.0.1:{free_port()},127.0.0.1:{sentinel.port}"  # the first is not there
        async with opened(f"{url}/main") as directory:
            await directory.announce(member())
            await serves(directory)
        assert isinstance(await refused(f"{url}/other"), Unavailable)
        async with Proxy(("127.0.0.1", sentinel.port)) as silent:
            silent.set(up=Flow(hole=True))
            both = f"redis+sentinel://127.0.0.1:{silent.port},127.0.0.1:{sentinel.port}/main"
            async with opened(both) as directory:
                await directory.view()


async def test_slots_that_move_are_followed_by_calls_and_by_subscriptions() -> None:
    with running_cluster() as servers:
        async with opened(cluster_url(servers)) as directory:
            await directory.announce(member())
            told = directory.activations("g1")
            await directory.watch("g1", [key(1)])
            moved = servers[0] if await _serves(servers[0], 1) else servers[1]
            target = servers[1] if moved is servers[0] else servers[0]
            await asyncio.to_thread(_move_slot_of, 1, moved, target)
            with pytest.raises(Unavailable, match="lease_missing"):  # it moved empty: the new server knows nothing
                await directory.claim(key(1), owner())
            answer = await directory.announce(member())
            assert answer.rejoined == {partition_of(key(1))}
            assert (await directory.claim(key(1), owner())).won
            assert await _serves(target, 1)

            async def heard() -> bool:
                await directory.watch("g1", [key(1)])
                return await hears(told, of=directory)

            await eventually(heard)


async def test_one_dead_node_fails_its_own_sessions_and_the_announcement_but_not_the_others() -> None:
    with running_cluster() as servers:
        async with opened(cluster_url(servers), timeout_s=0.3) as directory:
            await directory.announce(member())
            on_second = [n for n in range(20) if not await _serves(servers[0], n)]
            on_first = [n for n in range(20) if n not in on_second]
            servers[1].pause()
            with pytest.raises(Unavailable):
                await directory.announce(member())
            with pytest.raises(Unavailable):
                await directory.claim(key(on_second[0]), owner())
            assert (await directory.claim(key(on_first[0]), owner())).won
            servers[1].go_on()
            await eventually(lambda: _announced(directory))
            await eventually(lambda: _won(directory, on_second[0]))


def _slot(n: int) -> int:
    return key_slot(f"{{sessile:{partition_of(key(n))}}}".encode())


async def _serves(server: Server, n: int) -> bool:
    def ask() -> bool:
        with server.client() as client:
            myself = client.execute_command("CLUSTER MYID")
            for first, last, master, *_ in client.execute_command("CLUSTER SLOTS"):
                if first <= _slot(n) <= last:
                    return bool(master[2] == myself)
        return False

    return await asyncio.to_thread(ask)


def _move_slot_of(n: int, source: Server, target: Server) -> None:
    """As a resharding does, but with the slot's keys dropped, so that the move is seen as a loss of one partition."""
    slot = _slot(n)
    with source.client() as one, target.client() as other:
        receiver = other.execute_command("CLUSTER MYID").decode()
        while found := one.execute_command("CLUSTER GETKEYSINSLOT", slot, 1000):
            one.execute_command("DEL", *found)
        for client in (other, one):
            client.execute_command("CLUSTER SETSLOT", slot, "NODE", receiver)


class Certificates:
    """A certificate authority of our own, and one certificate for 127.0.0.1."""

    def __init__(self, folder: Path) -> None:
        self.authority = folder / "authority.pem"
        self.certificate = folder / "server.pem"
        now = datetime.datetime.now(datetime.UTC)
        authority_key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test authority")])

        def build(subject: x509.Name, public: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
            builder = x509.CertificateBuilder().subject_name(subject).issuer_name(name).public_key(public)
            builder = builder.serial_number(x509.random_serial_number())
            return builder.not_valid_before(now - datetime.timedelta(hours=1)).not_valid_after(
                now + datetime.timedelta(hours=1)
            )

        authority = (
            build(name, authority_key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(authority_key.public_key()), critical=False)
            .sign(authority_key, hashes.SHA256())
        )
        self.authority.write_bytes(authority.public_bytes(serialization.Encoding.PEM))
        own_key = ec.generate_private_key(ec.SECP256R1())
        own = (
            build(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "server")]), own_key.public_key())
            .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), False)
            .sign(authority_key, hashes.SHA256())
        )
        encoding = serialization.Encoding.PEM
        private = own_key.private_bytes(encoding, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        self.certificate.write_bytes(own.public_bytes(encoding) + private)

    def server_context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.certificate)
        return context


@contextlib.asynccontextmanager
async def tls_in_front_of(server: Server, certificates: Certificates) -> AsyncIterator[int]:
    """The server's binary has no TLS, so it is taken off in front of it, as a TLS load balancer does. Yields a port."""
    async with asyncio.TaskGroup() as pumps:

        async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(ConnectionError):
                while data := await reader.read(65536):
                    writer.write(data)
            writer.close()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            back_reader, back_writer = await asyncio.open_unix_connection(str(server.socket))
            pumps.create_task(pump(reader, back_writer))
            pumps.create_task(pump(back_reader, writer))

        front = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=certificates.server_context())
        try:
            yield front.sockets[0].getsockname()[1]
        finally:
            front.close()


async def test_tls_with_a_checked_certificate(server: Server, tmp_path: Path) -> None:
    certificates = Certificates(tmp_path)
    async with tls_in_front_of(server, certificates) as port:
        async with opened(f"rediss://127.0.0.1:{port}?ssl_ca_certs={certificates.authority}") as directory:
            await directory.announce(member())
            await serves(directory)
        unknown_authority = await refused(f"rediss://127.0.0.1:{port}")
        assert isinstance(unknown_authority, Unavailable)
        assert "certificate" in unknown_authority.public_message.lower()
        wrong_name = await refused(f"rediss://localhost:{port}?ssl_ca_certs={certificates.authority}")
        assert isinstance(wrong_name, Unavailable)
        url = f"rediss://localhost:{port}?ssl_ca_certs={certificates.authority}&ssl_check_hostname=no"
        async with opened(url) as directory:
            await directory.view()
        assert isinstance(await refused(f"redis://127.0.0.1:{port}"), Unavailable)
