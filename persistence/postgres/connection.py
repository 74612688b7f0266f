"""How connections to PostgreSQL are made, given back and ended. Knows nothing of what they are used for."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import asyncpg


class PooledConnection(asyncpg.Connection):
    """A connection whose state nobody changes, so that giving it back to the pool needs no round trip to reset it."""

    def get_reset_query(self) -> str:
        return ""


def terminate(connection: Any) -> None:
    """Ends a connection of the pool. Does nothing if it ended by itself, since the pool then knows it already."""
    with suppress(asyncpg.InterfaceError):
        connection.terminate()


def connection_settings(dsn: str, schema: str, timeout_s: float) -> dict[str, Any]:
    """Returns asyncpg's settings for every connection. They suit few statements with fixed plans, each by key through
    an index."""
    server_timeout_ms = str(int(timeout_s * 800))
    return {
        "dsn": dsn,
        "timeout": timeout_s,
        "command_timeout": timeout_s,
        "target_session_attrs": "read-write",
        "server_settings": {
            "application_name": "sessile",
            "search_path": f'"{schema}"',
            "synchronous_commit": "on",
            "statement_timeout": server_timeout_ms,
            "lock_timeout": server_timeout_ms,
            "idle_in_transaction_session_timeout": server_timeout_ms,
            "plan_cache_mode": "force_generic_plan",
            "enable_seqscan": "off",
            "enable_hashjoin": "off",
            "enable_mergejoin": "off",
            "jit": "off",
        },
    }
