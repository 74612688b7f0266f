"""Opens what the gateways of a cluster share. Apart from `valkey`, so that a start on one machine need not wait for
redis' client."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from transport.auth.tickets import Tickets
from transport.history_index import HistoryIndex


@asynccontextmanager
async def open_shared_state(
    directory: str, secret: bytes, clock: Callable[[], float]
) -> AsyncIterator[tuple[Tickets, HistoryIndex]]:
    """Opens the tickets and the history index that all gateways of a cluster share in the directory's Valkey, so that a
    client may come to any of them. `secret` is the key of the hashes by which the index names histories. Raises
    BadInput for a wrong address; a Valkey that does not answer yet is no error."""
    from transport.gateway_store.valkey import ValkeyGatewayStore, ValkeyHistory, ValkeyTickets  # and redis' client

    store = ValkeyGatewayStore(directory, clock=clock)
    try:
        yield ValkeyTickets(store), ValkeyHistory(store, secret)
    finally:
        await store.close()
