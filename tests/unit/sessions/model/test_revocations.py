"""What a revocation covers, and what one may say."""

from __future__ import annotations

import pytest

from sessions.model.errors import BadInput
from sessions.model.revocations import KEPT_MS, make_revocation, merged, places_of, revocation_audit
from sessions.model.types import TokenRef, UnixMs

NOW = UnixMs(1000)


def test_a_subject_covers_what_was_issued_until_then() -> None:
    subject = make_revocation("i", subject="ana", token_id=None, at=NOW, expires_at=None)
    assert (subject.kind, subject.name, subject.expires_at) == ("subject", "ana", NOW + KEPT_MS)
    assert subject.covers(TokenRef("i", "ana", "t", NOW)) and subject.covers(TokenRef("i", "ana"))
    assert not subject.covers(TokenRef("i", "ana", "t", UnixMs(1001)))
    assert not subject.covers(TokenRef("j", "ana", "t", NOW)) and not subject.covers(TokenRef("i", "ben", "t", NOW))


def test_a_token_is_covered_by_its_id_alone() -> None:
    token = make_revocation("i", subject=None, token_id="t", at=NOW, expires_at=2000, by="boss")
    assert token.covers(TokenRef("i", "ana", "t", UnixMs(1500)))
    assert not token.covers(TokenRef("i", "t", "u", NOW)) and not token.covers(TokenRef("i", "ana", "", NOW))
    assert list(places_of(TokenRef("i", "ana", "t"))) == [("i", "subject", "ana"), ("i", "token", "t")]
    assert list(places_of(TokenRef("i", "ana"))) == [("i", "subject", "ana")]
    assert merged(None, token) == token
    shorter = make_revocation("i", subject=None, token_id="t", at=UnixMs(500), expires_at=900)
    assert merged(token, shorter).expires_at == 2000 and merged(token, shorter).at == NOW


@pytest.mark.parametrize(
    ("subject", "token_id", "expires_at"), [(None, None, None), ("a", "b", None), ("a", None, 1000), (None, "b", 1)]
)
def test_what_it_may_not_say(subject: str | None, token_id: str | None, expires_at: int | None) -> None:
    with pytest.raises(BadInput):
        make_revocation("i", subject=subject, token_id=token_id, at=NOW, expires_at=expires_at)


def test_a_subject_is_an_end_user_in_the_audit_log_and_not_in_its_detail() -> None:
    row = revocation_audit(make_revocation("i", subject="ana", token_id=None, at=NOW, expires_at=None), None)
    assert (row.action, row.user, dict(row.detail)) == ("token.revoked", "ana", {"issuer": "i", "kind": "subject"})
    row = revocation_audit(make_revocation("i", subject=None, token_id="t", at=NOW, expires_at=None), None)
    assert (row.user, row.detail["token"]) == (None, "t")
