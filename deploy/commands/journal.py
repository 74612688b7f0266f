"""Carries out the commands that work on a journal no server has open, or through a running server.

The server is the one of `--url`, or the one that runs on the data folder of the settings. Part of the entry point: it
opens the store that the settings name. Each returns the status to exit with, and raises BadSetting and SessileError.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec

from persistence.folder_lock import address_of_server
from sessions.model.types import TenantId, UnixMs
from transport.cli import audit, commands, encryption, keys, tokens, users
from transport.cli.settings import Settings

if TYPE_CHECKING:
    from sessions.store import Store

NowMs = Callable[[], UnixMs]


async def run_journal_command(
    options: msgspec.Struct, settings: Settings, now_ms: NowMs, environment: Mapping[str, str]
) -> int:
    match options:
        case commands.ReconcileUsage():
            return await _reconcile_usage(settings, options, now_ms)
        case commands.RestoreReplica(url=url, at=at):
            from persistence.sqlite.replication import restore_replica

            await asyncio.to_thread(restore_replica, url, Path(settings.data), environment=environment, at=at)
            print(f"{settings.data} has the journal; put keys.db and master.key beside it, then start the server")
            return 0
        case users.ExportUser() | users.EraseUser():
            return await _run_users_command(settings, options, now_ms)
        case encryption.ChangeMasterKey(change):
            _change_master_key(settings, change)
            return 0
        case (
            encryption.ShowEncryption()
            | encryption.RotateKeys()
            | encryption.RewrapKeys()
            | encryption.StopSweep()
            | encryption.ResumeSweep()
            | encryption.DestroyKeys()
        ):
            return await _run_encryption_command(settings, options, now_ms)
        case audit.ListRows() | audit.VerifyChain():
            return await _run_audit_command(settings, options, now_ms)
        case tokens.RevokeTokens() | tokens.ListRevocations():
            return await _run_tokens_command(settings, options, now_ms)
        case keys.CreateKey() | keys.ListKeys() | keys.ShowKey() | keys.RevokeKey():
            return await _run_keys_command(settings, options, now_ms)
    raise AssertionError(options)


Command = TypeVar(
    "Command",
    bound=users.UserCommand | audit.AuditCommand | encryption.EncryptionCommand | tokens.TokenCommand | keys.KeyCommand,
)


def _addressed(command: Command, settings: Settings) -> Command:
    """The command with the URL of the server that has the settings' data folder open, where one has and no other one is
    named."""
    if command.url or settings.journal != "sqlite":
        return command
    url = address_of_server(Path(settings.data))
    if not url:
        return command
    print(f"Through the server that runs on {settings.data}: {url}", file=sys.stderr)
    return msgspec.structs.replace(command, url=url)


@asynccontextmanager
async def _own_journal(settings: Settings, now_ms: NowMs, *, made: bool = False) -> AsyncIterator[Store]:
    """The store of the settings, which no server has open. `made`: it is made where there is none."""
    from persistence import connect_store
    from transport.cli.start.preflight import check_journal_exists

    check_journal_exists(settings, made=made)
    async with connect_store(settings, now_ms) as store:
        yield store


def _change_master_key(settings: Settings, change: str) -> None:
    from persistence.master_key import add_master_key, drop_older_master_keys

    path = Path(settings.master_key) if settings.master_key else Path(settings.data) / "master.key"
    if change == "add":
        print(f"{path} begins with the new key {add_master_key(path).id}; now run `encryption rewrap`")
    else:
        print(f"{drop_older_master_keys(path)} older keys are dropped from {path}")


async def _reconcile_usage(settings: Settings, command: commands.ReconcileUsage, now_ms: NowMs) -> int:
    """Compares the usage rows with the logs and prints what differs."""
    from sessions.billing.reconcile import reconcile
    from transport.cli.reconciliation_text import reconciled_text

    async with _own_journal(settings, now_ms) as store:
        tenant = TenantId(command.tenant) if command.tenant else None
        result = await reconcile(store.journal, store.usage, tenant=tenant)
    print(msgspec.json.encode(result).decode() if command.as_json else reconciled_text(result))
    return 1 if result.num_differences else 0


async def _run_users_command(settings: Settings, command: users.UserCommand, now_ms: NowMs) -> int:
    command = _addressed(command, settings)
    if command.url:
        return await asyncio.to_thread(users.run_on_server, command, settings.api_key)
    async with _own_journal(settings, now_ms) as store:
        return await users.run_on_journal(store, command, now_ms, shared="://" in settings.journal)


async def _run_audit_command(settings: Settings, command: audit.AuditCommand, now_ms: NowMs) -> int:
    command = _addressed(command, settings)
    if command.url:
        results = await audit.run_on_server(command, settings.api_key)
    else:
        async with _own_journal(settings, now_ms) as store:
            results = await audit.run_on_journal(store.audit, command)
    print(audit.format_audit(command, results))
    return 1 if audit.is_broken(command, results) else 0


async def _run_encryption_command(settings: Settings, command: encryption.EncryptionCommand, now_ms: NowMs) -> int:
    command = _addressed(command, settings)
    if command.url:
        result = await encryption.run_on_server(command, settings.api_key)
    else:
        from persistence import offline_stores
        from transport.cli.start.preflight import check_journal_exists

        check_journal_exists(settings)
        stores = offline_stores(settings, now_ms)
        async with stores.opened() as store:
            administration = stores.administration(stores.reencryption())
            result = await encryption.run_on_journal(administration, store, command, now_ms())
    print(encryption.format_encryption(command, result))
    return 0


async def _run_tokens_command(settings: Settings, command: tokens.TokenCommand, now_ms: NowMs) -> int:
    command = _addressed(command, settings)
    if command.url:
        result = await tokens.run_on_server(command, settings.api_key, now_ms())
    else:
        async with _own_journal(settings, now_ms) as store:
            result = await tokens.run_on_journal(store, command, now_ms())
    print(tokens.format_revocations(result, as_json=command.as_json))
    return 0


async def _run_keys_command(settings: Settings, command: keys.KeyCommand, now_ms: NowMs) -> int:
    command = _addressed(command, settings)
    if command.url:
        result = await keys.run_on_server(command, settings.api_key, now_ms())
    else:
        from transport.auth.api_key_cache import ApiKeyCache

        async with _own_journal(settings, now_ms, made=isinstance(command, keys.CreateKey)) as store:  # the first one
            cache = ApiKeyCache(store.api_keys, now_ms=now_ms, clock=asyncio.get_running_loop().time)
            result = await keys.run_on_journal(cache, command, now_ms())
    print(keys.format_keys(result, as_json=command.as_json))
    return 0
