"""Puts together who may come in: the keys file, the key ring, the issuers; and keeps the last two up to date.

The ring is there on every server, so that keys can be made on one that is still open on loopback; it is followed, and
demanded, only where keys are (`demand_keys`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, NamedTuple

from sessions.model.api_keys import ApiKeyStore
from sessions.model.types import Principal, UnixMs
from transport.auth.api_key_cache import ApiKeyCache
from transport.auth.authenticator import Authenticator

if TYPE_CHECKING:
    from transport.auth.jwt_issuers import JwtIssuers


class Credentials(NamedTuple):
    access: Authenticator
    ring: ApiKeyCache


@asynccontextmanager
async def open_credentials(
    store: ApiKeyStore,
    *,
    keys: Mapping[str, Principal],
    demand_keys: bool,
    issuers: str,
    origins: Iterable[str],
    now_ms: Callable[[], UnixMs],
    incarnation: Callable[[], str],
) -> AsyncIterator[Credentials]:
    """`issuers` names a file, or nothing. Raises BadInput for a wrong one, Unavailable where keys cannot be read."""
    clock = asyncio.get_running_loop().time
    ring = ApiKeyCache(store, now_ms=now_ms, clock=clock, incarnation=incarnation)
    tokens = _issuers(issuers, now_ms, clock) if issuers else None
    if demand_keys:
        await ring.refresh()
    if tokens is not None:
        await tokens.load()
    access = Authenticator(
        keys, clock=clock, origins=origins, ring=ring if demand_keys else None, tokens=tokens, now_ms=now_ms
    )
    async with asyncio.TaskGroup() as tasks:
        runs = [ring.run()] if demand_keys else []
        runs += [tokens.run()] if tokens is not None else []
        running = [tasks.create_task(run) for run in runs]
        yield Credentials(access, ring)
        for task in running:
            task.cancel()


def _issuers(path: str, now_ms: Callable[[], UnixMs], clock: Callable[[], float]) -> JwtIssuers:
    """Imported where tokens are let in: PyJWT and its cryptography take a tenth of a second to load."""
    from transport.auth.jwt_issuers import JwtIssuers, read_issuers

    return JwtIssuers(read_issuers(path), now_ms=now_ms, clock=clock)
