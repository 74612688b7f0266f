"""Finds what is personal in a text that is to be kept for others: personal data and secrets of every kind that patterns
know, whatever the policy does about them, and people and places where the policy has these found.

Beyond `TEXT_MAX` code points a text is taken for personal: it is not read here. Does not know what is done then.
"""

from __future__ import annotations

import asyncio
from typing import Final, Protocol, runtime_checkable

from inference.moderation.input_filter import scan_message
from inference.moderation.policy import KindsRule, PolicySide
from inference.moderation.scan import Scanner
from sessions.model.types import Principal
from sessions.ports import FilterSet

TEXT_MAX: Final = 65_536


@runtime_checkable
class NamesPeople(Protocol):
    async def names_people(self, principal: Principal, text: str) -> bool: ...


class PersonalTexts:
    """Finds personal data in texts of any tenant, by the policies that `filters` know."""

    def __init__(self, filters: FilterSet) -> None:
        self._scanner = Scanner(PolicySide(pii=KindsRule(action="flag"), secrets=KindsRule(action="flag")))
        self._filters = filters

    async def is_personal(self, principal: Principal, text: str) -> bool:
        """Returns whether a text holds personal data. Looks off the event loop."""
        if len(text) > TEXT_MAX:
            return True
        if len(await asyncio.to_thread(scan_message, self._scanner, text)) > 0:
            return True
        return isinstance(self._filters, NamesPeople) and await self._filters.names_people(principal, text)
