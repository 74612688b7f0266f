"""Opens the sink of usage rows that a URL names."""

from __future__ import annotations

from typing import Any

from persistence.usage_stream.kafka import KafkaSink, parse_kafka_address, read_kafka_options
from persistence.usage_stream.relay import UsageSink
from persistence.usage_stream.relay_lock import ValkeyRelayLock
from persistence.usage_stream.valkey import ValkeySink
from sessions.model.errors import BadInput


def open_usage_sink(url: str, *, options: str = "", turns_at: Any = None) -> UsageSink:
    """`redis://…` or `rediss://…` (`?stream=NAME` names the stream), or `kafka://host:9092/TOPIC` with a file of
    `options`. `turns_at`, a client of redis-py, is where several relays to Kafka take turns. Raises BadInput."""
    scheme, _, rest = url.partition("://")
    if scheme == "kafka":
        address = parse_kafka_address(url)
        turns = None if turns_at is None else ValkeyRelayLock(turns_at, f"sessile:usage:relay:{address.topic}")
        return KafkaSink(address, read_kafka_options(options) if options else {}, turns=turns)
    if scheme in ("redis", "rediss", "valkey", "valkeys"):
        if options:
            raise BadInput("invalid_setting", "usage_stream_options: only for kafka://", param="usage_stream_options")
        place, _, query = rest.partition("?stream=")
        return ValkeySink(f"{scheme.replace('valkey', 'redis')}://{place}", **({"stream": query} if query else {}))
    known = "redis://host:6379/0?stream=NAME and kafka://host:9092/TOPIC are known"
    raise BadInput("invalid_setting", f"usage_stream: {known}", param="usage_stream")
