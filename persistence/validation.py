"""What every driver says and checks in the same way, whatever it stores in."""

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


_check_key_once = lru_cache(maxsize=4096)(check_key)  # a session's deltas all have the one key


def check_append(append: Append) -> None:
    """Raises BadInput. That records follow top and usage is the tenant's own is our own duty: asserted."""
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
    """The answer to a claim that is repeated; None: it may be claimed. Raises what stands in the way."""
    return _check_transition(
        case, review_id, command, case.claim_command if case else "", partial(check_claimable, by=by, now=now)
    )


def check_decision(review_id: ReviewId, by: str, now: UnixMs, command: str, case: Case | None) -> Case | None:
    """Likewise of a decision."""
    return _check_transition(
        case, review_id, command, case.decide_command if case else "", partial(check_decidable, by=by, now=now)
    )


def _check_transition(
    case: Case | None, review_id: ReviewId, command: str, last: str, check: Callable[[Case], None]
) -> Case | None:
    """`last` is the command that made this transition before."""
    if done := repeated_decision(case, review_id, command, last):
        return done
    assert case is not None
    check(case)
    return None


def names_of_user(sealer: Sealer, tenant: TenantId, user: str) -> list[str]:
    """What an end user is called in a store: by the name, and by its pseudonyms after an erasure."""
    return [user, *sealer.pseudonyms(tenant, user)]


def released_by(erasure: Erasure, replica: str) -> Erasure:
    names = tuple(dict.fromkeys((*erasure.released, replica)))
    return msgspec.structs.replace(erasure, released=names)
