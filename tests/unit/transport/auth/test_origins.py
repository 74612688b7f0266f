"""Which pages and host names may use a server."""

from __future__ import annotations

import pytest

from sessions.model.errors import Forbidden
from transport.addresses import is_loopback
from transport.auth.origins import OriginPolicy


@pytest.mark.parametrize(
    "host", ["localhost:8080", "127.0.0.1", "127.0.0.1:1", "[::1]:8080", "LOCALHOST", "box.lan:8080"]
)
def test_an_open_server_answers_on_names_of_this_machine(host: str) -> None:
    OriginPolicy(hosts=["box.lan"]).check_host(host)


@pytest.mark.parametrize(
    "host",
    [
        None,
        "",
        "evil.example",
        "localhost.evil.example",
        "127.0.0.1.evil.example:8080",
        "127.0.0.1/x",
        "0.0.0.0",
        "user@evil.example",
        "[",
    ],
)
def test_an_open_server_answers_on_no_other_name(host: str | None) -> None:
    with pytest.raises(Forbidden):
        OriginPolicy().check_host(host)


@pytest.mark.parametrize(
    "origin",
    [
        None,
        "http://chat.example:8080",
        "https://chat.example:8080",
        "https://Other.Example",
        "HTTP://CHAT.EXAMPLE:8080",
    ],
)
def test_programs_our_own_page_and_listed_pages_may_connect(origin: str | None) -> None:
    OriginPolicy(["https://other.example/"]).check_origin(origin, "chat.example:8080")


@pytest.mark.parametrize(
    "origin",
    [
        "null",
        "",
        "https://evil.example",
        "http://chat.example",
        "http://chat.example:8080.evil.example",
        "file://",
        "chat.example:8080",
    ],
)
def test_other_pages_may_not(origin: str) -> None:
    with pytest.raises(Forbidden):
        OriginPolicy(["https://other.example"]).check_origin(origin, "chat.example:8080")
    OriginPolicy(["*"]).check_origin(origin, "chat.example:8080")


def test_loopback() -> None:
    assert all(is_loopback(host) for host in ("localhost", "127.0.0.1", "127.9.9.9", "::1", "[::1]", "LocalHost"))
    assert not any(
        is_loopback(host) for host in ("0.0.0.0", "::", "", "192.168.1.2", "example.com", "127.0.0.1.nip.io")
    )


@pytest.mark.parametrize(
    ("origin", "host", "same"),
    [
        ("https://chat.example", "chat.example:443", True),
        ("https://chat.example:443", "chat.example", True),
        ("http://chat.example", "chat.example:80", True),
        ("http://[::1]", "[::1]:80", True),
        ("https://chat.example", "chat.example:80", False),
        ("http://chat.example", "chat.example:443", False),
        ("https://chat.example", "chat.example:8443", False),
        ("https://chat.example.evil.example", "chat.example:443", False),
        ("null", "chat.example", False),
    ],
)
def test_a_default_port_may_be_spelled_out(origin: str, host: str, same: bool) -> None:
    policy = OriginPolicy()
    if same:
        policy.check_origin(origin, host)
        return
    with pytest.raises(Forbidden, match="--origins"):
        policy.check_origin(origin, host)
