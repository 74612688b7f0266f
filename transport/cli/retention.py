"""The retention file: read strictly, and read again whenever it changes.

    [default]                        # each tenant that has no table of its own
    deleted_days = 30                # how long a deleted session stays before it is purged
    unlisted_days = 1                # sessions of stateless clients, after so long without a word
    # idle_days = 365                # any session; absent: it stays until somebody deletes it
    # audit_days = 400               # rows of the audit log; absent: they stay for ever

    [tenants.acme]                   # replaces the whole of [default] for this tenant
    deleted_days = 0
    audit_texts = true               # the audit log holds texts that filters found, not only their hashes

A file that cannot be read, or says something that is not allowed, is refused with what is wrong in it; at the start
that ends the process, later what was in force stays in force. A file that is gone changes nothing.
"""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec
import structlog

from sessions.file_watcher import FileWatcher
from sessions.governance.retention import Retention, RetentionPeriods
from sessions.model.audit import INSTALLATION, Action, Audited, AuditLog
from sessions.model.errors import SessileError
from sessions.model.types import Json, UnixMs
from transport.cli.settings import BadSetting

BYTES_MAX: Final = 4 << 20
AUDIT_DAYS_MAX: Final = 36_500

log = structlog.get_logger(__name__)


def read_retention(path: Path) -> Retention:
    """Raises BadSetting, which says what is wrong and where."""
    try:
        if (size := path.stat().st_size) > BYTES_MAX:
            raise ValueError(f"{size} bytes: at most {BYTES_MAX}")
        return msgspec.convert(tomllib.loads(path.read_text()), Retention)
    except (OSError, ValueError, msgspec.ValidationError) as error:  # TOML's errors are ValueErrors
        raise BadSetting(f"retention = {str(path)!r}: {error}") from error


class RetentionFile:
    """What the file said when it was last whole. `path` "": everybody's deleted sessions stay for `deleted_days`,
    and their rows of the audit log for `audit_days` (0: for ever)."""

    def __init__(
        self,
        path: str,
        *,
        deleted_days: float,
        audit_days: float = 0.0,
        audit: AuditLog,
        now_ms: Callable[[], UnixMs],
    ) -> None:
        """Raises BadSetting for a file that is wrong from the start."""
        self.watched = FileWatcher(
            path, read_retention, self._take, what="retention", refused=(BadSetting,), on_read=self._told
        )
        self._watches = bool(path)
        self._audit = audit
        self._now_ms = now_ms
        if not path and audit_days and not 1 <= audit_days <= AUDIT_DAYS_MAX:
            raise BadSetting(f"audit_days = {audit_days:g}: 0, or at least 1 and at most {AUDIT_DAYS_MAX}")
        kept = RetentionPeriods(deleted_days=deleted_days, audit_days=audit_days or None)
        self._retention = self.watched.first() if path else Retention(default=kept)
        audit.sealer.texts = lambda tenant: self._retention.of(tenant).audit_texts

    def now(self) -> Retention:
        return self._retention

    async def run(self) -> None:
        """Looks every second. Returns at once where there is no file; ends otherwise only by cancellation."""
        if self._watches:
            await self._told(None)
            await self.watched.run()

    async def _take(self, retention: Retention) -> None:
        self._retention = retention

    async def _told(self, refused: str | None) -> None:
        """Writes down what became of the file."""
        packed = msgspec.json.encode(self._retention, order="sorted")
        in_force: dict[str, Json] = {
            "version": hashlib.sha256(packed).hexdigest()[:16],
            "tenants": len(self._retention.tenants),
        }
        action: Action = "retention.loaded" if refused is None else "retention.refused"
        detail = in_force if refused is None else in_force | {"error": refused}
        try:
            await self._audit.record(INSTALLATION, [Audited(action=action, at=self._now_ms(), detail=detail)])
        except SessileError as error:
            log.error("retention_not_audited", error=error.code)
