"""Which rows are trimmed off the front of a chain, and when none are."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from sessions.governance import audit_trim
from sessions.governance.audit_trim import trim
from sessions.governance.audit_verify import verify
from sessions.model.types import UnixMs
from tests.support.stores.audit_chain import TENANT, AuditChain, audited

NOW = UnixMs(1_000)


async def trimmed(chain: AuditChain, before: int) -> int:
    return await trim(chain, TENANT, before=UnixMs(before), now=NOW)  # type: ignore[arg-type]


def chain_of(*moments: int) -> AuditChain:
    return AuditChain().add(*(audited(moment) for moment in moments))


async def test_the_old_front_goes_and_the_rest_is_intact() -> None:
    chain = chain_of(1, 2, 3, 4)
    assert await trimmed(chain, 3) == 2
    assert [row.seq for row in chain.stored] == [3, 4, 5]
    assert (await verify(chain, TENANT)).intact  # type: ignore[arg-type]


async def test_an_old_row_waits_for_those_before_it() -> None:
    assert await trimmed(chain_of(9, 1, 2), 5) == 0


async def test_rows_about_trimming_do_not_go_alone() -> None:
    chain = chain_of(1)
    assert await trimmed(chain, 5) == 1
    assert await trimmed(chain, 5_000) == 0, "what is left says that there was more"


async def test_a_broken_chain_keeps_what_it_has_from_there_on() -> None:
    chain = chain_of(1, 2, 3, 4)
    chain.stored[2] = chain.stored[2]._replace(body=b"{}")
    with capture_logs() as logs:
        assert await trimmed(chain, 9) == 2
    assert [each["event"] for each in logs] == ["audit_trim_failed", "audit_trimmed"]
    assert logs[0]["row"] == 3


async def test_long_chains_go_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_trim, "ROWS_AT_ONCE", 2)
    chain = chain_of(1, 2, 3, 4, 5)
    assert await trimmed(chain, 9) == 5
    assert (await verify(chain, TENANT)).intact  # type: ignore[arg-type]


async def test_a_replica_that_finds_the_floor_moved_leaves_it() -> None:
    class Raced(AuditChain):
        async def trim(self, *args: object, **more: object) -> bool:
            return False

    chain = Raced()
    chain.add(audited(1), audited(2))
    assert await trimmed(chain, 9) == 0 and len(chain.stored) == 2
