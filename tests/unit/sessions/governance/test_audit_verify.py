"""A chain that was changed in any way does not fit any more, and the first row that does not is named."""

from __future__ import annotations

from collections.abc import Callable

from sessions.governance.audit_verify import AuditVerification, AuditVerifier, is_trim, parse_anchor
from sessions.model.audit import Sealer
from sessions.model.types import TenantId, UnixMs
from tests.support.stores.audit_chain import TENANT, AuditChain, audited


def checked(chain: AuditChain, anchors: dict[int, str] | None = None) -> AuditVerification:
    verifier = AuditVerifier(chain.sealer, TENANT, anchors, chain.stored_floor)
    verifier.take(chain.stored)
    return verifier.finish(chain.stored_head)


def chain_of(count: int) -> AuditChain:
    return AuditChain().add(*(audited(number) for number in range(1, count + 1)))


def drop(index: int) -> Callable[[AuditChain], None]:
    return lambda chain: chain.stored.pop(index) and None


def swap(chain: AuditChain) -> None:
    chain.stored[1], chain.stored[2] = chain.stored[2], chain.stored[1]


def rewrite(chain: AuditChain) -> None:
    chain.stored[1] = chain.stored[1]._replace(body=b"{}")


def move(chain: AuditChain) -> None:
    chain.stored[1] = chain.stored[1]._replace(tenant=TenantId("other"))


def repeat(chain: AuditChain) -> None:
    chain.stored.insert(1, chain.stored[0])


def lose_head(chain: AuditChain) -> None:
    chain.stored_head = None


def forge_head(chain: AuditChain) -> None:
    assert chain.stored_head is not None
    chain.stored_head = chain.stored_head._replace(seal=b"x")


def test_an_anchor_finds_a_chain_that_was_put_back_whole() -> None:
    anchor = parse_anchor(checked(chain_of(3)).anchor)
    assert checked(chain_of(2), dict([anchor])).why == "is missing; an anchor names it"
    other = AuditChain().add(*(audited(number) for number in (1, 2, 9)))
    assert checked(other, dict([anchor])).why == "is not the row that the anchor names"


def test_rows_under_another_key_are_weak_or_unknown() -> None:
    weak = chain_of(2)
    with_file = Sealer(b"secret", b"file")
    verifier = AuditVerifier(with_file, TENANT)
    verifier.take(weak.stored)
    assert verifier.finish(weak.stored_head).weak == 2
    stranger = AuditVerifier(Sealer(b"other"), TENANT)
    stranger.take(weak.stored)
    assert stranger.trouble is not None and "key that is not known" in stranger.trouble[1]


async def trimmed() -> AuditChain:
    chain = chain_of(4)
    last = chain.stored[1]
    detail = {"through": last.seq, "mac": last.mac.hex(), "rows": 2, "until": 2}
    row = audited(9)
    floor = chain.sealer.floor(last, 2)
    await chain.trim(TENANT, type(row)(action="audit.trimmed", at=UnixMs(9), detail=detail), expected=None, floor=floor)
    return chain


async def test_a_trimmed_chain_is_checked_from_its_floor_on() -> None:
    chain = await trimmed()
    assert is_trim(chain.stored[-1]) and not is_trim(chain.stored[0])
    found = checked(chain, {1: "00" * 32})
    assert (found.intact, found.rows, found.trimmed, found.trimmed_until, found.unchecked) == (True, 3, 2, 2, 1)
