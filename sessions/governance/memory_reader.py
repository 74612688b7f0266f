"""Reads what a user wants a new session to begin with, where their tenant has memories on."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from sessions.governance.end_user_data import EndUserStore
from sessions.limits import LimitsNow
from sessions.model.types import TenantId

MemoryReader = Callable[[TenantId, str], Awaitable[Sequence[str]]]


def memory_reader(store: EndUserStore, limits: LimitsNow | None) -> MemoryReader | None:
    """None: nobody has chosen anything. What it returns raises Unavailable."""
    if limits is None:
        return None

    async def read(tenant: TenantId, user: str) -> Sequence[str]:
        if not limits().of(tenant).memories:
            return ()
        return [memory.text for memory in await store.memories(tenant, user)]

    return read
