"""What the gateways of a cluster share, so that it does not matter which one a client reaches: tickets, and the places
of histories. It lies in the directory's Valkey (`transport.gateway_store.valkey`); one process keeps both in its
memory.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator
from typing import NamedTuple

from transport.auth.tickets import Tickets
from transport.openai.history import HistoryIndex


class GatewayStores(NamedTuple):
    tickets: Tickets
    history: HistoryIndex


@contextlib.asynccontextmanager
async def open_gateway_stores(directory: str) -> AsyncIterator[GatewayStores]:
    """By the address of the directory. Raises BadInput where that is wrong; a server that is away may come."""
    from transport.gateway_store.valkey import (  # redis' client takes half a second to load
        ValkeyGatewayStore,
        ValkeyHistory,
        ValkeyTickets,
    )

    store = ValkeyGatewayStore(directory, clock=time.monotonic)
    try:
        yield GatewayStores(ValkeyTickets(store), ValkeyHistory(store))
    finally:
        await store.close()
