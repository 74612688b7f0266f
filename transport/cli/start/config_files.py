"""Files of limits, prices and retention: read strictly at the start, and again whenever they change.

A file that cannot be read, or has something that is not allowed, is refused with what is wrong in it; at the start that
ends the process, later what was in force stays in force. A removed file changes nothing. No file at all (path "")
has a value of its own, and nothing is watched.

    output_tokens = 1024             # limits: reserved where a request names no max_output_tokens

    [default]                        # each tenant that has no table of its own
    tokens_per_minute = 200_000
    user.requests_per_minute = 60    # each of its users

    [default]                        # retention: each tenant that has no table of its own
    deleted_days = 30                # how long a deleted session stays before it is purged
    unlisted_days = 1                # sessions of stateless clients, after so long without a command
    # idle_days = 365                # any session; absent: it stays until it is deleted
    # audit_days = 400               # rows of the audit log; absent: they stay for ever

    [tenants.acme]                   # replaces the whole of [default] for this tenant
    deleted_days = 0
    audit_texts = true               # the audit log holds texts that filters matched, not only their hashes

Every name is in `sessions.limits`, `sessions.governance.retention` and `sessions.billing.prices`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, Generic, TypeVar

import msgspec
import structlog

from sessions.billing.prices import BadPrices, PriceBook, PriceList, read_prices
from sessions.file_watcher import FileWatcher
from sessions.governance.retention import Retention, RetentionPeriods
from sessions.limits import DEFAULT_LIMITS, Limits
from sessions.model.audit import INSTALLATION, Audited, AuditLog
from sessions.model.errors import SessileError
from sessions.model.types import Json, UnixMs
from sessions.routing.models_file import NO_POOLS, ModelPools, read_models
from sessions.setting_files import parse_toml, reason
from transport.auth.connection_shares import ShareLimits
from transport.cli.settings import BadSetting, Settings

BYTES_MAX: Final = 4 << 20
AUDIT_DAYS_MAX: Final = 36_500

T = TypeVar("T")

log = structlog.get_logger(__name__)


class ConfigFile(Generic[T]):
    """A configuration file that is read again when it changes. `value` is its content when it was last read without an
    error."""

    def __init__(
        self,
        setting: str,
        path: str | Path,
        parse: Callable[[str], T],
        without: T,
        *,
        bytes_max: int | None = BYTES_MAX,
        look_s: float = 1.0,
        on_read: Callable[[str | None], Awaitable[None]] | None = None,
    ) -> None:
        """`path` is empty if the setting names no file; `value` is then `without`. `on_read` is called after each later
        reading with the reason for refusing the file, or None. Raises BadSetting if the file cannot be read or is
        wrong."""
        self.value = without
        self._setting = setting
        self._path = str(path)
        self._parse = parse
        self._bytes_max = bytes_max
        self.watcher = FileWatcher(
            path, self._read, self._take, what=setting, refused=(BadSetting,), look_s=look_s, on_read=on_read
        )
        if self._path:
            self.value = self.watcher.first()

    def now(self) -> T:
        return self.value

    async def run(self) -> None:
        """Reads the file again whenever it has changed, until cancelled. Returns at once if the setting names no
        file."""
        if self._path:
            await self.watcher.run()

    def _read(self, path: Path) -> T:
        try:
            if self._bytes_max is not None and (size := path.stat().st_size) > self._bytes_max:
                raise ValueError(f"{size} bytes: at most {self._bytes_max}")
            return self._parse(path.read_text())
        except (OSError, ValueError, msgspec.ValidationError, BadPrices) as error:  # TOML's errors are ValueErrors
            raise BadSetting(f"{self._setting} = {str(path)!r}: {reason(error)}") from error

    async def _take(self, value: T) -> None:
        self.value = value


def limits_file(path: str | Path, default: Limits | None = None) -> ConfigFile[Limits]:
    """Opens the limits file; if `path` is empty, `default` is in force (None: no limits). Raises BadSetting."""
    return ConfigFile("limits", path, parse_limits, default or Limits(), bytes_max=None)


def models_file(path: str | Path) -> ConfigFile[ModelPools]:
    """Opens the models file: which models there are, what their names mean, and who may use them. Raises BadSetting."""
    return ConfigFile("models", path, read_models, NO_POOLS)


def default_limits(settings: Settings) -> Limits | None:
    """Returns the limits of each tenant if no limits file is named: None at a server that demands no keys, else
    `DEFAULT_LIMITS`, because strangers can reach it. All gateways of a cluster have the same limits and count
    together."""
    if not demands_keys(settings):
        return None
    if not settings.limits:
        log.info("limits_defaulted", hint="name a file with --limits; an empty one lifts them")
    return DEFAULT_LIMITS


def demands_keys(settings: Settings) -> bool:
    return settings.auth == "keys" or bool(settings.keys or settings.issuers or settings.oidc_issuer)


def share_limits(settings: Settings) -> ShareLimits:
    return ShareLimits(
        plain_per_address=settings.plain_per_address,
        unauthenticated_per_address=settings.unauthenticated_per_address,
        per_principal=settings.connections_per_principal,
    )


def parse_limits(text: str) -> Limits:
    return msgspec.convert(parse_toml(text), Limits)


def parse_retention(text: str) -> Retention:
    return msgspec.convert(parse_toml(text), Retention)


class PriceFile(ConfigFile[PriceList | None]):
    """The price list, read again when its file changes. `book` has the list in force; it has no prices if no file is
    named."""

    def __init__(self, path: str) -> None:
        """Opens the file; `path` is empty if none is named. Raises BadSetting if it is wrong."""
        super().__init__("prices", path, read_prices, None, look_s=2.0)
        self.book = PriceBook(self.value)

    async def _take(self, value: PriceList | None) -> None:
        self.value = self.book.current = value


class RetentionFile(ConfigFile[Retention]):
    """The retention periods in force. Each reading of the file is written to the audit log."""

    def __init__(
        self,
        path: str,
        *,
        deleted_days: float,
        audit_days: float = 0.0,
        audit: AuditLog,
        now_ms: Callable[[], UnixMs],
    ) -> None:
        """If `path` is empty, deleted sessions stay for `deleted_days` and rows of the audit log for `audit_days` (0:
        for ever). Raises BadSetting."""
        if not path and audit_days and not 1 <= audit_days <= AUDIT_DAYS_MAX:
            raise BadSetting(f"audit_days = {audit_days:g}: 0, or at least 1 and at most {AUDIT_DAYS_MAX}")
        periods = RetentionPeriods(deleted_days=deleted_days, audit_days=audit_days or None)
        super().__init__("retention", path, parse_retention, Retention(default=periods), on_read=self._record)
        self._audit = audit
        self._now_ms = now_ms
        audit.sealer.texts = lambda tenant: self.value.of(tenant).audit_texts

    async def run(self) -> None:
        if self._path:
            await self._record(None)
        await super().run()

    async def _record(self, refused: str | None) -> None:
        """Writes an audit row about the retention in force. `refused` is the reason why the file was refused at this
        reading; None if it was accepted."""
        packed = msgspec.json.encode(self.value, order="sorted")
        version = hashlib.sha256(packed).hexdigest()[:16]
        detail: dict[str, Json] = {"version": version, "tenants": len(self.value.tenants)}
        row = Audited(action="retention.loaded", at=self._now_ms(), detail=detail)
        if refused is not None:
            row = Audited(action="retention.refused", at=row.at, detail=detail | {"error": refused})
        try:
            await self._audit.record(INSTALLATION, [row])
        except SessileError as error:
            log.error("retention_audit_failed", error=error.code)
