"""Which rows are trimmed off the front of a chain, and when none are."""

from __future__ import annotations

from structlog.testing import capture_logs

from sessions.governance.audit_trim import trim
from sessions.model.types import UnixMs
from tests.support.stores.audit_chain import TENANT, AuditChain, audited

NOW = UnixMs(1_000)


async def trimmed(chain: AuditChain, before: int) -> int:
    return await trim(chain, TENANT, before=UnixMs(before), now=NOW)  # type: ignore[arg-type]


def chain_of(*moments: int) -> AuditChain:
    return AuditChain().add(*(audited(moment) for moment in moments))


async def test_a_broken_chain_keeps_what_it_has_from_there_on() -> None:
    chain = chain_of(1, 2, 3, 4)
    chain.stored[2] = chain.stored[2]._replace(body=b"{}")
    with capture_logs() as logs:
        assert await trimmed(chain, 9) == 2
    assert [each["event"] for each in logs] == ["audit_trim_failed", "audit_trimmed"]
    assert logs[0]["row"] == 3


async def test_a_replica_that_finds_the_floor_moved_leaves_it() -> None:
    class Raced(AuditChain):
        async def trim(self, *args: object, **more: object) -> bool:
            return False

    chain = Raced()
    chain.add(audited(1), audited(2))
    assert await trimmed(chain, 9) == 0 and len(chain.stored) == 2
