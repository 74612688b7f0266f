"""What every journal says and checks in the same way, whatever it stores in."""

from __future__ import annotations

from typing import Final

from sessions.model.audit import Audited
from sessions.model.errors import BadInput, Fenced, NotFound, Unavailable
from sessions.model.journal_types import Append
from sessions.model.types import SessionId, SessionKey, TenantId, UnixMs

COMMANDS_KEPT_MS: Final = 24 * 3600 * 1000

FENCES_PER_INCARNATION: Final = 2**32
"""A new incarnation raises every fence by this, so that none of the lost continuity can match again."""

FIRST_KEY: Final = SessionKey(TenantId(""), SessionId(""))
"""Before every session's key. SQLite keeps a row of its own under it."""


def fenced() -> Fenced:
    return Fenced("fenced", "Another owner holds this session now.")


def closed() -> Unavailable:
    return Unavailable("journal_closed", "The store is closed.")


def purged_row(key: SessionKey, user: str | None, reason: str, at: UnixMs) -> Audited:
    """What the audit log says of a session that is gone."""
    return Audited(action="session.purged", at=at, user=user, session=key.session, detail={"reason": reason})


def unknown_cursor() -> NotFound:
    return NotFound("session_not_found", "The session to list after is unknown.", param="after")


def check_text(*texts: str | None) -> None:
    """Raises BadInput for text that some store cannot hold: a NUL character, or half of a surrogate pair."""
    for text in texts:
        if text is None:
            continue
        if "\0" in text:
            raise BadInput("invalid_text", "A text holds a NUL character.")
        if not text.isascii():
            try:
                text.encode()
            except UnicodeEncodeError as exc:
                raise BadInput("invalid_text", "A text is not valid Unicode.") from exc


def check_key(key: SessionKey) -> None:
    assert key.tenant and key.session, "a session key with an empty part"
    check_text(key.tenant, key.session)


def check_append(append: Append) -> None:
    """Raises BadInput. That records follow top and usage is the tenant's own is our own duty: asserted."""
    check_key(append.key)
    records = append.records
    assert not records or (records[0].offset == append.top + 1 and records[-1].offset == append.top + len(records)), (
        "records do not take the offsets behind top"
    )
    if append.head is not None:
        check_text(append.head.user, append.head.model)
    for command in append.commands:
        check_text(command.principal_id, command.command_id)
    for row in append.usage:
        assert row.principal.tenant == append.key.tenant, "usage of another tenant"
        check_text(row.response_id, row.principal.key_id, row.principal.user, row.model, row.status)
    for case in append.reviews:
        assert case.key == append.key, "a review case of another session"
        check_text(case.user, case.category, case.note, case.kept)
