"""What operators see of the sessions in a replica's memory, page by page."""

from __future__ import annotations

from actors.cluster.membership import Membership
from actors.maintenance.introspection import SessionSurvey
from actors.peer.frames import Measure, Survey
from actors.replica import Replica
from sessions.load_history import STEP_S, LoadHistory
from sessions.model.types import UnixMs
from tests.support.cluster.harness import cluster, until
from tests.support.cluster.steps import all_met, answering
from tests.support.virtual_time import advance, virtual


def survey_of(replica: Replica, membership: Membership | None = None) -> SessionSurvey:
    runtime = replica.runtime
    history = LoadHistory(runtime.metrics, replica.engine, lambda: runtime.num_present, lambda: UnixMs(0))
    return SessionSurvey(runtime, replica.engine, history, membership)


@virtual
async def test_pages_are_in_order_and_filters_count_all_that_pass() -> None:
    async with cluster(replicas=1) as made:
        for name in ("b", "c", "a"):
            await made.gateways["g1"].create(name)
        replica = made.replicas["r1"].replica
        survey = survey_of(replica)
        first = survey.answer(Survey(1, limit=2))
        assert [each.key.session for each in first.residents] == ["a", "b"]
        assert (first.id, first.total, first.has_more) == (1, 3, True)
        rest = survey.answer(Survey(2, after=first.residents[-1].key, limit=2))
        assert [each.key.session for each in rest.residents] == ["c"] and not rest.has_more
        assert survey.answer(Survey(3, session="b")).total == 1
        assert survey.answer(Survey(4, tenant="globex")).total == 0
        assert survey.answer(Survey(5, state="idle")).total == 3


@virtual
async def test_a_session_shows_its_state_its_open_answers_and_why_it_is_here() -> None:
    async with cluster(replicas=2) as made:
        await all_met(made)
        key, _ = await answering(made, tokens=60)
        replica = made.replicas[made.owner(key)].replica
        survey = survey_of(replica, replica.membership)
        (shown,) = survey.answer(Survey(1, session=key.session)).residents
        assert (shown.state, shown.replica, shown.fence, shown.idle_s) == (
            "turn",
            replica.runtime.identity.replica,
            1,
            0,
        )
        assert len(shown.open) == 1 and shown.top > 0 and shown.readers == 1
        assert shown.reason.startswith("new; choice ") and shown.reason.endswith("of 2")
        await made.at_rest(key)
        await until(lambda: not replica.runtime.actor(key).busy)  # type: ignore[union-attr]
        await advance(5.0)
        (shown,) = survey.answer(Survey(2, session=key.session)).residents
        assert shown.state == "idle" and shown.open == () and shown.idle_s >= 5.0 and shown.kv_tokens > 0


@virtual
async def test_the_load_is_sampled_beside_the_work_and_measured_when_it_is_requested() -> None:
    async with cluster(replicas=1) as made:
        key, _ = await answering(made, tokens=60)
        await made.at_rest(key)
        replica = made.replicas["r1"].replica
        await advance(3 * STEP_S)
        survey = replica.endpoint.survey
        assert survey is not None
        measured = survey.measure(Measure(7, 0, STEP_S))
        assert (measured.id, measured.sessions) == (7, 1)
        assert sum(measured.totals.ttft) == 1 and sum(measured.totals.ended.values()) == 1
        assert len(measured.samples) >= 3
        assert sum(sum(each.ttft) for each in measured.samples) == 1
        assert sum(each.decoded_tokens for each in measured.samples) >= 60
        assert survey.measure(Measure(8)).samples == ()
        assert survey.measure(Measure(9, measured.samples[-1].at, STEP_S)).samples == ()
