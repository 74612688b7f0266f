"""How connections to PostgreSQL are made, given back and ended. Knows nothing of what they are used for."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import asyncpg


class PooledConnection(asyncpg.Connection):
    """Nothing here changes a connection's state, so giving one back needs no round trip to reset it."""

    def get_reset_query(self) -> str:
        return ""


def terminate(connection: Any) -> None:
    """Ends a connection of the pool, unless it ended by itself: then the pool has taken it back already."""
    with suppress(asyncpg.InterfaceError):
        connection.terminate()


def connection_settings(dsn: str, schema: str, timeout_s: float) -> dict[str, Any]:
    """How every connection is made. Statements are few and their plans fixed: by key, through an index."""
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
