"""An attack on the audit log that a check through a server did not see: it looked at one chain only."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from sessions.model.audit import Audited
from sessions.model.errors import SessileError
from sessions.model.types import SCOPES, TenantId, UnixMs
from tests.support.authorisation.world import World, a_world
from tests.support.stores.tables import change_audit_row
from transport.cli.audit import VerifyChain, format_audit, is_broken, run_on_server
from transport.cli.settings import BadSetting


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with a_world() as made:
        yield made


async def test_a_change_in_any_chain_is_seen_with_an_operators_key(world: World) -> None:
    audit = world.assembly.gateway.store.audit
    for tenant in ("gamma", ""):
        rows = [Audited(action="verdict", at=UnixMs(1_000 + n), detail={"n": n}) for n in range(3)]
        await audit.record(TenantId(tenant), rows)
    operator, command = world.credentials["operator of another tenant"], VerifyChain(url=world.assembly.server.url)
    whole = await run_on_server(command, operator)
    assert {"", "acme", "beta", "gamma"} <= {each["tenant"] for each in whole} and not is_broken(command, whole)
    assert "(installation): 3 rows" in format_audit(command, whole)

    change_audit_row(world.assembly.journal.database, TenantId("gamma"), 2, "at", 5)
    broken = await run_on_server(command, operator)
    assert is_broken(command, broken) and "gamma: row 2 was changed" in format_audit(command, broken)


async def test_a_tenants_key_says_that_it_looked_at_no_other_chain(world: World) -> None:
    service, url = world.credentials["other tenant"], world.assembly.server.url
    command = VerifyChain(url=url)
    (chain,) = await run_on_server(command, await world.key(tenant="beta", role="service", scopes=SCOPES))
    assert chain["tenant"] == "beta" and "no other chain was looked at" in format_audit(command, [chain])
    with pytest.raises(SessileError) as refused:
        await run_on_server(VerifyChain(url=url, all=True), service)
    assert refused.value.code == "forbidden"
    with pytest.raises(BadSetting, match="all"):
        VerifyChain(url=url, all=True, tenant="beta")
