"""What the `audit` command accepts and prints."""

from __future__ import annotations

from typing import Any

import pytest

from persistence.memory.store import MemoryStore
from sessions.model.audit import Audited
from sessions.model.types import TenantId, UnixMs
from transport.cli.audit import ListRows, VerifyChain, format_audit, is_broken, run_on_journal
from transport.cli.settings import BadSetting

CHAIN: dict[str, Any] = {
    "tenant": "acme",
    "intact": True,
    "rows": 3,
    "trimmed": 0,
    "trimmed_until": 0,
    "unchecked": 0,
    "weak": 0,
    "anchor": "3:ab",
}
ROW: dict[str, Any] = {
    "object": "audit.row",
    "tenant": "acme",
    "seq": 7,
    "at": 1_000,
    "action": "key.created",
    "by": {"role": "operator", "key": "abc"},
    "key": "def",
    "detail": {"n": 1},
    "mac": "00",
}


def test_a_chain_is_a_sentence_and_its_anchor() -> None:
    verify = VerifyChain()
    assert format_audit(verify, [CHAIN]) == "acme: 3 rows, all as they were written; anchor 3:ab"
    trimmed = {**CHAIN, "tenant": "", "trimmed": 2, "trimmed_until": 1_000, "unchecked": 1, "weak": 1, "anchor": ""}
    assert format_audit(verify, [trimmed]) == (
        "(installation): 3 rows, all as they were written; 1 of them without the key file; 2 before them were trimmed,"
        " up to 1970-01-01T00:00:01+00:00; 1 of the anchors given are of trimmed rows and prove nothing; anchor -"
    )
    broken = {**CHAIN, "intact": False, "first_broken": 2, "why": "was changed"}
    assert format_audit(verify, [CHAIN, broken]).splitlines()[1] == "acme: row 2 was changed"
    assert is_broken(verify, [CHAIN, broken]) and not is_broken(verify, [CHAIN])


def test_a_row_is_a_line() -> None:
    line = format_audit(ListRows(tenant="acme"), [ROW])
    assert (
        line == f'       7  1970-01-01T00:00:01.000+00:00  {"key.created":<24} operator abc  key=def detail={{"n":1}}'
    )
    assert format_audit(ListRows(tenant="acme", as_json=True), [ROW]).startswith('{"object":"audit.row"')


def test_options_that_make_no_sense_are_refused() -> None:
    for limit, last, after in ((0, 0, 0), (10_001, 0, 0), (1, -1, 0), (1, 0, -1)):
        with pytest.raises(BadSetting, match="limit, last"):
            ListRows(tenant="acme", limit=limit, last=last, after=after)
    with pytest.raises(BadSetting, match="one tenant's chain"):
        VerifyChain(anchor=(f"1:{'0' * 64}",))


def test_an_empty_log_says_so() -> None:
    assert format_audit(VerifyChain(), []) == "No rows: nothing was recorded so far."
    assert format_audit(VerifyChain(), [{**CHAIN, "rows": 0, "anchor": ""}]) == "acme: no rows; anchor -"
    assert format_audit(ListRows(), []) == "No such rows."


async def test_the_log_of_the_only_tenant_needs_no_name() -> None:
    store = MemoryStore()
    await store.open()
    assert await run_on_journal(store.audit, ListRows()) == []
    for tenant in ("", "acme"):
        await store.audit.record(TenantId(tenant), [Audited(action="verdict", at=UnixMs(1), detail={})])
    (row,) = await run_on_journal(store.audit, ListRows())
    assert row["tenant"] == "acme"
    await store.audit.record(TenantId("other"), [Audited(action="verdict", at=UnixMs(1), detail={})])
    with pytest.raises(BadSetting, match=r"^tenant: name whose log with --tenant \(acme, other\)"):
        await run_on_journal(store.audit, ListRows())
    await store.close()
