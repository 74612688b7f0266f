"""Which sink a URL names."""

from __future__ import annotations

import pytest

from persistence.usage_stream.open_sink import open_usage_sink
from persistence.usage_stream.valkey import ValkeySink
from sessions.model.errors import BadInput


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


def test_options_are_for_kafka_alone() -> None:
    with pytest.raises(BadInput) as refused:
        open_usage_sink("redis://host/0", options="some.toml")
    assert refused.value.param == "usage_stream_options"
