"""Reads what a user wants a new session to begin with, where their tenant has memories on."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from sessions.governance.end_user_data import EndUserStore
from sessions.limits import LimitsNow
from sessions.model.types import TenantId

MemoryReader = Callable[[TenantId, str], Awaitable[Sequence[str]]]


class LimitsInForce(Protocol):
    @property
    def now(self) -> LimitsNow: ...


def memory_reader(store: EndUserStore, limited: LimitsInForce | None) -> MemoryReader | None:
    """Returns a function that reads an end user's memories if their tenant has them on; it raises Unavailable.
    `limited` None: no limits file, so there are no memories, and None is returned."""
    if limited is None:
        return None
    limits = limited.now

    async def read(tenant: TenantId, user: str) -> Sequence[str]:
        if not limits().of(tenant).memories:
            return ()
        return [memory.text for memory in await store.memories(tenant, user)]

    return read
