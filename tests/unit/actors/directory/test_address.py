"""Addresses of a directory: what is understood, and that what is not is refused with a message that helps."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis.asyncio import Redis, RedisCluster
from redis.asyncio.connection import SSLConnection, UnixDomainSocketConnection
from redis.asyncio.sentinel import SentinelConnectionPool, SentinelManagedSSLConnection

from actors.directory.address import Address, connect, parse
from sessions.model.errors import BadInput


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
