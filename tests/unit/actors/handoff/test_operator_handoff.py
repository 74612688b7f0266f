"""What an operator may ask for, and how they are answered when a session stays."""

from __future__ import annotations

import pytest

from actors.handoff.operator_handoff import OperatorHandoff
from sessions.model.errors import BadInput, Conflict, NotFound
from sessions.model.types import SessionId, SessionKey, TenantId
from tests.support.cluster.harness import cluster, until
from tests.support.cluster.steps import all_met, other, planner_of
from tests.support.virtual_time import virtual


@virtual
async def test_a_session_moves_to_the_named_replica_or_where_placement_has_it() -> None:
    async with cluster(replicas=2) as made:
        await all_met(made)
        key = await made.gateways["g1"].create("one")
        source, target = made.owner(key), other(made, made.owner(key)).name
        assert (await OperatorHandoff(planner_of(made, source)).move(key, target)).replica == target
        assert (await OperatorHandoff(planner_of(made, target)).move(key, "")).replica == source


@virtual
async def test_what_cannot_be_is_refused_with_a_reason() -> None:
    async with cluster(replicas=2) as made:
        await all_met(made)
        key = await made.gateways["g1"].create("one")
        source, target = made.owner(key), other(made, made.owner(key))
        handoff = OperatorHandoff(planner_of(made, source))
        with pytest.raises(NotFound):
            await handoff.move(SessionKey(TenantId("acme"), SessionId("not here")), "")
        for name in ("nobody", source):
            with pytest.raises(BadInput, match="no other replica"):
                await handoff.move(key, name)
        target.replica.membership.change(draining=True)
        await until(lambda: any(each.draining for each in made.replicas[source].replica.membership.view.members))
        with pytest.raises(BadInput, match="drains"):
            await handoff.move(key, target.name)
        with pytest.raises(Conflict) as stays:
            await handoff.move(key, "")
        assert stays.value.code == "session_stays" and made.owner(key) == source
