"""What is refused of a Kafka address and its options. The broker is in the integration tests."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from persistence.usage_stream.kafka import RESERVED_OPTIONS, KafkaAddress, parse_kafka_address, read_kafka_options
from persistence.usage_stream.open_sink import open_usage_sink
from sessions.model.errors import BadInput


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
    with pytest.raises(BadInput, match="only for kafka://"):
        open_usage_sink("redis://host/0", options="some.toml")


def test_without_the_package_it_is_said_what_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    with pytest.raises(BadInput, match="make setup-kafka"):
        open_usage_sink("kafka://host/bills")
