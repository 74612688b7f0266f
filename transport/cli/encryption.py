"""The keys that texts in the journal are encrypted with: shows, rotates, wraps anew or destroys them.

Without --url it works on the journal of the settings, or through the server that runs on that data folder; with --url
through that server. Through a server it takes an operator's key in SESSILE_API_KEY.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import msgspec

from sessions.governance.journal_encryption import EncryptionAction
from sessions.model.audit import INSTALLATION, Audited
from sessions.model.errors import BadInput
from sessions.model.types import TenantId, UnixMs
from transport.cli.api_client import JsonObject, base_of, call
from transport.cli.settings import BadSetting
from transport.cli.shared_flags import Json, ServerUrl, Tenant, table, text

if TYPE_CHECKING:
    from sessions.governance.journal_encryption import JournalEncryption
    from sessions.store import Store


class ShowEncryption(msgspec.Struct, frozen=True, kw_only=True):
    """Shows each tenant's keys, and how far the sweep is that encrypts older rows."""

    url: ServerUrl = ""
    as_json: Json = False


class RotateKeys(msgspec.Struct, frozen=True, kw_only=True):
    """Makes a new key for a tenant, or for every one; older rows are encrypted again while the server works."""

    action: ClassVar[EncryptionAction] = "rotate"
    tenant: Tenant = ""
    url: ServerUrl = ""
    as_json: Json = False


class RewrapKeys(msgspec.Struct, frozen=True, kw_only=True):
    """Wraps every key under the master key file's first line, or the key service's newest version."""

    action: ClassVar[EncryptionAction] = "rewrap"
    url: ServerUrl = ""
    as_json: Json = False


class StopSweep(msgspec.Struct, frozen=True, kw_only=True):
    """Stops the sweep that encrypts older rows, in every process; they stay readable."""

    action: ClassVar[EncryptionAction] = "stop"
    url: ServerUrl = ""
    as_json: Json = False


class ResumeSweep(msgspec.Struct, frozen=True, kw_only=True):
    """Continues the sweep that encrypts older rows, from where it stopped."""

    action: ClassVar[EncryptionAction] = "resume"
    url: ServerUrl = ""
    as_json: Json = False


class DestroyKeys(msgspec.Struct, frozen=True, kw_only=True):
    """Destroys every key of a tenant, for good: no conversation of it can be read any more, nor any backup."""

    action: ClassVar[EncryptionAction] = "destroy"
    tenant: Annotated[str, text("TENANT", "whose keys; its conversations are lost")]
    url: ServerUrl = ""
    as_json: Json = False


class ChangeMasterKey(msgspec.Struct, frozen=True):
    """Adds a new first key to the master key file, or drops the older keys once `rewrap` is done.

    Changes the file of --master-key (or master.key in --data) alone, and may run beside the server.
    """

    change: Annotated[Literal["add", "drop-older"], text("CHANGE", "add or drop-older")]


EncryptionCommand = ShowEncryption | RotateKeys | RewrapKeys | StopSweep | ResumeSweep | DestroyKeys


async def run_on_journal(
    encryption: JournalEncryption | None, store: Store, command: EncryptionCommand, now: UnixMs
) -> JsonObject:
    """Runs a command on a journal opened by this process. Raises SessileError."""
    if encryption is None:
        raise BadInput("not_encrypted", "This journal is not encrypted: no key is named for it.")
    if isinstance(command, ShowEncryption):
        shown: JsonObject = msgspec.to_builtins(await encryption.status())
        return shown
    detail = {"action": command.action, "tenant": _tenant_of(command)}
    await store.audit.record(INSTALLATION, [Audited(action="encryption.changed", at=now, detail=detail)])
    changed: JsonObject = msgspec.to_builtins(await encryption.act(command.action, _tenant_of(command)))
    return changed


async def run_on_server(command: EncryptionCommand, credential: str) -> JsonObject:
    """Runs a command through a server's `/v1/operator/encryption`. Raises BadSetting, SessileError."""
    url = f"{base_of(command.url, credential)}/v1/operator/encryption"
    if isinstance(command, ShowEncryption):
        return await asyncio.to_thread(call, "GET", url, credential)
    tenant = _tenant_of(command)
    body = {"action": command.action} | ({} if tenant is None else {"tenant": tenant})
    return await asyncio.to_thread(call, "POST", url, credential, body, timeout_s=600)


def format_encryption(command: EncryptionCommand, result: JsonObject) -> str:
    if command.as_json:
        return msgspec.json.encode(result).decode()
    if not isinstance(command, ShowEncryption):
        failed = f"; {result['failed']} cannot be unwrapped" if result["failed"] else ""
        return f"{command.action}: {result['changed']} keys{failed}"
    titles = ("TENANT", "KEYS", "DESTROYED", "KEY", "ROWS", "FINISHED")
    rows = [
        (
            each["tenant"],
            str(each["keys"]),
            str(each["destroyed_keys"]),
            each["key_id"] or "-",
            str(each["changed_rows"]),
            "-"
            if each["finished_at"] is None
            else datetime.fromtimestamp(each["finished_at"] / 1000, UTC).isoformat(timespec="seconds"),
        )
        for each in result["tenants"]
    ]
    state = "New rows are encrypted" if result["encrypts"] else "New rows are plain"
    return (
        f"{state}; the sweep of older ones {'is stopped' if result['stopped'] else 'runs'}.\n{table([titles, *rows])}"
    )


def _tenant_of(command: EncryptionCommand) -> TenantId | None:
    """Returns the tenant that a command names; None if it names none. Raises BadSetting for a command that destroys
    keys and names no tenant."""
    name = command.tenant if isinstance(command, RotateKeys | DestroyKeys) else ""
    if isinstance(command, DestroyKeys) and not name:
        raise BadSetting("tenant: name whose keys are to be destroyed (--tenant acme)")
    return TenantId(name) if name else None
