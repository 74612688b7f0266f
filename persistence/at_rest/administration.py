"""Operators' actions on the journal's encryption. The port is `sessions.governance.journal_encryption`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from persistence.at_rest.codec import SealingCodec
from persistence.at_rest.sweep import Reencryption
from sessions.governance.journal_encryption import (
    EncryptionAction,
    EncryptionChange,
    EncryptionStatus,
    TenantEncryption,
)
from sessions.model.errors import BadInput
from sessions.model.types import TenantId


class EncryptionAdministration:
    def __init__(
        self,
        codec: SealingCodec,
        sweep: Reencryption,
        rewrap_others: Callable[[], Awaitable[int]],
        forget_tools: Callable[[TenantId], Awaitable[None]],
    ) -> None:
        """`rewrap_others` wraps anew the keys that are stored beside the tenants' keys, and returns how many.
        `forget_tools` removes the tools that a tenant has added, from the memory of every replica too."""
        self._codec = codec
        self._sweep = sweep
        self._rewrap_others = rewrap_others
        self._forget_tools = forget_tools

    async def status(self) -> EncryptionStatus:
        places = {place.tenant: place for place in await self._sweep.status()}
        tenants = []
        for tenant in await self._codec.keys.tenants():
            usable, destroyed = await self._codec.keys.counts(tenant)
            place = places.get(tenant)
            tenants.append(
                TenantEncryption(
                    tenant=tenant,
                    keys=usable,
                    destroyed_keys=destroyed,
                    key_id=None if place is None else place.key_id,
                    changed_rows=0 if place is None else place.changed,
                    finished_at=None if place is None else place.done_at,
                )
            )
        return EncryptionStatus(encrypts=self._codec.writes, stopped=await self._sweep.stopped(), tenants=tenants)

    async def act(self, action: EncryptionAction, tenant: TenantId | None) -> EncryptionChange:
        keys = self._codec.keys
        match action:
            case "rotate":
                tenants = await keys.tenants() if tenant is None else [tenant]
                for each in tenants:
                    await keys.rotate(each)
                return EncryptionChange(changed=len(tenants))
            case "rewrap":
                changed, failed = await keys.rewrap()
                return EncryptionChange(changed=changed + await self._rewrap_others(), failed=failed)
            case "stop" | "resume":
                await self._sweep.stop(action == "stop")
                return EncryptionChange(changed=0)
        if tenant is None:
            raise BadInput("invalid_request", "Name the tenant whose keys are to be destroyed.", param="tenant")
        changed = await keys.destroy(tenant)
        await self._forget_tools(tenant)  # last: nothing about tools may keep keys from being destroyed
        return EncryptionChange(changed=changed)
