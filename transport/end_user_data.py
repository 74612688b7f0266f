"""What a gateway has at hand to tell or erase everything of one end user."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple

import structlog

from sessions.billing.metering import UsageStore
from sessions.governance.end_user_data import EndUserStore
from sessions.model.audit import AuditLog
from sessions.model.errors import SessileError
from sessions.ports import Journal

log = structlog.get_logger(__name__)


class EndUserStores(NamedTuple):
    """`erase` is the sweep of a replica in the same process; in a cluster replicas sweep by themselves."""

    personal: EndUserStore
    journal: Journal
    usage: UsageStore
    audit: AuditLog
    erase: Callable[[], Awaitable[int]] | None = None

    async def sweep(self) -> None:
        """Begins at once where it can; what fails here is tried again by the sweeps."""
        if self.erase is not None:
            try:
                await self.erase()
            except SessileError as error:
                log.warning("erasure_later", error=error.code)
