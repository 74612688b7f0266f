"""Shares out a bounded number of places among strangers, so that nobody is kept out by others.

An address has at most its own share. Where all places are taken, the address with the most of them loses the one that
it has had longest to whoever comes with fewer: a flood crowds out itself, from however many addresses it comes, and a
probe of a load balancer always gets in.

    16 places: a has 15, b has 1; b comes again   the oldest of a ends
                                  a comes again   a is refused

Belongs to one event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from sessions.model.errors import Overloaded
from transport.auth.client_addresses import address_group
from transport.auth.connection_shares import RETRY_MS


class ContestedPlaces:
    """A bounded number of places for work that needs no key. Work runs inside `take`."""

    def __init__(self, places: int, *, per_address: int) -> None:
        self._places = places
        self._per_address = per_address
        self._taken = 0
        self._by_address: dict[str, dict[asyncio.Timeout, None]] = {}  # by address group, the oldest first

    @property
    def taken(self) -> int:
        return self._taken

    @asynccontextmanager
    async def take(self, address: str | None, seconds: float | None = None) -> AsyncGenerator[None, None]:
        """Takes a place for the time of the block. Raises Overloaded if there is none for this address, if another
        address takes it over, or after `seconds`."""
        name = address_group(address)
        own = self._by_address.get(name, {})
        if len(own) >= self._per_address or (self._taken >= self._places and not self._make_room(len(own))):
            raise _overloaded()
        self._by_address.setdefault(name, own)
        place = asyncio.timeout(seconds)
        try:
            async with place:
                own[place] = None
                self._taken += 1
                try:
                    yield
                finally:
                    self._give_back(name, place)
        except TimeoutError as error:
            if not place.expired():
                raise
            raise _overloaded() from error

    def _make_room(self, held: int) -> bool:
        """Ends the oldest work of the address with the most places, if those are more than `held`. Returns whether it
        did."""
        name = max(self._by_address, key=lambda each: len(self._by_address[each]))
        if len(self._by_address[name]) <= held:
            return False
        place = next(iter(self._by_address[name]))
        self._give_back(name, place)
        place.reschedule(0.0)
        return True

    def _give_back(self, name: str, place: asyncio.Timeout) -> None:
        own = self._by_address.get(name, {})
        if place in own:
            del own[place]
            self._taken -= 1
            if not own:
                del self._by_address[name]


def _overloaded() -> Overloaded:
    return Overloaded("overloaded", "Too many of these requests at a time.", retry_after_ms=RETRY_MS)
