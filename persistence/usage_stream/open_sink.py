"""Opens the sink of usage rows that a URL names."""

from __future__ import annotations

from typing import Any

from persistence.usage_stream.kafka import KafkaSink, parse_kafka_address, read_kafka_options
from persistence.usage_stream.relay import UsageSink
from persistence.usage_stream.relay_lock import ValkeyRelayLock
from persistence.usage_stream.valkey import ValkeySink
from sessions.model.errors import BadInput


def open_usage_sink(url: str, *, options: str = "", lock_client: Any = None) -> UsageSink:
    """Opens the sink of a URL: `redis://…` or `rediss://…` (`?stream=NAME` names the stream), or
    `kafka://host:9092/TOPIC` with `options`, the path of a file of librdkafka's options. `lock_client` is a redis-py
    client for the lock if several processes relay to Kafka. Raises BadInput."""
    scheme, _, rest = url.partition("://")
    if scheme == "kafka":
        address = parse_kafka_address(url)
        lock = None if lock_client is None else ValkeyRelayLock(lock_client, f"sessile:usage:relay:{address.topic}")
        return KafkaSink(address, read_kafka_options(options) if options else {}, lock=lock)
    if scheme in ("redis", "rediss", "valkey", "valkeys"):
        if options:
            raise BadInput("invalid_setting", "usage_stream_options: only for kafka://", param="usage_stream_options")
        place, _, query = rest.partition("?stream=")
        return ValkeySink(f"{scheme.replace('valkey', 'redis')}://{place}", **({"stream": query} if query else {}))
    known = "redis://host:6379/0?stream=NAME and kafka://host:9092/TOPIC are known"
    raise BadInput("invalid_setting", f"usage_stream: {known}", param="usage_stream")
