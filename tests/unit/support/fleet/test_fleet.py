"""A small fleet, held to its invariants second by second through everything that can happen to it."""

from __future__ import annotations

import math

import numpy as np
import pytest

from actors.cluster.placement import BOUND, BoundedRendezvous
from sessions.model.types import ReplicaId, SessionKey
from sessions.ports import Member, View
from tests.support.fleet.fleet import Fleet
from tests.support.fleet.retained import DISK, HOST, within_bounds
from tests.support.fleet.scenario import EngineModel, FleetEvent, Scenario

EVENTS = {
    "nothing": (),
    "rack_killed": (FleetEvent("rack_killed", 60, 0.1),),
    "rack_silent": (FleetEvent("rack_silent", 60, 0.1),),
    "region_drained": (FleetEvent("region_drained", 60, 0.25),),
    "hot_tenant": (FleetEvent("hot_tenant", 30, 0.5), FleetEvent("hot_tenant", 60, 50)),
    "rolling_upgrade": (FleetEvent("rolling_upgrade", 10, 1),),
}


class BoundChecked(BoundedRendezvous):
    """Reckons the bound anew at every choice, from the view and from what it placed itself."""

    placings = 0

    def __init__(self) -> None:
        super().__init__()
        self._views: list[View] = []
        self._mine: list[dict[str, int]] = [{}, {}]

    def choose(self, key: SessionKey, view: View, **how: object) -> Member | None:
        if not self._views or self._views[-1] is not view:
            self._views.append(view)
            self._mine = [self._mine[-1], {}]
        chosen = super().choose(key, view, **how)  # type: ignore[arg-type]
        if chosen is None:
            return None
        avoid: list[ReplicaId] = list(how.get("avoid", ()))  # type: ignore[call-overload]
        able = [each for each in view.members if not each.draining and each.replica not in avoid]
        slots = chosen.engine.slots if chosen.engine is not None else 0

        def sessions(each: Member) -> float:
            return each.load * slots + sum(placed.get(each.replica, 0) for placed in self._mine)

        limit = math.ceil(BOUND * (sum(map(sessions, able)) + 1) / len(able) - 1e-6)
        assert chosen in able
        assert sessions(chosen) + 1 <= limit + 1e-6
        self._mine[-1][chosen.replica] = self._mine[-1].get(chosen.replica, 0) + 1
        BoundChecked.placings += 1
        return chosen


def scenario(name: str = "nothing", **changed: object) -> Scenario:
    small = {"sessions": 1_000, "replicas": 20, "tenants": 10, "seconds": 200, "upgrade_wave": 0.2, "restart_s": 20}
    return Scenario(**(small | {"pause_s": 600.0, "drain_over_s": 60, "events": EVENTS[name]} | changed))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", EVENTS)
def test_one_owner_one_answer_and_the_bound_whatever_happens(name: str) -> None:
    BoundChecked.placings = 0
    fleet = Fleet(scenario(name), placement=BoundChecked)
    measured = fleet.run(checked=True)
    assert measured.counts["turns"] > 200
    assert BoundChecked.placings > 20
    assert measured.counts["interrupted"] == len(measured.excesses_s)
    if name == "rolling_upgrade":
        assert {member.incarnation for member in fleet.placed.members} == {"1"}
    if name == "region_drained":
        assert not fleet.up[:5].any() and fleet.up[5:].all()
        assert measured.counts["handed_off"] > 0


def test_a_seed_is_the_same_run_again() -> None:
    one, same, other = (Fleet(scenario("rack_killed", seed=seed)).run() for seed in (3, 3, 4))
    assert one.rows == same.rows
    assert one.counts == same.counts
    assert one.counts != other.counts


def test_a_silent_rack_is_suspected_later_than_a_killed_one() -> None:
    killed, silent = (Fleet(scenario(name, sessions=3_000)).run() for name in ("rack_killed", "rack_silent"))
    assert len(killed.excesses_s) and len(silent.excesses_s)
    assert float(killed.excesses_s.min()) == pytest.approx(0.05, abs=0.01)
    assert float(silent.excesses_s.min()) == pytest.approx(0.5, abs=0.01)


def test_full_engines_refuse_and_nobody_is_lost() -> None:
    fleet = Fleet(scenario(replicas=2, pause_s=60.0, engine=EngineModel(slots=2)))
    measured = fleet.run(checked=True)
    assert measured.counts["refused"] > 0
    assert measured.counts["turns"] > 0


def test_a_hot_tenant_is_held_to_its_ceiling() -> None:
    measured = Fleet(scenario("hot_tenant", hot_requests_per_minute=10)).run()
    assert measured.counts["limited"] > 0


def test_each_replica_keeps_its_worthiest_within_its_bound() -> None:
    rng = np.random.default_rng(1)
    replica = rng.integers(0, 5, 200, dtype=np.int32)
    num_bytes = rng.integers(1, 100, 200)
    worth = rng.random(200).astype(np.float32)
    stays = within_bounds(replica, num_bytes, worth, 500)
    for number in range(5):
        mine = replica == number
        assert num_bytes[mine & stays].sum() <= 500
        assert worth[mine & stays].min() >= worth[mine & ~stays].max()


def test_tiers_are_within_their_bounds() -> None:
    engine = EngineModel(host_bytes=5e9, disk_bytes=1e10)
    fleet = Fleet(scenario(engine=engine))
    for tier, bound in ((HOST, engine.host_bytes), (DISK, engine.disk_bytes)):
        held = np.bincount(
            fleet.holder[fleet.tier == tier], weights=fleet.tokens[fleet.tier == tier] * float(engine.token_bytes)
        )
        assert 0 < held.max() <= bound
