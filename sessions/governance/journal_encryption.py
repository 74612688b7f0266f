"""The port for the encryption of the journal: its keys, how many rows are encrypted with them, and what operators do
about them.

`persistence.at_rest` implements it; the operator's API and the command line call it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

import msgspec

from sessions.model.types import TenantId, UnixMs

EncryptionAction = Literal["rotate", "rewrap", "stop", "resume", "destroy"]


class TenantEncryption(msgspec.Struct, frozen=True, kw_only=True):
    """A tenant's encryption keys, and how far its rows are encrypted with the newest one."""

    tenant: TenantId
    keys: int
    destroyed_keys: int
    key_id: str | None
    """The key that its rows were last swept for; None: there was no sweep yet."""
    changed_rows: int
    finished_at: UnixMs | None


class EncryptionStatus(msgspec.Struct, frozen=True, kw_only=True):
    encrypts: bool
    stopped: bool
    """Whether the sweeps that encrypt older rows are stopped."""
    tenants: Sequence[TenantEncryption]


class EncryptionChange(msgspec.Struct, frozen=True, kw_only=True):
    """How many keys an action changed, and how many it could not change."""

    changed: int
    failed: int = 0


class JournalEncryption(Protocol):
    """The encryption of the journal, as operators see it. Every method raises Unavailable."""

    async def status(self) -> EncryptionStatus: ...

    async def act(self, action: EncryptionAction, tenant: TenantId | None) -> EncryptionChange:
        """Carries out an operator's action for one tenant, or for all if `tenant` is None. `rotate`: a new key encrypts
        from now on. `rewrap`: every key is wrapped by the present wrapper. `stop`, `resume`: the sweeps of older rows.
        `destroy`: the tenant's keys, and so everything encrypted with them, in every copy. Raises BadInput for an
        action that lacks its tenant."""
        ...
