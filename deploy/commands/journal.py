"""Carries out the commands that work on a journal no server has open, or through a running server with `--url`.

Part of the entry point: it opens the store that the settings name. Each returns the status to exit with, and raises
BadSetting and SessileError.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from persistence import connect_store, offline_stores
from persistence.master_key import add_master_key, drop_older_master_keys
from persistence.sqlite.replication import restore_replica
from sessions.billing.reconcile import reconcile
from sessions.model.types import TenantId, UnixMs
from transport.auth.api_key_cache import ApiKeyCache
from transport.cli import audit, commands, encryption, keys, tokens, users
from transport.cli.reconciliation_text import reconciled_text
from transport.cli.settings import Settings
from transport.cli.start.preflight import check_journal_exists

NowMs = Callable[[], UnixMs]


async def run_journal_command(
    options: msgspec.Struct, settings: Settings, now_ms: NowMs, environment: Mapping[str, str]
) -> int | None:
    """None for a command of another kind."""
    match options:
        case commands.ReconcileUsage():
            return await _reconcile_usage(settings, options, now_ms)
        case commands.RestoreReplica(url=url, at=at):
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
    return None


def _change_master_key(settings: Settings, change: str) -> None:
    path = Path(settings.master_key) if settings.master_key else Path(settings.data) / "master.key"
    if change == "add":
        print(f"{path} begins with the new key {add_master_key(path).id}; now run `encryption rewrap`")
    else:
        print(f"{drop_older_master_keys(path)} older keys are dropped from {path}")


async def _reconcile_usage(settings: Settings, command: commands.ReconcileUsage, now_ms: NowMs) -> int:
    """Compares the usage rows with the logs and prints what differs."""
    check_journal_exists(settings)
    async with connect_store(settings, now_ms) as store:
        tenant = TenantId(command.tenant) if command.tenant else None
        result = await reconcile(store.journal, store.usage, tenant=tenant)
    print(msgspec.json.encode(result).decode() if command.as_json else reconciled_text(result))
    return 1 if result.num_differences else 0


async def _run_users_command(settings: Settings, command: users.UserCommand, now_ms: NowMs) -> int:
    if command.url:
        return await asyncio.to_thread(users.run_on_server, command, settings.api_key)
    check_journal_exists(settings)
    async with connect_store(settings, now_ms) as store:
        return await users.run_on_journal(store, command, now_ms, shared="://" in settings.journal)


async def _run_audit_command(settings: Settings, command: audit.AuditCommand, now_ms: NowMs) -> int:
    if command.url:
        results = await audit.run_on_server(command, settings.api_key)
    else:
        check_journal_exists(settings)
        async with connect_store(settings, now_ms) as store:
            results = await audit.run_on_journal(store.audit, command)
    print(audit.format_audit(command, results))
    return 1 if audit.is_broken(command, results) else 0


async def _run_encryption_command(settings: Settings, command: encryption.EncryptionCommand, now_ms: NowMs) -> int:
    if command.url:
        result = await encryption.run_on_server(command, settings.api_key)
    else:
        check_journal_exists(settings)
        stores = offline_stores(settings, now_ms)
        async with stores.opened() as store:
            administration = stores.administration(stores.reencryption())
            result = await encryption.run_on_journal(administration, store, command, now_ms())
    print(encryption.format_encryption(command, result))
    return 0


async def _run_tokens_command(settings: Settings, command: tokens.TokenCommand, now_ms: NowMs) -> int:
    if command.url:
        result = await tokens.run_on_server(command, settings.api_key, now_ms())
    else:
        check_journal_exists(settings)
        async with connect_store(settings, now_ms) as store:
            result = await tokens.run_on_journal(store, command, now_ms())
    print(tokens.format_revocations(result, as_json=command.as_json))
    return 0


async def _run_keys_command(settings: Settings, command: keys.KeyCommand, now_ms: NowMs) -> int:
    if command.url:
        result = await keys.run_on_server(command, settings.api_key, now_ms())
    else:
        check_journal_exists(settings, made=isinstance(command, keys.CreateKey))  # the first key makes it
        async with connect_store(settings, now_ms) as store:
            cache = ApiKeyCache(store.api_keys, now_ms=now_ms, clock=asyncio.get_running_loop().time)
            result = await keys.run_on_journal(cache, command, now_ms())
    print(keys.format_keys(result, as_json=command.as_json))
    return 0
