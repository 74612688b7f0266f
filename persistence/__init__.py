"""Stores: the durable log of every session and the tables beside it, in memory, in SQLite or in PostgreSQL.

Decides how rows become durable and in which transaction (I1, I2); never what an event means, nor who owns a session.
Start with `open_store.py`, which picks a driver by URL. `sqlite/` and `postgres/` each have a `database.py`
(connections, group commits) under a `journal.py`; SQL that both understand is in `sql/`. `usage_stream/` passes usage
rows on.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from persistence.open_store import (
        KeyStore,
        OpenableStores,
        Reach,
        connect_store,
        make_stores,
        offline_stores,
        open_and_replicate,
        open_key_store,
        reach_once,
    )

__all__ = [
    "KeyStore",
    "OpenableStores",
    "Reach",
    "connect_store",
    "make_stores",
    "offline_stores",
    "open_and_replicate",
    "open_key_store",
    "reach_once",
]


def __getattr__(name: str) -> Any:
    """Imports the drivers when a name of this package is first used, because a command that reads a folder's lock needs
    none of them."""
    if name not in __all__:
        raise AttributeError(name)
    return getattr(importlib.import_module("persistence.open_store"), name)
