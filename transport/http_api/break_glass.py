"""Break glass: an operator enters another tenant's affairs, and both tenants can read why.

Whether they may is `sessions.model.authorization.demand_custody`'s business; here is what is written down, before
anything is shown.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import Query

from sessions.model.audit import Action, Audited
from sessions.model.authorization import is_foreign
from sessions.model.types import Principal, TenantId
from transport.gateway import Gateway

Reason = Annotated[str | None, Query(max_length=512)]


async def record_break_glass(
    gateway: Gateway, principal: Principal, owner: TenantId, action: Action, reason: str | None
) -> None:
    """Records that an operator acts in another tenant: one audit row in that tenant's log, one in the operator's.
    Does nothing for their own tenant. The rows are durable when it returns. Raises Unavailable."""
    if is_foreign(principal, owner):
        detail = {"tenant": owner, "for": action, "reason": reason}
        row = Audited(action="access.break_glass", at=gateway.now_ms(), by=principal, detail=detail)
        for tenant in (owner, principal.tenant):
            await gateway.store.audit.record(tenant, [row])
