"""Reads the memories with which a user's new session begins, if their tenant has memories on."""

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
    """Returns a function that reads an end user's memories, none if their tenant has memories off; it raises
    Unavailable. Returns None if `limited` is None: without a limits file there are no memories."""
    if limited is None:
        return None
    limits = limited.now

    async def read(tenant: TenantId, user: str) -> Sequence[str]:
        if not limits().of(tenant).memories:
            return ()
        return [memory.text for memory in await store.memories(tenant, user)]

    return read
