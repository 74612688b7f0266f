"""What the replicas of each model can do together."""

from __future__ import annotations

import msgspec

from actors.cluster.pool_states import PoolStates, pool_states
from inference.simulated import SimulatedEngine, SimulatedOptions
from sessions.model.types import ReplicaId
from sessions.ports import Member, View

INFO = SimulatedEngine(SimulatedOptions()).info


def member(name: str, model: str = "m", **more: object) -> Member:
    made = Member(replica=ReplicaId(name), incarnation="i", address="", model=model, fingerprint="f", engine=INFO)
    return msgspec.structs.replace(made, **more)


def test_a_pool_promises_what_all_its_replicas_can_do() -> None:
    lesser = msgspec.structs.replace(
        INFO, context_window=512, tool_format="none", sampling=frozenset({"seed"}), aliases=("other",)
    )
    able = msgspec.structs.replace(INFO, sampling=frozenset({"text"}), images=True)
    states = pool_states(
        View(
            1, (member("a", engine=able, load=1.0), member("b", engine=lesser, load=0.0), member("c", "n", engine=able))
        )
    )
    assert states["m"] == (2, 0.5, 512, False, frozenset(), frozenset({"other"}), False)
    assert states["n"].sampling == frozenset({"text"}) and states["n"].replicas == 1
    assert states["n"].images


def test_who_takes_nothing_is_not_counted() -> None:
    view = View(1, (member("a", draining=True), member("b", weight=0.0), member("c", "n", engine=None)))
    states = pool_states(view)
    assert set(states) == {"n"} and states["n"].window > 1_000_000 and states["n"].sampling is None


def test_a_view_is_looked_at_once() -> None:
    views = [View(1, (member("a"),))]
    states = PoolStates(lambda: views[-1])
    assert states() is states()
    views.append(View(2, ()))
    assert states() == {}
