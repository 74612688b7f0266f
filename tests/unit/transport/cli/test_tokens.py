"""`tokens revoke` and `tokens list` on a journal, and what they refuse."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from persistence.memory.store import MemoryStore
from sessions.model.audit import INSTALLATION
from sessions.model.types import UnixMs
from transport.cli.settings import BadSetting
from transport.cli.tokens import ListRevocations, RevokeTokens, format_revocations, run_on_journal

NOW = UnixMs(1_750_000_000_000)
ISSUER = "https://login.example"


@pytest.mark.parametrize(
    "fields",
    [
        {"issuer": ISSUER},
        {"issuer": ISSUER, "subject": "a", "token_id": "b"},
        {"subject": "a"},
        {"issuer": ISSUER, "subject": "a", "expires_in": "soon"},
    ],
)
def test_what_is_not_plain_is_refused_before_anything_is_opened(fields: dict[str, Any]) -> None:
    with pytest.raises(BadSetting):
        RevokeTokens(**fields)


async def test_a_journal_keeps_what_was_revoked_until_it_has_expired() -> None:
    store = MemoryStore()
    await store.open()
    for command in (
        RevokeTokens(issuer=ISSUER, subject="ana", expires_in="1h"),
        RevokeTokens(issuer=ISSUER, token_id="t1", expires_in="2h"),
    ):
        await run_on_journal(store, command, NOW)
    listed = await run_on_journal(store, ListRevocations(), NOW)
    assert isinstance(listed, list) and [row["name"] for row in listed] == ["t1", "ana"]
    shown = format_revocations(listed, as_json=False).splitlines()
    assert shown[0].split() == ["KIND", "NAME", "ISSUER", "REVOKED", "KEPT", "UNTIL", "BY"]
    assert shown[1].split()[:3] == ["token", "t1", ISSUER] and shown[1].endswith("-")
    assert msgspec.json.decode(format_revocations(listed[0], as_json=True))["id"] == 2
    later = await run_on_journal(store, ListRevocations(), UnixMs(NOW + 5_400_000))
    assert isinstance(later, list) and [row["name"] for row in later] == ["t1"]
    assert len(await store.audit.rows(INSTALLATION, after=0, limit=9)) == 2
