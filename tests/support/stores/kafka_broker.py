"""A broker that speaks Kafka's protocol over TCP, as a process of its own, and a consumer of all that a topic has.

    python -m tests.support.stores.kafka_broker TOPIC  # prints `Kafka is ready: 127.0.0.1:PORT`; ends with its input

It is librdkafka's mock cluster, which comes in the wheel of its client: real sockets, requests and acknowledgements, an
idempotent producer's sequence numbers included, everything kept in memory, a port of its own choosing. It is no Apache
Kafka: it does not replicate, store, authenticate or speak TLS.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import confluent_kafka
import msgspec

from tests.support.stores.usage_rows import UsageRows

ROOT: Final = Path(__file__).resolve().parents[3]
READY: Final = "Kafka is ready: "
QUIET: Final = {"log_level": 0}
WAIT_S: Final = 60.0


class KafkaBroker:
    """The process: `start` gives it an address, a killed one has forgotten everything."""

    def __init__(self, topic: str) -> None:
        self._topic = topic
        self._process: subprocess.Popen[str] | None = None
        self.address = ""

    def start(self) -> str:
        command = [sys.executable, "-m", "tests.support.stores.kafka_broker", self._topic]
        self._process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(READY):
                self.address = line.removeprefix(READY).strip()
                return self.address
        raise RuntimeError(f"the broker ended with {self._process.wait()} before it was ready")

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    def kill(self) -> None:
        if self._process is not None:
            os.kill(self._process.pid, signal.SIGCONT)
            self._process.kill()
            self._process.communicate()
            self._process = None

    def pause(self) -> None:
        """It goes silent: connections stay, nothing is answered once this returns."""
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGSTOP)
        os.waitpid(self._process.pid, os.WUNTRACED)  # its threads run on until the last of them has stopped

    def resume(self) -> None:
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGCONT)


class KafkaConsumer(UsageRows):
    """Reads a topic from its beginning."""

    def __init__(self, address: str, topic: str) -> None:
        super().__init__()
        self._topic = topic
        self._client = confluent_kafka.Consumer(
            {"bootstrap.servers": address, "group.id": "consumer", "enable.auto.commit": False, **QUIET}
        )

    async def run(self) -> None:
        await asyncio.to_thread(self._begin)
        while not self._stopped:
            for message in await asyncio.to_thread(self._client.consume, 500, 0.2):
                if message.error() is None:
                    self._read(message.key(), message.value())

    def _begin(self) -> None:
        about = self._client.list_topics(self._topic, timeout=WAIT_S).topics[self._topic]
        beginning = confluent_kafka.OFFSET_BEGINNING
        self._client.assign(
            [confluent_kafka.TopicPartition(self._topic, number, beginning) for number in about.partitions]
        )

    def _read(self, key: bytes | None, value: bytes | None) -> None:
        assert key is not None and value is not None
        row = msgspec.json.decode(value)
        if key.decode() != row["response_id"]:
            self.faults.append(f"{key!r} is the key of {row['response_id']}")
        self.take(row)

    async def close(self) -> None:
        await asyncio.to_thread(self._client.close)


def main() -> None:
    topic = sys.argv[1]
    mock: dict[str, Any] = {"test.mock.num.brokers": 1, **QUIET}
    cluster = confluent_kafka.Producer(mock)
    (broker,) = cluster.list_topics(topic, timeout=WAIT_S).brokers.values()  # asking for a topic makes it
    print(f"{READY}{broker.host}:{broker.port}", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
