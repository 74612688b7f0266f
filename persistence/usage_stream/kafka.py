"""Usage rows on a topic of Kafka, through librdkafka: the address, its options, and the sink.

    kafka://host:9092,host:9092/TOPIC        key: the response's id        value: the row, as on a stream of Valkey

Invariants: `send` returns only when every row was acknowledged by all of the topic's replicas that are in sync
(`acks=all`, idempotent producer); when it raises, nothing of that batch is on its way any more, so that rows that are
sent again cannot be overtaken by themselves. A producer that failed is thrown away with what it holds. Whatever waits
for the broker is in a thread of its own: the event loop never waits, and a stop is seen within a few times `SLICE_S`.

Does not know how rows are marked as relayed, nor what a row means. Kafka has no lock for relays: in a cluster the lock
is in the directory's Valkey (`relay_lock.py`), and a batch is sent or given up before the lock expires.

Source: librdkafka's INTRODUCTION.md, "Idempotent Producer"; names of options are its CONFIGURATION.md's.
"""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from persistence.usage_stream.relay_lock import RelayLock
from sessions.billing.metering import UsageEntry, entry_public
from sessions.model.errors import BadInput, Unavailable
from sessions.setting_files import parse_toml

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message, Producer

SLICE_S: Final = 0.25
TOPIC_SLICES: Final = 16  # 4 s to see the topic, and
SEND_SLICES: Final = 32  # 8 s to have a batch acknowledged: together less than the lock's time
DELIVERY_MS: Final = 7_000
PORT: Final = "9092"
BYTES_MAX: Final = 1 << 20

# A topic that is only misspelt shall not be made; and what goes wrong is ours to say, once, in the log.
DEFAULT_OPTIONS: Final = {"client.id": "sessile-usage", "allow.auto.create.topics": "false", "log_level": "0"}
# Without these a row could be marked and not be there, or be there after it was given up.
REQUIRED_OPTIONS: Final = {"acks": "all", "enable.idempotence": "true", "message.timeout.ms": str(DELIVERY_MS)}
RESERVED_OPTIONS: Final = {
    *REQUIRED_OPTIONS,
    "bootstrap.servers",
    "metadata.broker.list",
    "request.required.acks",
    "delivery.timeout.ms",
    "transactional.id",
}


class KafkaAddress(msgspec.Struct, frozen=True):
    brokers: str  # host:port,host:port
    topic: str


def _invalid_setting(setting: str, problem: str) -> BadInput:
    return BadInput("invalid_setting", f"{setting}: {problem}", param=setting)


def parse_kafka_address(url: str) -> KafkaAddress:
    """Parses `kafka://HOST:PORT,.../TOPIC`. Raises BadInput; its text repeats nothing that can be a password."""
    place, _, topic = url.removeprefix("kafka://").partition("/")
    if "@" in url:
        raise _invalid_setting(
            "usage_stream", "names and passwords for Kafka stand in the file of usage_stream_options"
        )
    hosts = []
    for each in place.split(","):
        found = re.fullmatch(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::(\d{1,5}))?", each)
        if found is None or not 0 < int(found[2] or PORT) < 65536:
            raise _invalid_setting(
                "usage_stream", f"{each!r} is not a broker; written like kafka://host:9092,host:9092/TOPIC"
            )
        hosts.append(f"{found[1]}:{found[2] or PORT}")
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,249}", topic) or topic in (".", ".."):
        raise _invalid_setting(
            "usage_stream",
            f"{topic!r} is not a topic (1 to 249 letters, digits, '.', '_', '-'); written like kafka://host:9092/TOPIC",
        )
    return KafkaAddress(",".join(hosts), topic)


def read_kafka_options(path: str) -> dict[str, str]:
    """Reads librdkafka's options from a TOML file; `security.protocol = "SSL"` and a table `[security]` mean the same.
    Raises BadInput, which names the mistake and repeats no value."""
    try:
        text = Path(path).read_bytes()
        if len(text) > BYTES_MAX:
            raise _invalid_setting("usage_stream_options", f"{path!r} has {len(text)} bytes: at most {BYTES_MAX}")
        options = _flatten(parse_toml(text.decode()), "")
    except (OSError, ValueError) as error:  # a TOMLDecodeError and a UnicodeDecodeError are ValueErrors
        why = error.strerror if isinstance(error, OSError) else error
        raise _invalid_setting("usage_stream_options", f"{path!r}: {why}") from error
    for name in options:
        if name in RESERVED_OPTIONS:
            reason = _reason_reserved(name)
            raise _invalid_setting("usage_stream_options", f"{path!r}: {name} is not to be set: {reason}")
    return options


def _reason_reserved(name: str) -> str:
    if name in ("bootstrap.servers", "metadata.broker.list"):
        return "brokers stand in usage_stream"
    return "rows are relayed at least once by how it is set"


def _flatten(table: Mapping[str, Any], before: str) -> dict[str, str]:
    options: dict[str, str] = {}
    for name, value in table.items():
        match value:
            case dict():
                options |= _flatten(value, f"{before}{name}.")
            case bool():
                options[before + name] = "true" if value else "false"
            case str() | int() | float():
                options[before + name] = str(value)
            case _:
                raise ValueError(f"{before}{name} is neither text nor a number nor true or false")
    return options


class KafkaSink:
    """A `persistence.usage_stream.relay.UsageSink` for Kafka. Without a `lock` it must be the only relay of the
    topic."""

    def __init__(self, address: KafkaAddress, options: Mapping[str, str], *, lock: RelayLock | None = None) -> None:
        """Connects only at the first use. Raises BadInput for options that librdkafka refuses, and if librdkafka is
        missing."""
        try:
            import confluent_kafka
        except ImportError as error:
            raise _invalid_setting("usage_stream", f"kafka:// needs a package ({error}): `make setup-kafka`") from error
        self._library = confluent_kafka
        self._topic = address.topic
        self._where = f"{address.topic!r} at {address.brokers}"
        self._options = {**DEFAULT_OPTIONS, **options, **REQUIRED_OPTIONS, "bootstrap.servers": address.brokers}
        self._lock = lock
        self._last_error = ""  # the library's last error of a connection
        self._stopping = threading.Event()
        try:
            self._producer: Producer | None = self._new_producer()
        except confluent_kafka.KafkaException as error:
            raise _invalid_setting("usage_stream_options", error.args[0].str()) from error
        self._seen = False  # the topic, by this producer
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="usage-kafka")

    async def acquire(self) -> bool:
        return self._lock is None or await self._lock.acquire()

    async def send(self, rows: Sequence[UsageEntry]) -> None:
        messages = [(row.row.response_id.encode(), msgspec.json.encode(entry_public(row))) for row in rows]
        await asyncio.get_running_loop().run_in_executor(self._worker, self._deliver, messages)

    async def close(self) -> None:
        """Drops rows that are being sent. They are not acknowledged, so they are relayed again at the next start."""
        self._stopping.set()
        await asyncio.get_running_loop().run_in_executor(self._worker, self._discard_producer)
        self._worker.shutdown(wait=False)
        if self._lock is not None:
            await self._lock.close()

    # -- in the worker's thread -------------------------------------------------------------------------------------

    def _new_producer(self) -> Producer:
        return self._library.Producer({**self._options, "error_cb": self._on_error})

    def _on_error(self, error: KafkaError) -> None:
        if error.code() != error._ALL_BROKERS_DOWN:  # follows what says why
            self._last_error = error.str()

    def _deliver(self, messages: Sequence[tuple[bytes, bytes]]) -> None:
        refused: list[KafkaError] = []

        def answered(error: KafkaError | None, _: Message) -> None:
            if error is not None:
                refused.append(error)

        done = False
        try:
            if self._producer is None:
                self._producer, self._seen = self._new_producer(), False
            if not self._seen:
                self._check_topic(self._producer)
            for key, value in messages:
                self._producer.produce(self._topic, key=key, value=value, on_delivery=answered)
            for _ in range(SEND_SLICES):
                if self._producer.flush(SLICE_S) == 0 or self._stopping.is_set():
                    break
            left = len(self._producer)
            if left or refused:
                raise self._unavailable(
                    refused[0] if refused else None, f"{left + len(refused)} rows were not acknowledged"
                )
            done = True
        except (self._library.KafkaException, BufferError) as error:
            raise self._unavailable(error.args[0] if error.args else None, str(error)) from error
        finally:
            if not done:
                self._discard_producer()

    def _check_topic(self, producer: Producer) -> None:
        """Raises Unavailable if the topic is missing. That is a clearer reason than a batch's own time-out would
        give."""
        for left in range(TOPIC_SLICES - 1, -1, -1):
            try:
                about = producer.list_topics(self._topic, timeout=SLICE_S).topics[self._topic].error
            except self._library.KafkaException as error:
                producer.poll(0)  # runs `_on_error`
                if left == 0 or self._stopping.is_set():
                    raise self._unavailable(error.args[0], "no broker answers") from error
                continue
            if about is None or about.code() == about.LEADER_NOT_AVAILABLE:  # made at this moment: rows wait for it
                self._seen = True
                return
            if about.code() == about.UNKNOWN_TOPIC_OR_PART:
                raise self._unavailable(None, 'the topic is not there; make it, or set "allow.auto.create.topics"')
            raise self._unavailable(about, "the topic cannot be used")

    def _unavailable(self, error: KafkaError | None, otherwise: str) -> Unavailable:
        """Returns the error for a failed call. Its text is that of `error`, or `otherwise` if that is None; if this
        says only that it took too long, the connection's last error is added."""
        vague = error is None or error.code() in (error._MSG_TIMED_OUT, error._TRANSPORT, error._TIMED_OUT)
        why = otherwise if error is None else error.str()
        if vague and self._last_error:
            why = f"{why} ({self._last_error})"
        self._last_error = ""
        return Unavailable("usage_stream_away", f"The usage topic {self._where} cannot be written: {why}")

    def _discard_producer(self) -> None:
        if self._producer is not None:
            self._producer.purge()
            self._producer.flush(SLICE_S)
            self._producer = None
