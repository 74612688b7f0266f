"""Sealed answers for a whole cluster on its directory's Valkey or Redis: one script, one round trip, no copies
elsewhere, so that what is dropped is dropped for all.

All keys of a tenant carry the same hash tag. Each tenant is bounded by itself; the sum of these bounds is the memory
that the server needs. `results.lua` decides what is stored and what is dropped.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, Final

from redis.exceptions import RedisError

from actors.directory.address import client_for, parse
from actors.directory.pipelined_connection import NotSent, ReplyLost, Word
from actors.directory.scripts import read_script, run_script
from actors.directory.topology import servers_for
from actors.results.store import StoredResult
from sessions.model.errors import OutcomeUnknown, Unavailable
from sessions.model.types import TenantId

SCRIPT: Final = Path(__file__).parent / "results.lua"


class ValkeyResultStore:
    """A `ResultStore` on Valkey or Redis."""

    def __init__(self, url: str, *, timeout_s: float = 0.25, namespace: str = "sessile") -> None:
        """Raises BadInput for a malformed `url` (`actors.directory.address`). Connects to nothing yet."""
        self._servers = servers_for(client_for(parse(url), timeout_s=timeout_s), timeout_s=timeout_s)
        self._namespace = namespace

    async def get(self, tenant: TenantId, name: bytes) -> bytes | None:
        body = await self._run(tenant, "get", name)
        return None if body is None else bytes(body)

    async def put(self, tenant: TenantId, result: StoredResult, *, ttl_s: int, bytes_max: int) -> None:
        await self._run(tenant, "put", result.name, result.mark, result.body, ttl_s * 1000, bytes_max)

    async def drop(self, tenant: TenantId, mark: bytes | None) -> None:
        await self._run(tenant, "drop", mark or b"")

    async def close(self) -> None:
        await self._servers.close()

    async def _run(self, tenant: TenantId, *words: Word) -> Any:
        tag = hashlib.blake2b(tenant.encode(), digest_size=16).hexdigest()  # a tenant's name may hold a brace
        key = f"{{{self._namespace}:results:{tag}}}"
        try:
            return await run_script(self._servers, read_script(SCRIPT), (key,), *words)
        except ReplyLost as error:
            raise OutcomeUnknown("results_outcome_unknown", "The cached answers' store did not answer.") from error
        except (NotSent, RedisError) as error:
            why = f"The cached answers' store cannot be reached ({type(error).__name__})."
            raise Unavailable("results_unavailable", why) from error
