"""The shares of addresses and principals: what is taken, what is given back, who is refused."""

from __future__ import annotations

import pytest

from sessions.model.errors import Limited, Overloaded
from sessions.model.types import Principal, TenantId
from transport.auth.connection_shares import ConnectionShares, Place, ShareLimits

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
