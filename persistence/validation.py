"""The checks, and the audit rows, that all drivers have in common."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Final

import msgspec

from sessions.governance.end_user_data import Erasure
from sessions.model.audit import Audited, Sealer
from sessions.model.errors import BadInput, Fenced, NotFound, Unavailable
from sessions.model.journal_types import Append
from sessions.model.reviews import Case, ReviewId, check_claimable, check_decidable, repeated_decision
from sessions.model.types import SessionId, SessionKey, TenantId, UnixMs

COMMANDS_KEPT_MS: Final = 24 * 3600 * 1000

FENCES_PER_INCARNATION: Final = 2**32
"""How much a new incarnation raises every fence, so that no fence of the lost history can match again."""

FIRST_KEY: Final = SessionKey(TenantId(""), SessionId(""))
"""A key that sorts before every session's. SQLite stores the row of the store itself under it."""


def fenced() -> Fenced:
    return Fenced("fenced", "Another owner holds this session now.")


def closed() -> Unavailable:
    return Unavailable("journal_closed", "The store is closed.")


def purged_row(key: SessionKey, user: str | None, reason: str, at: UnixMs) -> Audited:
    """Makes the audit log's entry for a session that was purged."""
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


_check_key_once = lru_cache(maxsize=512)(check_key)  # a session's deltas all have the one key


def check_append(append: Append) -> None:
    """Raises BadInput for an append that no store can hold. Asserts what our own code must ensure: offsets follow each
    other, and usage is of the append's tenant."""
    _check_key_once(append.key)
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


def check_claim(review_id: ReviewId, by: str, now: UnixMs, command: str, case: Case | None) -> Case | None:
    """Returns the case if this claim repeats an earlier one; None if the case may be claimed. Raises if it may not."""
    return _check_transition(
        case, review_id, command, case.claim_command if case else "", partial(check_claimable, by=by, now=now)
    )


def check_decision(review_id: ReviewId, by: str, now: UnixMs, command: str, case: Case | None) -> Case | None:
    """Returns the case if this decision repeats an earlier one; None if the case may be decided. Raises if it may
    not."""
    return _check_transition(
        case, review_id, command, case.decide_command if case else "", partial(check_decidable, by=by, now=now)
    )


def _check_transition(
    case: Case | None, review_id: ReviewId, command: str, last: str, check: Callable[[Case], None]
) -> Case | None:
    """Returns the case if `command` repeats `last`, the command that made this transition; else runs `check`, which
    raises if the transition is not allowed, and returns None."""
    if done := repeated_decision(case, review_id, command, last):
        return done
    assert case is not None
    check(case)
    return None


def names_of_user(sealer: Sealer, tenant: TenantId, user: str) -> list[str]:
    """Returns the names under which a store may have an end user: the name, and its pseudonyms after an erasure."""
    return [user, *sealer.pseudonyms(tenant, user)]


def released_by(erasure: Erasure, replica: str) -> Erasure:
    names = tuple(dict.fromkeys((*erasure.released, replica)))
    return msgspec.structs.replace(erasure, released=names)
