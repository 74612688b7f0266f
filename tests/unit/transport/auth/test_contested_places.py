"""Places that strangers share: whoever has most loses, and somebody who has none always gets in."""

from __future__ import annotations

import asyncio

import pytest

from sessions.model.errors import Overloaded
from tests.support.virtual_time import virtual
from transport.auth.contested_places import ContestedPlaces


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
