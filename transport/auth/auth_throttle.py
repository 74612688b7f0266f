"""Rate-limits failed authentications per address.

A bucket of failures per address; IPv6 counts by /64, which is what one customer has. Over the bucket a failure is
answered `rate_limited` instead of `unauthorized`, and a credential that costs a signature check is not looked at.

A good key is let in whatever its address did: secrets of 256 bits are not guessed, so locking an address out would only
let one user of a shared address (an office, a proxy) lock out the rest. What is limited is work and log lines.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final

import msgspec

from sessions.model.errors import Limited
from transport.auth.client_addresses import address_group


class AuthThrottleLimits(msgspec.Struct, frozen=True, kw_only=True):
    failures: int = 20  # that an address may make at once
    refill_s: float = 3.0  # seconds after which it may make one more
    addresses_max: int = 10_000  # remembered; the one that failed longest ago is forgotten first


class AuthThrottle:
    """Counts wrong credentials per address, and refuses further ones of an address that sent too many. `clock` is
    monotonic, in seconds."""

    def __init__(self, *, clock: Callable[[], float], limits: AuthThrottleLimits | None = None) -> None:
        self._clock = clock
        self.limits: Final = limits or AuthThrottleLimits()
        self._spent: OrderedDict[str, tuple[float, float]] = OrderedDict()  # (failures, as of when), by address group

    def check(self, address: str | None) -> None:
        """Raises Limited if an address had too many failures."""
        wait_s = self._wait_s(address_group(address))
        if wait_s > 0:
            raise Limited(
                "rate_limited", "Too many wrong keys from this address.", retry_after_ms=round(wait_s * 1000) + 1
            )

    def failed(self, address: str | None) -> None:
        """Counts a failure of an address. Raises Limited if it had too many before."""
        name = address_group(address)
        self.check(address)
        spent = self._now(name) + 1
        self._spent[name] = (spent, self._clock())
        self._spent.move_to_end(name)
        if len(self._spent) > self.limits.addresses_max:
            self._spent.popitem(last=False)

    def forgive(self, address: str | None) -> None:
        """Takes back a failure that was counted in advance."""
        name = address_group(address)
        if name in self._spent:
            self._spent[name] = (max(0.0, self._now(name) - 1), self._clock())

    def _now(self, name: str) -> float:
        spent, at = self._spent.get(name, (0.0, 0.0))
        return max(0.0, spent - (self._clock() - at) / self.limits.refill_s)

    def _wait_s(self, name: str) -> float:
        return max(0.0, self._now(name) + 1 - self.limits.failures) * self.limits.refill_s
