"""The records about MCP servers besides the tools file: which of their tools were approved, and what they listed
last; and the port of its store.

A record is a JSON text under (tenant, kind, label). `EVERYBODY` as the tenant means a server that all tenants have.
Nothing in it is secret, nor anything that a person wrote.
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
    """A stored record about an MCP server. `body` is JSON; `by` is the key that stored it, "" for the server itself."""

    tenant: TenantId
    kind: ToolRecordKind
    name: str
    body: str
    at: UnixMs
    by: str = ""


class ToolPin(msgspec.Struct, frozen=True, kw_only=True):
    """The approved tools of an MCP server: for each name the digest of everything that the tool says of itself."""

    digests: dict[str, str]


class ToolListing(msgspec.Struct, frozen=True, kw_only=True):
    """An MCP server's last listing: `shown` are the tools that models see; `held` has, by name, why others are not
    shown; `waiting` has, by name, the tools that wait for approval, each with its digest and the beginning of its
    description."""

    shown: tuple[str, ...] = ()
    held: dict[str, str] = {}
    waiting: dict[str, tuple[str, str]] = {}


class ToolRecordStore(Protocol):
    """The records of MCP servers. Every method raises Unavailable."""

    async def records(self, kind: ToolRecordKind, tenant: TenantId | None = None) -> Sequence[ToolRecord]:
        """Returns a tenant's records, or all tenants', ordered by tenant and name."""
        ...

    async def put(self, record: ToolRecord, audit: Audited | None = None) -> None:
        """Stores a record in place of one with the same tenant, kind and label, with an audit row. Raises Limited
        (`quota_exceeded`)."""
        ...

    async def remove(self, record: ToolRecord, audit: Audited | None = None) -> bool:
        """Removes a record, with an audit row. Returns False if there was none."""
        ...


def too_many_records(kind: ToolRecordKind) -> Limited:
    return Limited("quota_exceeded", f"A tenant has at most {RECORDS_MAX} records of the kind {kind!r}.")
