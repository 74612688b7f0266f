"""Answers by the smaller model in a cluster: killed, handed off, and replicas that do not go together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest

from inference.brownout_engine import BrownoutEngine, make_brownout_engine
from inference.simulated import SimulatedEngine
from sessions.actor.actor_context import ActorLimits
from sessions.actor.admission import Admission
from sessions.limits import BrownoutStep, Forecast, Limits, Share, Target
from sessions.model.errors import BadInput
from sessions.model.events import ResponseCompleted, ResponseCreated, ResponseIncomplete
from sessions.model.generation import EngineInfo
from sessions.model.types import ResponseId, SessionKey, TenantId
from tests.support.cluster.harness import FAST, Cluster, cluster, with_runtime
from tests.support.cluster.steps import answering, member, migrations, other, text_of
from tests.support.stores.tables import head_of, page_of
from tests.support.virtual_time import virtual
from transport.ops.operator_api import member_shown

SMALL = "small"
CAUSES = {"killed": "failover", "handed off": "handoff"}
LIMITS = Limits(targets={"default": Target(ttft_ms=500)}, brownout=(BrownoutStep(smaller_model=True),))


class Late:
    """What admission is told: the model is late, or is not, and the smaller one never."""

    def __init__(self, info: EngineInfo) -> None:
        self.info = info
        self.late = True

    def forecast(self, key: SessionKey, share: Share, new_tokens: int, model: str = "") -> Forecast:
        ttft_s = 9.0 if self.late and not model else 0.0
        return Forecast(position=0, wait_s=ttft_s, ttft_s=ttft_s, tpot_s=0.0)

    def expect(self, tenant: TenantId, response_id: ResponseId, model: str = "") -> None:
        return


def pair(smaller: str = SMALL, weights: int = 0) -> BrownoutEngine:
    options = FAST.smaller(smaller, 2.0, 4)
    options = msgspec.structs.replace(options, weights=weights or options.weights)
    return make_brownout_engine(SimulatedEngine(FAST), lambda _: SimulatedEngine(options))


@asynccontextmanager
async def pairs(replicas: int = 2) -> AsyncIterator[tuple[Cluster, Late]]:
    """A cluster whose replicas have a smaller model, in brownout."""
    async with cluster(replicas=0, gateways=1) as made:
        engine = pair()
        await engine.start()
        told = Late(engine.info)
        await engine.close()
        admission = Admission(told, lambda: LIMITS, asyncio.get_running_loop().time)  # type: ignore[arg-type]
        admission.brownout.level = 1
        made.replica_limits = with_runtime(made.replica_limits, actor=ActorLimits(admission=admission))
        for number in range(1, replicas + 1):
            await made.add_replica(f"r{number}", pair())
        yield made, told


def models(made: Cluster, key: SessionKey) -> list[tuple[str, str]]:
    """Of each response that began or ended: what, and by which model."""
    page = page_of(made.store, key)
    assert page is not None
    kinds = ResponseCreated | ResponseCompleted | ResponseIncomplete
    events = [record.event for record in page.records if isinstance(record.event, kinds)]
    return [(each.response.status, each.response.model) for each in events]


def engine_of(made: Cluster, name: str) -> BrownoutEngine:
    engine = made.replicas[name].engine
    assert isinstance(engine, BrownoutEngine)
    return engine


@virtual
@pytest.mark.parametrize("how", CAUSES)
async def test_in_mid_answer_the_same_model_goes_on_elsewhere_as_if_nothing_had_been(how: str) -> None:
    texts = []
    for disturbed in (False, True):
        async with pairs() as (made, _):
            key, reader = await answering(made)
            source = made.replicas[made.owner(key)]
            target = other(made, source.name)
            if disturbed and how == "killed":
                await source.kill()
            elif disturbed:
                await source.replica.handoff.hand_off(key, member(target))
            await reader.reaches(await made.at_rest(key))
            assert models(made, key) == [("in_progress", SMALL), ("incomplete", SMALL)]
            assert engine_of(made, target.name).main.stats().counters["decoded_tokens"] == 0
            wrote = engine_of(made, target.name).smaller.stats().counters["decoded_tokens"]
            assert (wrote > 50) is disturbed
            assert migrations(made, key) == (
                [{"killed": "failover", "handed off": "handoff"}[how]] if disturbed else []
            )
            texts.append(text_of(made, key))
    assert texts[0] == texts[1]


@virtual
async def test_handed_off_while_the_smaller_model_writes_the_models_kv_goes_along() -> None:
    """Else each replica that is emptied under overload would have the next ones compute whole conversations."""
    async with pairs() as (made, told):
        gateway = made.gateways["g1"]
        key = await gateway.create("one")
        told.late = False
        await gateway.say(key, "word " * 500, tokens=20)
        await made.at_rest(key)
        told.late = True
        await gateway.say(key, "And then?", tokens=150)
        await made.writes(key, 5)
        source = made.replicas[made.owner(key)]
        target = other(made, source.name)
        await source.replica.handoff.hand_off(key, member(target))
        counters = engine_of(made, target.name).main.stats().counters
        assert counters["imports"] == 1 and counters["prefilled_tokens"] < 100
        await made.at_rest(key)
        assert models(made, key)[-2:] == [("in_progress", SMALL), ("incomplete", SMALL)]


@virtual
async def test_when_it_is_over_the_model_goes_on_from_where_it_was() -> None:
    async with pairs(1) as (made, told):
        gateway, engine = made.gateways["g1"], engine_of(made, "r1")
        key = await gateway.create("one")
        asked = ("word " * 500, False), ("And then?", True), ("And in the end?", False)
        computed = []
        for text, late in asked:
            told.late = late
            before = engine.main.stats().counters["prefilled_tokens"]
            await gateway.say(key, text, tokens=30)
            await made.at_rest(key)
            computed.append(engine.main.stats().counters["prefilled_tokens"] - before)
        assert [model for _, model in models(made, key)] == ["simulated"] * 2 + [SMALL] * 2 + ["simulated"] * 2
        assert computed[0] > 500 and computed[1] == 0 and computed[2] < 100, "only what was said meanwhile"
        assert member_shown(member(made.replicas["r1"]))["smaller_model"] == SMALL, "as operators are shown"
        head = head_of(made.store, key)
        assert head is not None and head.model == "simulated", "the session's model is what it was"


@virtual
@pytest.mark.parametrize(
    ("engine", "says"),
    [
        (lambda: pair("tiny"), "its smaller model is tiny"),
        (lambda: pair(weights=7), "its smaller model is small"),
        (lambda: SimulatedEngine(FAST), "its smaller model is none"),
    ],
)
async def test_a_replica_with_another_smaller_model_is_refused_at_the_start(engine: object, says: str) -> None:
    async with pairs(1) as (made, _):
        with pytest.raises(BadInput) as refused:
            await made.add_replica("r2", engine())  # type: ignore[operator]
        assert refused.value.code == "replica_differs" and says in refused.value.public_message
        del made.replicas["r2"]
