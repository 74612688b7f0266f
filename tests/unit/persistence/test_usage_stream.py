"""Streams of usage rows: their addresses, their sinks, and the one that relays."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

import msgspec
import pytest

from persistence.memory.store import MemoryStore
from persistence.usage_stream.kafka import RESERVED_OPTIONS, KafkaAddress, parse_kafka_address, read_kafka_options
from persistence.usage_stream.open_sink import open_usage_sink
from persistence.usage_stream.relay import UsageRelay
from persistence.usage_stream.valkey import ValkeySink
from sessions.billing.metering import UsageEntry, UsageStore
from sessions.metrics import Metrics
from sessions.model.errors import BadInput, Unavailable
from sessions.model.types import UnixMs
from testbed.valkey_server import Server, free_port
from tests.support.stores.journals import NOW, billed


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("kafka://host/bills", KafkaAddress("host:9092", "bills")),
        ("kafka://a:1,b-2.c:65535,[::1]:3/My.bills_1-x", KafkaAddress("a:1,b-2.c:65535,[::1]:3", "My.bills_1-x")),
    ],
)
def test_an_address_names_brokers_and_a_topic(url: str, address: KafkaAddress) -> None:
    assert parse_kafka_address(url) == address


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("kafka://host:9092", "is not a topic"),
        ("kafka://host:9092/", "is not a topic"),
        ("kafka://host:9092/a/b", "'a/b' is not a topic"),
        ("kafka://host:9092/bills?acks=0", "is not a topic"),
        ("kafka://host:9092/..", "is not a topic"),
        (f"kafka://host:9092/{'t' * 250}", "is not a topic"),
        ("kafka:///bills", "'' is not a broker"),
        ("kafka://host:0/bills", "'host:0' is not a broker"),
        ("kafka://host:65536/bills", "is not a broker"),
        ("kafka://host:9092,/bills", "is not a broker"),
    ],
)
def test_a_malformed_address_is_refused_with_what_is_wrong(url: str, problem: str) -> None:
    with pytest.raises(BadInput, match="usage_stream: ") as refused:
        open_usage_sink(url)
    assert problem in str(refused.value)


def test_a_password_in_an_address_is_refused_and_not_repeated() -> None:
    with pytest.raises(BadInput, match="usage_stream_options") as refused:
        open_usage_sink("kafka://me:hush-hush@host:9092/bills")
    assert "hush" not in str(refused.value)


def test_options_are_librdkafkas_written_as_toml(tmp_path: Path) -> None:
    file = tmp_path / "kafka.toml"
    file.write_text(
        'security.protocol = "SASL_SSL"\n"sasl.username" = "me"\nretries = 5\n[ssl.ca]\nlocation = "ca.pem"\n'
    )
    assert read_kafka_options(str(file)) == {
        "security.protocol": "SASL_SSL",
        "sasl.username": "me",
        "retries": "5",
        "ssl.ca.location": "ca.pem",
    }
    file.write_text("enable.ssl.certificate.verification = false")
    assert read_kafka_options(str(file)) == {"enable.ssl.certificate.verification": "false"}


@pytest.mark.parametrize("name", sorted(RESERVED_OPTIONS))
def test_what_at_least_once_rests_on_is_not_to_be_set(tmp_path: Path, name: str) -> None:
    file = tmp_path / "kafka.toml"
    file.write_text(f'"{name}" = "1"')
    with pytest.raises(BadInput, match="is not to be set") as refused:
        open_usage_sink("kafka://host/bills", options=str(file))
    assert name in str(refused.value)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("sasl.password = hush-hush", "line 1"),
        ('sasl.password = ["hush-hush"]', "sasl.password is neither"),
        ('nonsense = "1"', 'No such configuration property: "nonsense"'),
        ('security.protocol = "CARRIER_PIGEON"', "security.protocol"),
        ('security.protocol = "SSL"\nssl.ca.location = "/not/there.pem"', "ssl.ca.location failed"),
        ("\x00", "line 1"),
    ],
)
def test_malformed_options_are_refused_and_no_password_repeated(tmp_path: Path, text: str, problem: str) -> None:
    file = tmp_path / "kafka.toml"
    file.write_text(text)
    with pytest.raises(BadInput, match="usage_stream_options: ") as refused:
        open_usage_sink("kafka://host/bills", options=str(file))
    assert problem in str(refused.value)
    assert "hush" not in str(refused.value)


def test_a_file_that_is_not_there_and_options_of_another_stream_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="No such file"):
        open_usage_sink("kafka://host/bills", options=str(tmp_path / "none.toml"))
    with pytest.raises(BadInput, match="only for kafka://") as refused:
        open_usage_sink("redis://host/0", options="some.toml")
    assert refused.value.param == "usage_stream_options"


def test_without_the_package_it_is_said_what_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    with pytest.raises(BadInput, match="make setup-kafka"):
        open_usage_sink("kafka://host/bills")


@pytest.mark.parametrize(
    ("url", "host", "stream"),
    [
        ("redis://valkey:6379/0", "valkey", "sessile:usage"),
        ("valkey://valkey:6379/0?stream=bills", "valkey", "bills"),
        ("rediss://safe:6379/0", "safe", "sessile:usage"),
    ],
)
def test_a_url_names_a_stream_of_valkey(url: str, host: str, stream: str) -> None:
    sink = open_usage_sink(url)
    assert isinstance(sink, ValkeySink) and sink._stream == stream
    assert sink._client.connection_pool.connection_kwargs["host"] == host


@pytest.mark.parametrize("url", ["amqp://somewhere", "", "stream"])
def test_other_streams_are_not_known(url: str) -> None:
    with pytest.raises(BadInput, match="are known"):
        open_usage_sink(url)


NAMES = [f"r{number}" for number in range(7)]


@pytest.fixture
async def store() -> AsyncIterator[MemoryStore]:
    async with billed(NAMES) as opened:
        yield opened


class Taken:
    """A sink that takes what it is told to take, and says no in between."""

    def __init__(self, *, refuse: Sequence[int] = ()) -> None:
        self.rows: list[UsageEntry] = []
        self.calls = 0
        self.locked = True
        self.closed = False
        self.refuse = set(refuse)
        self.moved = asyncio.Event()

    async def acquire(self) -> bool:
        return self.locked

    async def send(self, rows: Sequence[UsageEntry]) -> None:
        self.calls += 1
        self.moved.set()
        if self.calls in self.refuse:
            self.rows += rows[:1]  # some of them arrived before it failed
            raise Unavailable("usage_stream_away", "It is away.")
        self.rows += rows

    async def close(self) -> None:
        self.closed = True


def relay(usage: UsageStore, sink: Taken, *, batch: int = 3, poll_s: float = 0.001) -> UsageRelay:
    return UsageRelay(usage, sink, now_ms=lambda: UnixMs(NOW), metrics=Metrics(), batch=batch, poll_s=poll_s)


async def test_a_relay_without_the_lock_passes_nothing_on(store: MemoryStore) -> None:
    sink = Taken()
    sink.locked = False
    assert await relay(store.usage, sink).relay_batch() is False
    assert sink.calls == 0


async def test_a_running_relay_comes_back_after_a_failure_and_closes_its_sink(store: MemoryStore) -> None:
    sink = Taken(refuse=[1, 2])
    running = asyncio.create_task(relay(store.usage, sink, batch=100).run())
    async with asyncio.timeout(60):
        while sink.calls < 3:
            await sink.moved.wait()
            sink.moved.clear()
    running.cancel()
    await asyncio.wait([running])
    assert sink.closed
    assert {entry.row.response_id for entry in sink.rows} == set(NAMES)


@pytest.fixture(scope="module")
def valkey() -> Iterator[Server]:
    server = Server(port=free_port())
    server.start()
    yield server
    server.stop()


@pytest.mark.cluster
async def test_a_stream_of_valkey_has_every_row_and_one_relay_at_a_time(store: MemoryStore, valkey: Server) -> None:
    first, second = (open_usage_sink(f"{valkey.url}/0?stream=bills") for _ in range(2))
    assert isinstance(first, ValkeySink) and isinstance(second, ValkeySink)
    assert await first.acquire()
    assert await first.acquire()
    assert not await second.acquire()
    passing = UsageRelay(store.usage, first, now_ms=lambda: UnixMs(NOW), metrics=Metrics(), batch=3)
    while await passing.relay_batch():
        pass
    with valkey.client() as client:
        entries = client.xrange("bills")
    rows = [msgspec.json.decode(fields[b"row"]) for _, fields in entries]
    assert [row["response_id"] for row in rows] == NAMES
    assert rows[0]["session"] == "s" and rows[0]["output_tokens"] == 7
    await first.close()
    await second.close()


@pytest.mark.cluster
async def test_a_stream_that_is_away_is_reported() -> None:
    sink = open_usage_sink(f"redis://127.0.0.1:{free_port()}/0")
    with pytest.raises(Unavailable, match="cannot be written"):
        await sink.acquire()
    await sink.close()


def test_a_url_that_is_none_is_refused() -> None:
    with pytest.raises(BadInput) as refused:
        ValkeySink("nonsense")
    assert refused.value.param == "usage_stream"
