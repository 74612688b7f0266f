"""What is kept of MCP servers beside the tools file: what was agreed to of their tools, and what they listed last; and
the port of its store.

A record is a JSON text under (tenant, kind, label). `EVERYBODY` in a tenant's place: a server of all of them. Nothing
in it is secret, nor anything that a person wrote.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, Protocol

import msgspec

from sessions.model.audit import INSTALLATION, Audited
from sessions.model.errors import Limited
from sessions.model.types import TenantId, UnixMs

EVERYBODY: Final = INSTALLATION
RECORDS_MAX: Final = 256  # of a tenant and a kind
BODY_BYTES_MAX: Final = 512 * 1024

ToolRecordKind = Literal["pin", "listing"]


class ToolRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A stored record about an MCP server. `body` is JSON; `by`: the key that stored it, "" for the server itself."""

    tenant: TenantId
    kind: ToolRecordKind
    name: str
    body: str
    at: UnixMs
    by: str = ""


class ToolPin(msgspec.Struct, frozen=True, kw_only=True):
    """The agreed tools of an MCP server: by name, digests of all that they say of themselves."""

    digests: dict[str, str]


class ToolListing(msgspec.Struct, frozen=True, kw_only=True):
    """An MCP server's last listing: the tools that models are shown; why others (`held`) are not; and, by name, those
    that wait for agreement, with their digest and the beginning of what they say."""

    shown: tuple[str, ...] = ()
    held: dict[str, str] = {}
    waiting: dict[str, tuple[str, str]] = {}


class ToolRecordStore(Protocol):
    """The records of MCP servers. Every method raises Unavailable."""

    async def records(self, kind: ToolRecordKind, tenant: TenantId | None = None) -> Sequence[ToolRecord]:
        """Returns a tenant's records, or all tenants', ordered by tenant and name."""
        ...

    async def put(self, record: ToolRecord, audit: Audited | None = None) -> None:
        """Stores a record in place of one of the same name, with an audit row. Raises Limited (`quota_exceeded`)."""
        ...

    async def remove(self, record: ToolRecord, audit: Audited | None = None) -> bool:
        """Removes a record. Returns whether there was one of this name."""
        ...


def too_many_records(kind: ToolRecordKind) -> Limited:
    return Limited("quota_exceeded", f"A tenant has at most {RECORDS_MAX} records of the kind {kind!r}.")
