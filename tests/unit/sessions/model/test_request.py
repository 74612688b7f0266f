"""What follows from a command, and what a repeat of it is answered."""

from __future__ import annotations

import pytest

from sessions.model import commands as cm
from sessions.model.errors import Conflict
from sessions.model.journal_types import CommandRecord
from sessions.model.request import Request, recorded_answer, request_of
from sessions.model.types import LOCAL_PRINCIPAL, CommandId, SessionId, SessionKey, UnixMs, derived_session_id

ID = CommandId("c1")


class Records:
    def __init__(self, record: CommandRecord | None) -> None:
        self.record = record
        self.sought: list[tuple[SessionKey, str, CommandId]] = []

    async def find_command(self, key: SessionKey, principal_id: str, command_id: CommandId) -> CommandRecord | None:
        self.sought.append((key, principal_id, command_id))
        return self.record


def message(content: str) -> Request:
    return request_of(LOCAL_PRINCIPAL, cm.MessageCreate(id=ID, session=SessionId("s"), content=content))


def test_a_session_without_a_name_gets_the_same_one_at_every_retry() -> None:
    first, again = (request_of(LOCAL_PRINCIPAL, cm.SessionCreate(id=ID)) for _ in range(2))
    assert first == again and first.key.session == derived_session_id(LOCAL_PRINCIPAL, ID)
    assert request_of(LOCAL_PRINCIPAL, cm.SessionCreate(id=CommandId("c2"))).key != first.key


def test_digests_differ_where_two_commands_ask_for_different_things() -> None:
    assert message("hello").digest == message("hello").digest != message("bye").digest


async def test_a_repeat_gets_its_recorded_answer_and_another_command_a_conflict() -> None:
    request, answer = message("hello"), cm.Ok(id=ID, offset=3)
    record = CommandRecord(
        principal_id=LOCAL_PRINCIPAL.id, command_id=ID, digest=request.digest, answer=answer, at=UnixMs(1)
    )
    records = Records(record)
    assert await recorded_answer(records, request) == answer
    assert records.sought == [(request.key, LOCAL_PRINCIPAL.id, ID)]
    with pytest.raises(Conflict) as refused:
        await recorded_answer(records, message("bye"))
    assert refused.value.code == "idempotency_conflict"
    assert await recorded_answer(Records(None), request) is None
