"""Whose address counts, what it may take, which pages may ask, and who waits while many come."""

from __future__ import annotations

import asyncio
import heapq

import pytest

from sessions.model.errors import BadInput, Forbidden, Limited, Overloaded
from sessions.model.types import Principal, TenantId
from tests.support.listening_sockets import needs_ipv6
from tests.support.virtual_time import virtual
from transport import arrival_pace
from transport.addresses import bare_host, is_loopback, joined, listened_hosts
from transport.arrival_pace import ABOUT_S, BURST, ArrivalPace
from transport.auth.client_addresses import TrustedProxies, address_group
from transport.auth.connection_shares import ConnectionShares, Place, ShareLimits
from transport.auth.contested_places import ContestedPlaces
from transport.auth.origins import OriginPolicy
from transport.connection_rate import BURST_S, WAIT_MAX_S, ConnectionRate
from transport.http.http_connection import listen_on

PROXIES = TrustedProxies(("10.0.0.0/8", " 2001:db8:1::/48"))


@pytest.mark.parametrize(
    ("peer", "forwarded", "client"),
    [
        ("192.0.2.1", ["203.0.113.9"], "192.0.2.1"),  # no proxy of ours
        (None, ["203.0.113.9"], None),
        ("10.0.0.1", [], "10.0.0.1"),
        ("10.0.0.1", ["203.0.113.9"], "203.0.113.9"),
        ("10.0.0.1", ["1.1.1.1, 203.0.113.9"], "203.0.113.9"),
        ("10.0.0.1", ["1.1.1.1", "203.0.113.9,10.2.3.4"], "203.0.113.9"),
        ("10.0.0.1", ["10.9.9.9, 10.2.3.4"], "10.9.9.9"),
        ("10.0.0.1", ["203.0.113.9:4711"], "203.0.113.9"),
        ("10.0.0.1", ["[2001:db8:2::5]:4711"], "2001:db8:2::5"),
        ("::ffff:10.0.0.1", ["203.0.113.9"], "203.0.113.9"),
        ("2001:db8:1::7", ["2001:db8:2::5"], "2001:db8:2::5"),
        ("10.0.0.1", ["203.0.113.9, unknown"], "10.0.0.1"),
        ("10.0.0.1", ["203.0.113.9, nonsense, 10.2.3.4"], "10.2.3.4"),
        ("10.0.0.1", [""], "10.0.0.1"),
    ],
)
def test_the_last_hop_that_is_no_proxy_of_ours(peer: str | None, forwarded: list[str], client: str | None) -> None:
    assert PROXIES.client(peer, forwarded) == client
    assert TrustedProxies().client(peer, forwarded) == peer


def test_a_network_that_is_none() -> None:
    with pytest.raises(BadInput, match="trusted_proxies"):
        TrustedProxies(("10.0.0.1/8",))


@pytest.mark.parametrize(
    ("address", "group"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8::1", "2001:db8::/64"),
        ("2001:db8:0:0:9::1", "2001:db8::/64"),
        ("testclient", "testclient"),
        (None, ""),
    ],
)
def test_what_an_address_is_counted_by(address: str | None, group: str) -> None:
    assert address_group(address) == group


LIMITS = ShareLimits(plain_per_address=3, unauthenticated_per_address=2, per_principal=2)
ANA = Principal(tenant=TenantId("acme"), key_id="k", user="ana")


def test_a_place_is_given_back_once() -> None:
    shares = ConnectionShares(LIMITS)
    place = shares.open("192.0.2.1", plain=True)
    place.authenticated(ANA)
    place.authenticated(ANA)
    assert (shares.plain, shares.unauthenticated, list(shares.principals.values())) == ({"192.0.2.1": 1}, {}, [1])
    place.close()
    place.close()
    assert not shares.plain and not shares.unauthenticated and not shares.principals


def test_an_upgraded_connection_is_no_plain_one_and_still_a_strangers() -> None:
    shares = ConnectionShares(LIMITS)
    place = shares.open("192.0.2.1", plain=True)
    place.upgraded()
    place.upgraded()
    assert (shares.plain, shares.unauthenticated) == ({}, {"192.0.2.1": 1})
    place.close()
    assert not shares.plain and not shares.unauthenticated


def test_the_greedy_are_refused_and_nobody_else() -> None:
    shares = ConnectionShares(LIMITS)
    places = [shares.open("2001:db8::1", plain=True), shares.open("2001:db8::2", plain=False)]
    with pytest.raises(Overloaded):
        shares.open("2001:db8::3", plain=True)
    shares.open("2001:db8:0:1::1", plain=True).close()
    for place in places:
        place.authenticated(ANA)
    third = shares.open("2001:db8::3", plain=True)
    with pytest.raises(Limited):
        third.authenticated(ANA)
    third.authenticated(None)  # a server without keys counts no principals
    shares.open("2001:db8::4", plain=True).authenticated(None)
    with pytest.raises(Overloaded):
        shares.open("2001:db8::5", plain=True)


def test_users_that_a_key_speaks_for_are_the_key_and_users_of_tokens_are_themselves() -> None:
    shares = ConnectionShares(LIMITS)

    def arrive(key_id: str, user: str) -> Place:
        place = shares.open(None, plain=False)
        place.authenticated(Principal(tenant=TenantId("acme"), key_id=key_id, user=user))
        return place

    arrive("service", "a"), arrive("service", "b")
    with pytest.raises(Limited):
        arrive("service", "c")
    for user in "abc":
        arrive("jwt:https://login.example", user)


def test_trusted_proxies_have_no_share() -> None:
    shares = ConnectionShares(LIMITS, exempt=lambda address: address == "10.0.0.1")
    for _ in range(9):
        shares.open("10.0.0.1", plain=True)
    assert not shares.plain and not shares.unauthenticated


class Holders:
    """Work that lasts until it is ended."""

    def __init__(self, places: ContestedPlaces) -> None:
        self.places = places
        self.ended: list[str] = []

    async def come(self, address: str, name: str = "") -> asyncio.Task[None]:
        begun = asyncio.Event()

        async def hold() -> None:
            try:
                async with self.places.take(address):
                    begun.set()
                    await asyncio.Event().wait()
            except Overloaded:
                self.ended.append(name or address)

        task = asyncio.create_task(hold())
        waits = [asyncio.create_task(begun.wait()), task]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        waits[0].cancel()
        return task


async def done(*tasks: asyncio.Task[None]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@virtual
async def test_an_address_has_a_share_and_a_full_house_takes_from_who_has_most() -> None:
    holders = Holders(ContestedPlaces(4, per_address=3))
    held = [await holders.come("192.0.2.1", f"a{number}") for number in range(4)]
    assert holders.ended == ["a3"], "its own share"
    held += [await holders.come("192.0.2.2", "b0"), await holders.come("192.0.2.2", "b1")]
    await held[0]
    assert holders.ended == ["a3", "a0"] and holders.places.taken == 4
    held += [await holders.come("192.0.2.2", "b2")]
    assert holders.ended[2:] == ["b2"], "nobody has more than it"
    held += [await holders.come("192.0.2.3", "probe")]
    await held[1]
    assert holders.ended[3:] == ["a1"] and holders.places.taken == 4
    await done(*held)
    assert holders.places.taken == 0 and not holders.places._by_address


@virtual
async def test_many_addresses_with_one_place_each_keep_nobody_out() -> None:
    holders = Holders(ContestedPlaces(3, per_address=3))
    held = [await holders.come(f"192.0.2.{number}") for number in range(1, 6)]
    await asyncio.gather(*held[:2])
    assert holders.ended == ["192.0.2.1", "192.0.2.2"] and holders.places.taken == 3
    await done(*held)


@virtual
async def test_work_that_takes_too_long_loses_its_place() -> None:
    places = ContestedPlaces(3, per_address=3)
    with pytest.raises(Overloaded):
        async with places.take("192.0.2.1", 5.0):
            await asyncio.Event().wait()
    with pytest.raises(TimeoutError):
        async with places.take(None, 5.0):
            raise TimeoutError("of the work itself")
    assert places.taken == 0


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


def test_a_literal_has_its_brackets_where_a_port_follows() -> None:
    assert [bare_host(host) for host in ("::1", "[::1]", "localhost", "127.0.0.1")] == [
        *("::1", "::1", "localhost", "127.0.0.1")
    ]
    assert [joined(host, 7) for host in ("::", "[::1]", "localhost")] == ["[::]:7", "[::1]:7", "localhost:7"]


def test_the_ipv6_wildcard_stands_for_both_families() -> None:
    assert list(listened_hosts("::")) == list(listened_hosts("[::]")) == ["::", "0.0.0.0"]
    assert list(listened_hosts("[::1]")) == ["::1"] and list(listened_hosts("0.0.0.0")) == ["0.0.0.0"]


@needs_ipv6
async def test_both_families_have_one_port_that_the_system_chose() -> None:
    listener = await listen_on(asyncio.get_running_loop(), asyncio.Protocol, ("::1", "127.0.0.1"), 0)
    async with listener:
        names = [made.getsockname()[:2] for made in listener.sockets]
        assert sorted(host for host, _ in names) == ["127.0.0.1", "::1"] and len({port for _, port in names}) == 1


FLOOD, OTHER = ("acme", "k"), ("beta", "k")


def test_who_is_alone_never_waits() -> None:
    pace = ArrivalPace()
    assert {pace.enter(FLOOD, 1, 10, 0.0) for _ in range(1_000)} == {0.0}


def test_a_burst_waits_behind_itself_and_not_in_front_of_another() -> None:
    pace = ArrivalPace()
    pace.enter(OTHER, 1, 10, 0.0)
    waits = [pace.enter(FLOOD, 1, 10, 0.0) for _ in range(int(BURST) + 4)]
    assert waits[: int(BURST) + 1] == [0.0] * (int(BURST) + 1)
    assert [round(wait or 0.0, 3) for wait in waits[int(BURST) + 1 :]] == [0.1, 0.2, 0.3]
    assert pace.enter(OTHER, 1, 10, 0.0) == 0.0


def test_what_costs_more_holds_up_what_comes_behind_it() -> None:
    pace = ArrivalPace()
    pace.enter(OTHER, 1, 10, 0.0)
    assert pace.enter(FLOOD, BURST + 20, 10, 0.0) == 0.0
    assert round(pace.enter(FLOOD, 1, 10, 0.0) or 0.0, 6) == 2.0
    assert pace.enter(FLOOD, 1, 10, 3.0) == 0.0


def test_what_would_wait_too_long_is_not_admitted_and_costs_nothing() -> None:
    pace = ArrivalPace()
    pace.enter(OTHER, 1, 1, 0.0)
    pace.enter(FLOOD, BURST + arrival_pace.WAIT_MAX_S + 1, 1, 0.0)
    assert [pace.enter(FLOOD, 1, 1, 0.0) for _ in range(3)] == [None] * 3
    assert pace.enter(FLOOD, 1, 1, 1.0) == arrival_pace.WAIT_MAX_S


def test_nobody_waits_when_other_callers_have_left() -> None:
    pace = ArrivalPace()
    pace.enter(OTHER, 1, 10, 0.0)
    for _ in range(100):
        pace.enter(FLOOD, 1, 10, 0.0)
    assert pace.enter(FLOOD, 1, 10, 0.1) != 0.0
    assert pace.enter(FLOOD, 1, 10, ABOUT_S + 0.1) == 0.0


def storm(count: int, rate: float) -> list[float]:
    """When each of `count`, who all come at once and again when they are told to, is let in."""
    pace, line = ConnectionRate(), [(0.0, number) for number in range(count)]
    heapq.heapify(line)
    entered = []
    for _ in range(count * 50):
        if not line:
            break
        now, number = heapq.heappop(line)
        after_ms = pace.enter(now, rate)
        if after_ms:
            heapq.heappush(line, (now + after_ms / 1000, number))
        else:
            entered.append(now)
    assert not line, "everybody is let in at last"
    return entered


def test_a_storm_is_let_in_at_the_rate_and_hardly_anybody_is_sent_away_twice() -> None:
    entered = storm(1_000, 100.0)
    assert sum(at == 0.0 for at in entered) == 100 * BURST_S
    assert max(entered) <= 10.0 + WAIT_MAX_S / 2
    for begin in range(12):
        assert sum(begin <= at < begin + 1 for at in entered) <= 100 * (BURST_S + 1)


def test_a_storm_larger_than_the_line_comes_in_all_the_same() -> None:
    entered = storm(5_000, 100.0)
    assert len(entered) == 5_000
    assert max(entered) <= 3 * 5_000 / 100


def test_those_who_come_slowly_never_wait() -> None:
    pace = ConnectionRate()
    assert all(pace.enter(number / 90, 100.0) == 0 for number in range(1_000))
    assert sum(pace.enter(20.0, 100.0) == 0 for _ in range(500)) == 200


def test_who_only_asks_hears_the_wait_and_takes_nobodys_turn() -> None:
    pace = ConnectionRate()
    assert [pace.wait(0.0, 10.0) for _ in range(100)] == [0] * 100
    while not pace.enter(0.0, 10.0):
        pass
    assert pace.wait(0.0, 10.0) == pace.wait(0.0, 10.0) > 0
    assert pace.enter(0.0, 10.0) == pace.wait(0.0, 10.0) - 100
    assert pace.wait(60.0, 10.0) == 0
