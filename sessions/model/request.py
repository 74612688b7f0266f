"""A command as it enters the system: its sender, its session, and the digest by which a repeat of it is recognised.

The edge (a gateway, a replica's peer server) makes a `Request` of a command, once; everything behind it passes the
request on and derives neither key nor digest again. Only the session's actor decides whether a command was applied
before (I5), from the records that the journal keeps beside what they did: `answer_of` returns a repeat's answer. For a
session without an actor (it is deleted) `recorded_answer` looks its records up. Nobody else compares commands, except
that copies of a command that is being answered wait for the same answer (`actors.hosting.inflight_commands`).
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from sessions.model.commands import ActorCommand, Ok, command_digest
from sessions.model.errors import Conflict
from sessions.model.journal_types import CommandRecord
from sessions.model.types import CommandId, Principal, SessionKey, derived_session_id


class Request(msgspec.Struct, frozen=True, gc=False):
    """A command with its sender and session. `digest` is that of the command as it was sent; digests are equal exactly
    for commands that ask for the same thing."""

    key: SessionKey
    principal: Principal
    command: ActorCommand
    digest: bytes
    near: SessionKey | None = None  # a hint: a new session is best placed where this session is


def request_of(principal: Principal, command: ActorCommand, near: SessionKey | None = None) -> Request:
    """Returns the request of a command. If the command creates a session without a name, the name is derived from the
    command. `near` is a hint for placement."""
    if principal.token is not None:  # the log of a session does not say by which token
        principal = msgspec.structs.replace(principal, token=None)
    session = command.session or derived_session_id(principal, command.id)
    return Request(SessionKey(principal.tenant, session), principal, command, command_digest(command), near)


def answer_of(record: CommandRecord, digest: bytes) -> Ok | Conflict:
    """Returns the answer to a repeat: the recorded one, or a conflict if the id was used for another command."""
    if record.digest == digest:
        return record.answer
    return Conflict("idempotency_conflict", "This command id was used for another command.", param="id")


class CommandRecords(Protocol):
    async def find_command(self, key: SessionKey, principal_id: str, command_id: CommandId) -> CommandRecord | None: ...


async def recorded_answer(records: CommandRecords, request: Request) -> Ok | None:
    """Returns the answer that a request got when it was applied; None if it was not. Raises Conflict, Unavailable."""
    record = await records.find_command(request.key, request.principal.id, request.command.id)
    answer = None if record is None else answer_of(record, request.digest)
    if isinstance(answer, Conflict):
        raise answer
    return answer
