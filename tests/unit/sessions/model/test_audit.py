"""Rows of the audit log: names and texts in them are hashed, and a row that is changed does not fit its MAC."""

from __future__ import annotations

import msgspec

from sessions.model.audit import Audited, AuditHead, AuditRow, Sealer, public
from sessions.model.types import Principal, TenantId, UnixMs
from sessions.model.verdicts import Finding
from tests.support.stores.audit_chain import TENANT, audited

SEALER = Sealer(b"secret")
ANA = Principal(tenant=TENANT, key_id="k", user="ana", role="user")
FOUND = Finding(category="c", action="flag", start=0, end=3, text="gun")


def a_row(sealer: Sealer, row: Audited) -> tuple[AuditRow, AuditHead]:
    (made,), head = sealer.chained(None, [sealer.entry(TENANT, row)])
    return made, head


def test_no_name_or_text_stands_in_a_row() -> None:
    row = Audited(action="verdict", at=UnixMs(1), by=ANA, user="ana", session="s", findings=(FOUND,))
    made, _ = a_row(SEALER, row)
    assert b"ana" not in made.body and b"gun" not in made.body
    shown = public(made)
    assert shown["by"] == {"tenant": TENANT, "key": "k", "role": "user", "user": SEALER.pseudonym(TENANT, "ana")}
    assert made.about == shown["user"] and shown["findings"][0]["text_hmac"] == SEALER.text_hash(TENANT, "gun")


def test_a_key_that_is_a_user_is_named_as_one() -> None:
    own = msgspec.structs.replace(ANA, key_id="ana")
    made, _ = a_row(SEALER, Audited(action="session.deleted", at=UnixMs(1), by=own))
    assert public(made)["by"]["key"] == public(made)["by"]["user"] != "ana"


def test_pseudonyms_differ_by_tenant_and_old_keys_are_searched_too() -> None:
    assert SEALER.pseudonym(TENANT, "ana") != SEALER.pseudonym(TenantId("other"), "ana")
    with_file = Sealer(b"secret", b"file")
    assert SEALER.pseudonym(TENANT, "ana") in with_file.pseudonyms(TENANT, "ana")
    assert with_file.pseudonym(TENANT, "ana") != SEALER.pseudonym(TENANT, "ana")


def test_another_secret_knows_neither_row_nor_head_nor_floor() -> None:
    row, head = a_row(SEALER, audited(1))
    floor, other = SEALER.floor(row, 1), Sealer(b"other")
    assert SEALER.sealed(TENANT, head, row.key_id) and SEALER.floored(TENANT, floor)
    assert not other.sealed(TENANT, head, row.key_id) and not other.floored(TENANT, floor)
    assert "key" in (other.trouble_of(row) or "")
