"""Circuit breakers of tools for a whole cluster, on its directory's Valkey or Redis: one script, one round trip, the
server's clock. A tool that fails at one replica gets no calls from any.

Each breaker is one key, and is forgotten an hour after its last failure. Does not know what counts as a failure, or
what holds while the server is away (`inference.tools.gates`).
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final

from redis.exceptions import RedisError

from actors.directory.address import client_for, parse
from actors.directory.pipelined_connection import NotSent, ReplyLost, Word
from actors.directory.scripts import read_script, run_script
from actors.directory.topology import servers_for
from sessions.model.errors import Unavailable
from sessions.model.types import TenantId

SCRIPT: Final = Path(__file__).parent / "tool_breakers.lua"


class ValkeyBreakers:
    """The breakers of a cluster's tools; implements `inference.tools.breaker.SharedBreakers`."""

    def __init__(self, url: str, *, timeout_s: float = 0.25, namespace: str = "sessile") -> None:
        """Raises BadInput for a malformed `url` (`actors.directory.address`). Connects to nothing yet."""
        self._servers = servers_for(client_for(parse(url), timeout_s=timeout_s), timeout_s=timeout_s)
        self._namespace = namespace

    async def permits(self, tenant: TenantId, tool: str, *, failures_max: int, pause_s: float) -> bool:
        return bool(await self._run(tenant, tool, "permits", failures_max, int(pause_s * 1000)))

    async def record(self, tenant: TenantId, tool: str, *, success: bool, failures_max: int, pause_s: float) -> None:
        await self._run(tenant, tool, "record", failures_max, int(pause_s * 1000), int(success))

    async def close(self) -> None:
        await self._servers.close()

    async def _run(self, tenant: TenantId, tool: str, *words: Word) -> int:
        name = hashlib.blake2b(f"{tenant}\0{tool}".encode(), digest_size=16).hexdigest()
        key = f"{self._namespace}:tool_breakers:{name}"
        try:
            return int(await run_script(self._servers, read_script(SCRIPT), (key,), *words))
        except (NotSent, ReplyLost, RedisError) as error:
            message = f"The breakers of tools cannot be reached ({type(error).__name__})."
            raise Unavailable("breakers_unavailable", message) from error
