"""Directories: addresses, topology, subscriptions, pipelines, and the rules that all of them keep."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis.asyncio import Redis, RedisCluster
from redis.asyncio.connection import SSLConnection, UnixDomainSocketConnection
from redis.asyncio.sentinel import SentinelConnectionPool, SentinelManagedSSLConnection
from redis.exceptions import (
    AskError,
    AuthenticationError,
    BusyLoadingError,
    ClusterDownError,
    MovedError,
    ReadOnlyError,
    TryAgainError,
)

from actors.directory.address import Address, connect, parse
from actors.directory.common import UNREAD_MAX, Activations, Freshness
from actors.directory.memory import MemoryDirectory
from actors.directory.pipelined_connection import CONNECT_ATTEMPTS, NotSent, PipelinedConnection, ReplyLost
from actors.directory.pubsub import PAUSE_S, PubSubListener
from actors.directory.rules import DirectoryState
from actors.directory.topology import HOPS_MAX, ClusterServers
from actors.directory.valkey import ValkeyDirectory
from sessions.model.errors import BadInput, OutcomeUnknown, SessileError, Unavailable
from sessions.model.types import ActivationId, ReplicaId, SessionId, SessionKey, TenantId
from sessions.ports import Member, Owner
from tests.support.virtual_time import advance, outcome, virtual


class FakeConnection:
    """Answers come from `answers` in order; an exception among them is raised, `None` is silence until a time-out."""

    def __init__(self, *answers: Any, refuses: int = 0) -> None:
        self.answers = list(answers)
        self.refuses = refuses  # connection attempts that fail first
        self.sent: list[tuple[Any, ...]] = []
        self.attempts = 0
        self.is_connected = False
        self.leftover = False
        self.socket_timeout: float | None = 1.0
        self.news = asyncio.Event()

    async def connect(self) -> None:
        self.attempts += 1
        if self.refuses:
            self.refuses -= 1
            raise ConnectionError("refused")
        self.is_connected = True
        self.leftover = False

    async def disconnect(self, nowait: bool = False) -> None:
        self.is_connected = False

    async def can_read(self) -> bool:
        return self.leftover

    def pack_commands(self, commands: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        return commands

    async def send_packed_command(self, commands: list[tuple[Any, ...]], check_health: bool = True) -> None:
        self.sent += commands

    async def read_response(self, timeout: float | None = None) -> Any:
        while not self.answers:
            self.news.clear()
            await self.news.wait()
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def answer(self, *answers: Any) -> None:
        self.answers += answers
        self.news.set()


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("redis://h", Address(kind="server", hosts=(("h", 6379),))),
        ("redis://h:7/", Address(kind="server", hosts=(("h", 7),))),
        ("redis://h/3", Address(kind="server", hosts=(("h", 6379),), db=3)),
        ("redis://h?db=3", Address(kind="server", hosts=(("h", 6379),), db=3)),
        ("redis://[::1]:7", Address(kind="server", hosts=(("::1", 7),))),
        ("redis://u:p%40s%2Fs@h", Address(kind="server", hosts=(("h", 6379),), username="u", password="p@s/s")),
        ("redis://:p@h", Address(kind="server", hosts=(("h", 6379),), password="p")),
        ("rediss://h", Address(kind="server", hosts=(("h", 6379),), tls=True)),
        (
            "rediss://h?ssl_ca_certs=/a.pem&ssl_check_hostname=no",
            Address(
                kind="server",
                hosts=(("h", 6379),),
                tls=True,
                options={"ssl_ca_certs": "/a.pem", "ssl_check_hostname": False},
            ),
        ),
        ("unix:///run/my%20dir/s", Address(kind="unix", path="/run/my dir/s")),
        ("unix://:p@/run/s?db=2", Address(kind="unix", path="/run/s", password="p", db=2)),
        (
            "redis+sentinel://u:p@a,b:5/main/2?sentinel_password=q",
            Address(
                kind="sentinel",
                hosts=(("a", 26379), ("b", 5)),
                service="main",
                db=2,
                username="u",
                password="p",
                options={"sentinel_password": "q"},
            ),
        ),
        ("redis+cluster://a,b:5", Address(kind="cluster", hosts=(("a", 6379), ("b", 5)))),
        ("rediss+cluster://a", Address(kind="cluster", hosts=(("a", 6379),), tls=True)),
    ],
)
def test_what_is_understood(url: str, expected: Address) -> None:
    assert parse(url) == expected


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("", "names no kind"),
        ("localhost:6379", "'localhost' is not a kind"),
        ("http://h", "'http' is not a kind"),
        ("redisss://h", "'redisss' is not a kind"),
        ("redis://", "a host is missing"),
        ("redis://h,", "several hosts|a host is missing"),
        ("redis://h:port", "'h:port' is not a host with a port"),
        ("redis://h:99999", "99999 is not a port"),
        ("redis://h:0", "0 is not a port"),
        ("redis://a b", "'a b' is not a host"),
        ("redis://a,b", "several hosts need redis\\+sentinel"),
        ("redis://h/x", "'x' is not the number of a database"),
        ("redis://h/1/2", "too much in its path"),
        ("redis://h/1?db=2", "both in the path and in the options"),
        ("redis://h?socket_timeout=1", "'socket_timeout' is not an option here \\(known: db\\)"),
        ("redis://h?ssl_ca_certs=x", "not an option here"),
        ("rediss://h?ssl_check_hostname=perhaps", "is yes or no"),
        ("rediss://h?ssl_ca_certs=", "is empty or stands twice"),
        ("rediss://h?ssl_ca_certs=a&ssl_ca_certs=b", "is empty or stands twice"),
        ("redis://h?db", "not written name=value"),
        ("redis://u:p#q@h", "'#' %23"),
        ("redis://u:p/q@h", "'/' is written %2F"),
        ("redis+sentinel://h", "name of the service is missing"),
        ("redis+cluster://h/1", "no databases but 0"),
        ("redis+cluster://h?db=1", "not an option here \\(known: none\\)"),
        ("unix://run/s", "write three slashes"),
        ("unix://", "path of the socket is missing"),
        ("redis://[::1", "not an address"),
    ],
)
def test_what_is_refused(url: str, problem: str) -> None:
    with pytest.raises(BadInput, match=problem) as caught:
        parse(url)
    assert caught.value.code == "bad_directory_url"
    assert caught.value.param == "directory"


@given(
    password=st.text(st.characters(codec="ascii", exclude_categories=["Cc"]), min_size=4),
    rest=st.sampled_from(["h:port", "h/x", "h?x=1", "", "h,i"]),
)
def test_a_refusal_never_repeats_a_password(password: str, rest: str) -> None:
    """Also one that was not encoded, and so ends up where it does not belong."""
    secret = "s3cr3t" + password + "s3cr3t"
    try:
        said = parse(f"redis://user:{secret}@{rest}").where
    except BadInput as error:
        said = str(error)
    assert "s3cr3t" not in said


def test_each_kind_gets_its_client() -> None:
    plain = connect("redis://u:p@h:7/3", timeout_s=0.5)
    assert isinstance(plain, Redis)
    options = plain.connection_pool.connection_kwargs
    assert (options["host"], options["port"], options["db"], options["username"], options["password"]) == (
        *("h", 7, 3),
        *("u", "p"),
    )
    assert options["socket_timeout"] == options["socket_connect_timeout"] == 0.5
    assert options["retry"].get_retries() == 0
    unix = connect("unix:///s")
    assert isinstance(unix, Redis) and unix.connection_pool.connection_class is UnixDomainSocketConnection
    tls = connect("rediss://h?ssl_ca_certs=/a.pem&ssl_check_hostname=no")
    assert isinstance(tls, Redis) and tls.connection_pool.connection_class is SSLConnection
    assert tls.connection_pool.connection_kwargs["ssl_ca_certs"] == "/a.pem"
    assert tls.connection_pool.connection_kwargs["ssl_check_hostname"] is False
    sentinel = connect("rediss+sentinel://u:p@a,b/main/2?sentinel_username=su&sentinel_password=sp&ssl_ca_certs=/a.pem")
    assert isinstance(sentinel, Redis)
    pool = sentinel.connection_pool
    assert isinstance(pool, SentinelConnectionPool) and pool.connection_class is SentinelManagedSSLConnection
    assert (pool.service_name, pool.connection_kwargs["db"], pool.connection_kwargs["password"]) == ("main", 2, "p")
    for each in pool.sentinel_manager.sentinels:
        asked = each.connection_pool
        assert asked.connection_class is SSLConnection
        assert (asked.connection_kwargs["username"], asked.connection_kwargs["password"]) == ("su", "sp")
        assert asked.connection_kwargs["ssl_ca_certs"] == "/a.pem"
        assert asked.connection_kwargs["socket_timeout"] * 2 < 1.0  # both may be asked in time
    cluster = connect("rediss+cluster://u:p@a,b:5?ssl_certfile=/c.pem")
    assert isinstance(cluster, RedisCluster)
    assert {node.name for node in cluster.startup_nodes} == {"a:6379", "b:5"}
    assert cluster.connection_kwargs["connection_class"] is SSLConnection
    assert (cluster.connection_kwargs["password"], cluster.connection_kwargs["ssl_certfile"]) == ("p", "/c.pem")


OWNER = Owner(ReplicaId("r1"), "i", ActivationId("a"))


def key(session: str, tenant: str = "t") -> SessionKey:
    return SessionKey(TenantId(tenant), SessionId(session))


async def test_activations_are_read_in_order_bounded_and_to_their_end() -> None:
    closed: list[Activations] = []
    stream = Activations(closed.append)
    for number in range(UNREAD_MAX + 2):
        stream.push(key(str(number)), OWNER)
    assert stream.missed == 2
    assert (await anext(stream))[0] == key("2"), "the oldest were given up"
    stream.close()
    stream.close()
    stream.push(key("late"), OWNER)
    assert len([each async for each in stream]) == UNREAD_MAX - 1 and closed == [stream]


async def test_news_is_a_version_beyond_the_last_returned_or_a_missing_lease() -> None:
    fresh = Freshness()
    fresh.record_returned(5)
    fresh.record_answer(5)
    waiting = asyncio.create_task(fresh.news())
    await asyncio.sleep(0)
    assert not waiting.done()
    fresh.record_answer(6)
    await waiting
    fresh.record_returned(6)
    fresh.lease_missing()
    await fresh.news()
    assert fresh.seen == 6


@virtual
async def test_interest_that_lapsed_takes_no_memory() -> None:
    store = DirectoryState()
    directory = MemoryDirectory(store)
    await directory.open()
    for n in range(50):
        await directory.watch("g", [SessionKey(TenantId("t"), SessionId(f"s{n}"))])
        await advance(1.0)
    await directory.view()
    assert store.interest_count <= 7


def over(*answers: Any, refuses: int = 0) -> tuple[PipelinedConnection, FakeConnection]:
    connection = FakeConnection(*answers, refuses=refuses)
    return PipelinedConnection(lambda: connection, timeout_s=1.0), connection  # type: ignore[arg-type,return-value]


@virtual
async def test_what_was_never_written_is_not_sent_and_what_was_is_lost() -> None:
    lane, _ = over(refuses=CONNECT_ATTEMPTS)
    assert isinstance(await outcome(lane.call("GET")), NotSent)
    await lane.close()
    lane, connection = over()
    assert isinstance(await outcome(lane.call("GET")), ReplyLost), "no answer in time"
    assert not connection.is_connected
    connection.answers = [b"fresh"]
    assert await lane.call("GET") == b"fresh" and connection.attempts == 2
    await lane.close()
    assert isinstance(await outcome(lane.call("GET")), NotSent)


@pytest.mark.parametrize(
    ("refusal", "kind"), [(BusyLoadingError("loading"), NotSent), (ReadOnlyError("a replica"), ReadOnlyError)]
)
@virtual
async def test_a_server_that_is_not_ready_or_not_the_master_is_connected_to_anew(
    refusal: Exception, kind: type[Exception]
) -> None:
    lane, connection = over(refusal, b"ok")
    assert isinstance(await outcome(lane.call("SET")), kind)
    assert await lane.call("SET") == b"ok" and connection.attempts == 2
    await lane.close()


@virtual
async def test_bytes_that_nobody_waits_for_close_the_connection_before_the_next_call() -> None:
    lane, connection = over(b"1", b"2")
    await lane.call("GET")
    connection.leftover = True
    assert await lane.call("GET") == b"2" and connection.attempts == 2
    await lane.close()


def listener(*connections: FakeConnection, got: list[bytes]) -> PubSubListener:
    """A listener to whom servers hand out one connection after another."""
    left = list(connections)

    async def refresh() -> None:
        return

    servers: Any = SimpleNamespace(spread=lambda keys: [(lambda: left.pop(0), list(keys))], refresh=refresh)
    return PubSubListener(servers, ["a", "b"], got.append, quiet_s=2.0)


def subscribed(*channels: bytes) -> list[list[object]]:
    return [[b"ssubscribe", channel, 1] for channel in channels]


@virtual
async def test_it_is_ready_when_every_channel_is_subscribed_and_passes_messages_on() -> None:
    connection, got = FakeConnection(*subscribed(b"a")), list[bytes]()
    listening = listener(connection, got=got)
    assert isinstance(await outcome(listening.ready(0.5)), NotSent)
    connection.answer(*subscribed(b"b"), [b"smessage", b"a", b"hello"])
    await listening.ready(0.5)
    await advance(0.1)
    assert got == [b"hello"] and connection.sent == [("SSUBSCRIBE", "a"), ("SSUBSCRIBE", "b")]
    await listening.close()
    assert not connection.is_connected


@virtual
async def test_a_silent_server_is_probed_once_and_then_left() -> None:
    first, second = FakeConnection(*subscribed(b"a", b"b")), FakeConnection(*subscribed(b"a", b"b"))
    listening = listener(first, second, got=[])
    await listening.ready(0.5)
    first.answer(None)
    await advance(0.01)
    assert first.sent[-1] == ("PING",)
    first.answer([b"pong", b""], None)
    await advance(0.01)
    assert listening.live.is_set(), "it answered the first"
    first.answer(None)
    await advance(2 * PAUSE_S)
    assert not first.is_connected and second.is_connected
    await listening.close()


KEY = SessionKey(TenantId("t"), SessionId("s"))
TTL = 6.0


def test_an_entry_counts_while_its_lease_lives_in_either_direction_of_time() -> None:
    state = DirectoryState()
    member = Member(replica=OWNER.replica, incarnation="i", address="", model="m", fingerprint="f")
    state.announce(member, generation=0, seen=0, ttl=TTL, now=0.0)
    state.claim(KEY, OWNER, instead_of=None, now=0.0)
    assert state.locate(KEY, now=TTL - 0.1) == OWNER
    assert state.locate(KEY, now=TTL) is None
    assert state.locate(KEY, now=-TTL) is None, "a clock that went back keeps nobody alive"
    with pytest.raises(Unavailable):
        state.claim(KEY, Owner(OWNER.replica, "i", ActivationId("a2")), instead_of=None, now=TTL)


ELSEWHERE = "1 127.0.0.1:2"


class FakeCluster:
    """Nodes by name, the one that all slots are on, and what a new reading of the map finds."""

    def __init__(self, **nodes: FakeConnection) -> None:
        self.nodes_cache = {
            name: SimpleNamespace(name=name, connection_class=lambda each=each: each, connection_kwargs={})
            for name, each in ((name.replace("_", "127.0.0.1:"), each) for name, each in nodes.items())
        }
        self.master = "127.0.0.1:1"
        self.after_refresh: str | None = None
        self.nodes_manager = self
        self.refreshed = 0

    def get_node_from_slot(self, slot: int) -> Any:
        return self.nodes_cache[self.master]

    def get_node(self, node_name: str) -> Any:
        return self.nodes_cache.get(node_name)

    async def move_slot(self, error: MovedError) -> None:
        self.master = f"{error.host}:{error.port}"

    async def initialize(self) -> None:
        self.refreshed += 1
        self.master = self.after_refresh or self.master

    async def aclose(self) -> None:
        pass


def servers(**nodes: FakeConnection) -> tuple[ClusterServers, FakeCluster]:
    cluster = FakeCluster(**nodes)
    return ClusterServers(cluster, timeout_s=1.0), cluster  # type: ignore[arg-type]


@virtual
async def test_a_slot_on_the_move_is_asked_for_once_and_not_remembered() -> None:
    one, two = FakeConnection(AskError(ELSEWHERE), b"here"), FakeConnection(b"OK", b"there")
    made, cluster = servers(_1=one, _2=two)
    assert await made.call("key", "GET") == b"there" and two.sent == [("ASKING",), ("GET",)]
    assert await made.call("key", "GET") == b"here" and cluster.master == "127.0.0.1:1"
    await made.close()


@virtual
async def test_a_node_that_left_is_looked_up_anew_once() -> None:
    made, cluster = servers(_1=FakeConnection(refuses=9), _2=FakeConnection(b"a"))
    assert isinstance(await outcome(made.call("key", "GET")), NotSent), "the map still names it"
    cluster.after_refresh = "127.0.0.1:2"
    assert await made.call("key", "GET") == b"a" and cluster.refreshed == 2
    await made.close()


@virtual
async def test_an_answer_that_was_lost_is_never_sent_again() -> None:
    two = FakeConnection(b"a")
    made, cluster = servers(_1=FakeConnection(), _2=two)
    cluster.after_refresh = "127.0.0.1:2"
    assert isinstance(await outcome(made.call("key", "SET")), ReplyLost) and two.sent == []
    await made.close()


@pytest.mark.parametrize("answers", [[ClusterDownError("down")], [TryAgainError("later")] * HOPS_MAX])
@virtual
async def test_a_cluster_that_does_not_settle_has_not_got_the_call(answers: list[Exception]) -> None:
    made, _ = servers(_1=FakeConnection(*answers))
    assert isinstance(await outcome(made.call("key", "GET")), NotSent)
    await made.close()


INFO = b"redis_version:7.2.4\r\n"


class ValkeyServers:
    together = True

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)

    async def open(self) -> None:
        if self.answers and isinstance(self.answers[0], Exception):
            raise self.answers.pop(0)

    async def close(self) -> None:
        pass

    async def call(self, key: str, *words: Any) -> Any:
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


async def valkey_over(*answers: Any, opened: bool = True) -> ValkeyDirectory:
    directory = ValkeyDirectory("redis://127.0.0.1")
    directory._servers = ValkeyServers(*((INFO,) if opened else ()), *answers)  # type: ignore[assignment]
    if opened:
        await directory.open()
    return directory


def caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("answer", "kind", "words"),
    [
        (b"redis_version:6.2.1\r\n", BadInput, "7.0"),
        (INFO + b"cluster_enabled:1\r\n", BadInput, "redis\\+cluster"),
        (NotSent("away"), Unavailable, "does not answer"),
        (caused(NotSent("no"), AuthenticationError("WRONGPASS")), BadInput, "name or password"),
    ],
)
async def test_a_server_that_cannot_be_the_directory_is_refused_with_a_reason(
    answer: Any, kind: type[SessileError], words: str
) -> None:
    with pytest.raises(kind, match=words):
        await (await valkey_over(answer, opened=False)).open()


async def test_a_reading_is_repeated_once_and_has_no_unknown_outcome() -> None:
    assert await (await valkey_over(ReplyLost("gone"), [4])).locate(KEY) is None
    error = await outcome((await valkey_over(ReplyLost("gone"), ReplyLost("gone"))).locate(KEY))
    assert isinstance(error, Unavailable) and not isinstance(error, OutcomeUnknown)
