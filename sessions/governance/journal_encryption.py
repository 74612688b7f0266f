"""The port of what encrypts the journal: its keys, how far rows are under them, and what operators do about them.

`persistence.at_rest` implements it; the operator's API and the command line call it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

import msgspec

from sessions.model.types import TenantId, UnixMs

EncryptionAction = Literal["rotate", "rewrap", "stop", "resume", "destroy"]


class TenantEncryption(msgspec.Struct, frozen=True, kw_only=True):
    """A tenant's keys, and how far its rows are under the one that writes."""

    tenant: TenantId
    keys: int
    destroyed_keys: int
    key_id: str | None
    """The key that its rows were last swept for; None: none yet."""
    changed_rows: int
    finished_at: UnixMs | None


class EncryptionStatus(msgspec.Struct, frozen=True, kw_only=True):
    encrypts: bool
    stopped: bool
    """The sweeps that encrypt older rows are stopped."""
    tenants: Sequence[TenantEncryption]


class EncryptionChange(msgspec.Struct, frozen=True, kw_only=True):
    """How many keys an action changed, and how many it could not."""

    changed: int
    failed: int = 0


class JournalEncryption(Protocol):
    """Every call raises Unavailable."""

    async def status(self) -> EncryptionStatus: ...

    async def act(self, action: EncryptionAction, tenant: TenantId | None) -> EncryptionChange:
        """`rotate`: a new key writes, for the tenant or every one. `rewrap`: every key is wrapped under what wraps
        now. `stop`, `resume`: the sweeps of older rows. `destroy`: the tenant's keys, and with them whatever was
        encrypted under them, in every copy. Raises BadInput for one that lacks its tenant."""
        ...
