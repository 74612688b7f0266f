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
    """`body` is JSON; `by`: the key that put it, "" for the server itself."""

    tenant: TenantId
    kind: ToolRecordKind
    name: str
    body: str
    at: UnixMs
    by: str = ""


class ToolPin(msgspec.Struct, frozen=True, kw_only=True):
    """What was agreed to of a server's tools: digests of all that they say of themselves, by name."""

    digests: dict[str, str]


class ToolListing(msgspec.Struct, frozen=True, kw_only=True):
    """What a server listed last: the tools that models are shown, why others are not, and of those that somebody may
    agree to, by name, their digest and the beginning of what they say."""

    shown: tuple[str, ...] = ()
    held: dict[str, str] = {}
    waiting: dict[str, tuple[str, str]] = {}


class ToolRecordStore(Protocol):
    """Every coroutine raises Unavailable."""

    async def records(self, kind: ToolRecordKind, tenant: TenantId | None = None) -> Sequence[ToolRecord]:
        """A tenant's, or all, by tenant and name."""
        ...

    async def put(self, record: ToolRecord, audit: Audited | None = None) -> None:
        """In the place of one of the same name; with a row of the tenant's audit log. Raises Limited
        (`quota_exceeded`)."""
        ...

    async def remove(self, record: ToolRecord, audit: Audited | None = None) -> bool:
        """Whether there was one of this name."""
        ...


def too_many_records(kind: ToolRecordKind) -> Limited:
    return Limited("quota_exceeded", f"A tenant has at most {RECORDS_MAX} records of the kind {kind!r}.")
