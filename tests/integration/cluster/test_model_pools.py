"""Sessions among pools of models: switched between turns, down and back when a pool is lost, named by a turn."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from inference.simulated import SimulatedEngine
from sessions.machine.model_routing import ROUTING_NOTE, alias_of
from sessions.model import commands as cm
from sessions.model import events as ev
from sessions.model.errors import Conflict, Forbidden, NotFound
from sessions.model.request import request_of
from sessions.model.types import CommandId, SessionId, SessionKey
from sessions.routing.models_file import NO_POOLS, ModelPools, read_models
from tests.support.cluster.harness import ALICE, FAST, Cluster, cluster, until
from tests.support.stores.tables import head_of, page_of
from tests.support.virtual_time import virtual

HARD = "Refactor this and explain why it is safe:\n```python\ndef take(queue):\n    return queue.pop()\n```"
EASY = "Thanks! And what should I cook tonight?"
FILE = """
default = "auto"
[models.small]
quality = 1
[models.large]
quality = 2
[aliases]
auto = ["small", "large"]
[routing]
worth_tokens = 100000
smoothing = 1.0
calm_turns = 2
[tenants.strangers]
allow = ["small"]
"""


class FileInForce:
    """A models file that a test may change."""

    def __init__(self, text: str = FILE) -> None:
        self.pools = read_models(text)

    def now(self) -> ModelPools:
        return self.pools


async def add(made: Cluster, name: str, model: str) -> None:
    options = msgspec.structs.replace(FAST, model=model, weights=len(model))
    await made.add_replica(name, SimulatedEngine(options))


@asynccontextmanager
async def pools(file: FileInForce | None = None) -> AsyncIterator[Cluster]:
    async with cluster(replicas=0, gateways=0, pools=(file or FileInForce()).now) as made:
        await add(made, "s1", "small")
        await add(made, "l1", "large")
        await made.add_gateway("g1")
        nodes = made.replicas.values()
        await until(lambda: all(len(each.replica.membership.view.members) == 2 for each in nodes))
        yield made


def events(made: Cluster, key: SessionKey) -> list[ev.AnyEvent]:
    page = page_of(made.store, key)
    assert page is not None
    return [record.event for record in page.records]


def receipts(made: Cluster, key: SessionKey) -> list[dict[str, Any]]:
    """Returns the model and the routing receipt of each response as it began."""
    created = (each.response for each in events(made, key) if isinstance(each, ev.ResponseCreated))
    return [{"wrote": body.model, **(body.service or {}).get("routing", {})} for body in created]


async def say(made: Cluster, key: SessionKey, text: str, tokens: int = 12) -> dict[str, Any]:
    """A turn to its end; returns its receipt."""
    await made.gateways["g1"].say(key, text, tokens=tokens)
    await made.at_rest(key)
    return receipts(made, key)[-1]


@virtual
async def test_a_session_changes_its_model_between_turns_and_leaves_receipts() -> None:
    async with pools() as made:
        key = await made.gateways["g1"].create("one")
        first = await say(made, key, EASY)
        assert (first["wrote"], first["model"], first["why"]) == ("small", "small", "first_turn")
        assert made.owner(key) == "s1"
        hard = await say(made, key, HARD)
        assert (hard["wrote"], hard["from"], hard["why"]) == ("large", "small", "hard")
        assert 0 < hard["tokens"] < 200 and hard["version"] == FileInForce().pools.version
        assert made.owner(key) == "l1"
        stays = await say(made, key, EASY)
        assert (stays["wrote"], stays["why"]) == ("large", "hysteresis") and "from" not in stays
        back = await say(made, key, EASY)
        assert (back["wrote"], back["from"], back["why"]) == ("small", "large", "calm")
        assert made.owner(key) == "s1"
        ended = [
            each.response
            for each in events(made, key)
            if isinstance(each, ev.ResponseCompleted | ev.ResponseIncomplete)
        ]
        assert [body.model for body in ended] == ["small", "large", "large", "small"]
        assert (
            ended[1].metadata[ROUTING_NOTE]
            == f"large from small: hard, score {hard['score']}, {hard['tokens']} tokens computed anew"
        )
        head = head_of(made.store, key)
        assert head is not None and head.model == "auto=small"


@virtual
async def test_kv_of_the_model_that_was_left_is_there_when_the_session_is_back() -> None:
    async with pools() as made:
        key = await made.gateways["g1"].create("one")
        await say(made, key, "word " * 800)
        assert made.owner(key) == "s1"
        small = made.replicas["s1"].engine
        await say(made, key, HARD)
        assert small.place(key).tokens > 500
        for _ in range(2):
            await say(made, key, EASY)
        assert made.owner(key) == "s1" and small.stats().counters["prefilled_tokens"] < 1_400


@pytest.mark.parametrize("killed", [False, True])
@virtual
async def test_a_session_is_deleted_although_no_replica_serves_its_model(killed: bool) -> None:
    """It waited for one as a turn does, and was 503."""
    async with cluster(replicas=0, gateways=0) as made:
        for name, model in (("s1", "small"), ("l1", "large"), ("t1", "third")):
            await add(made, name, model)
        door = await made.add_gateway("g1")
        key = await door.create("one", model="large")
        lost = made.replicas["l1"]
        await (lost.kill() if killed else lost.end())
        await door.router.execute(request_of(ALICE, cm.SessionDelete(id=CommandId("d"), session=key.session)))
        head = head_of(made.store, key)
        assert head is not None and head.deleted_at is not None
        assert door.router.retries <= 2, "links broke, and nothing was waited for"


@virtual
async def test_a_lost_pool_is_left_and_come_back_to() -> None:
    async with pools() as made:
        key = await made.gateways["g1"].create("one")
        assert (await say(made, key, HARD))["wrote"] == "large"
        await made.replicas["l1"].kill()
        down = await say(made, key, HARD)
        assert (down["wrote"], down["from"], down["why"]) == ("small", "large", "pool_lost")
        await add(made, "l2", "large")
        view = made.replicas["s1"].replica.membership
        await until(lambda: {member.replica for member in view.view.members} == {"s1", "l2"})
        back = await say(made, key, HARD)
        assert (back["wrote"], back["from"]) == ("large", "small") and made.owner(key) == "l2"


@virtual
async def test_an_answer_whose_pool_is_lost_ends_and_is_not_continued_by_another_model() -> None:
    async with pools() as made:
        key = await made.gateways["g1"].create("one")
        await made.gateways["g1"].say(key, HARD, tokens=400)
        await made.writes(key, 5)
        reader = made.gateways["g1"].read(key)
        await made.replicas["l1"].kill()
        await made.at_rest(key)
        (ended,) = [each.response for each in events(made, key) if isinstance(each, ev.ResponseIncomplete)]
        assert (ended.model, ended.incomplete_details) == ("large", {"reason": "recovery_incompatible"})
        assert (await say(made, key, HARD))["wrote"] == "small"
        await reader.reaches(made.top(key))


@virtual
async def test_a_session_of_a_named_model_waits_for_its_pool() -> None:
    async with pools() as made:
        gateway = made.gateways["g1"].router
        create = cm.SessionCreate(id=CommandId("c"), session=SessionId("one"), model="large")
        await gateway.execute(request_of(ALICE, create))
        key = SessionKey(ALICE.tenant, SessionId("one"))
        assert made.owner(key) == "l1"
        easy = await say(made, key, EASY)
        assert easy == {"wrote": "large"}, "nothing was decided"


@virtual
async def test_what_a_tenant_may_not_use_is_refused_also_when_the_file_changes() -> None:
    file = FileInForce()
    async with pools(file) as made:
        router = made.gateways["g1"].router
        stranger = msgspec.structs.replace(ALICE, tenant="strangers")
        create = cm.SessionCreate(id=CommandId("c"), session=SessionId("no"), model="large")
        with pytest.raises(Forbidden, match="You may not use the model 'large'"):
            await router.execute(request_of(stranger, create))
        key = await made.gateways["g1"].create("one")
        assert (await say(made, key, HARD))["wrote"] == "large"
        file.pools = read_models(FILE + f'[tenants.{ALICE.tenant}]\nallow = ["small"]\n')
        moved = await say(made, key, HARD)
        assert (moved["wrote"], moved["why"]) == ("small", "not_allowed")
        assert moved["version"] == file.pools.version


@virtual
async def test_a_repeat_of_the_turn_that_switched_is_applied_once() -> None:
    async with pools() as made:
        gateway = made.gateways["g1"]
        key = await gateway.create("one")
        await say(made, key, EASY)
        first = await gateway.say(key, HARD, tokens=12, id="again")
        await made.at_rest(key)
        assert await gateway.say(key, HARD, tokens=12, id="again") == first
        assert [each["wrote"] for each in receipts(made, key)] == ["small", "large"]


@virtual
async def test_deleting_a_session_erases_its_kv_at_both_models() -> None:
    async with pools() as made:
        key = await made.gateways["g1"].create("one")
        await say(made, key, EASY)
        await say(made, key, HARD)
        engines = [node.engine for node in made.replicas.values()]
        assert all(engine.place(key).tokens for engine in engines)
        delete = cm.SessionDelete(id=made.command_id(), session=key.session)
        await made.gateways["g1"].router.execute(request_of(ALICE, delete))
        await until(lambda: not any(engine.place(key).tokens for engine in engines))


def no_file() -> FileInForce:
    file = FileInForce()
    file.pools = NO_POOLS
    return file


async def execute(made: Cluster, command: cm.ClientCommand) -> cm.Ok:
    return await made.gateways["g1"].router.execute(request_of(ALICE, command))


async def begun(made: Cluster, model: str) -> SessionKey:
    """A session of this model, with one turn."""
    ok = await execute(made, cm.SessionCreate(id=made.command_id(), model=model))
    assert ok.session is not None
    key = SessionKey(ALICE.tenant, ok.session)
    await say(made, key, EASY)
    return key


async def turn(made: Cluster, key: SessionKey, model: str | None, text: str = EASY, **more: Any) -> cm.Ok:
    command = cm.MessageCreate(
        id=made.command_id(), session=key.session, content=text, max_output_tokens=12, model=model, **more
    )
    ok = await execute(made, command)
    await made.at_rest(key)
    return ok


def info(made: Cluster, key: SessionKey) -> ev.SessionInfo:
    *_, last = (e.info for e in events(made, key) if isinstance(e, ev.SessionCreated | ev.SessionUpdated))
    return last


def wrote(made: Cluster, key: SessionKey) -> list[str]:
    return [each["wrote"] for each in receipts(made, key)]


@virtual
async def test_a_turn_that_names_another_model_takes_the_conversation_there_for_good() -> None:
    async with pools(no_file()) as made:
        key = await begun(made, "small")
        await turn(made, key, "large")
        assert made.owner(key) == "l1" and wrote(made, key) == ["small", "large"]
        await turn(made, key, None)
        assert wrote(made, key)[-1] == "large", "it stays there"
        await turn(made, key, "large")
        assert (info(made, key).model, alias_of(info(made, key))) == ("large", "")
        head = head_of(made.store, key)
        assert head is not None and head.model == "large"
        await turn(made, key, "small")
        assert made.owner(key) == "s1" and wrote(made, key) == ["small", "large", "large", "large", "small"]


@virtual
async def test_another_answer_and_an_edited_message_may_be_another_models() -> None:
    async with pools(no_file()) as made:
        key = await begun(made, "small")
        again = cm.ResponseCreate(id=made.command_id(), session=key.session, model="large", max_output_tokens=5)
        await execute(made, again)
        await made.at_rest(key)
        assert wrote(made, key) == ["small", "large"]
        created = [each.response for each in events(made, key) if isinstance(each, ev.ResponseCreated)]
        assert created[0].parent_id == created[1].parent_id, "both answer the same question"
        question = created[0].parent_id
        assert question is not None
        edit = cm.MessageEdit(
            id=made.command_id(),
            session=key.session,
            item_id=question,
            content="Otherwise.",
            model="small",
            max_output_tokens=5,
        )
        await execute(made, edit)
        await made.at_rest(key)
        assert wrote(made, key) == ["small", "large", "small"]


@virtual
async def test_a_model_that_is_not_there_is_refused_by_name_and_nothing_is_written() -> None:
    async with pools(no_file()) as made:
        key = await begun(made, "small")
        top = made.top(key)
        with pytest.raises(NotFound, match="No replica serves the model 'giant'") as refused:
            await turn(made, key, "giant")
        assert (refused.value.code, refused.value.param) == ("model_not_found", "model")
        assert made.top(key) == top and wrote(made, key) == ["small"]


@virtual
async def test_a_model_whose_replicas_are_away_is_not_answered_for_by_another_one() -> None:
    async with pools() as made:
        key = await begun(made, "small")
        await made.replicas["l1"].kill()
        view = made.replicas["s1"].replica.membership
        await until(lambda: len(view.view.members) == 1)
        with pytest.raises(NotFound, match="No replica serves the model 'large' at the moment"):
            await turn(made, key, "large")
        assert wrote(made, key) == ["small"]
        await add(made, "l2", "large")
        await until(lambda: len(view.view.members) == 2)
        await turn(made, key, "large")
        assert wrote(made, key) == ["small", "large"]


@virtual
async def test_a_turn_in_an_answer_cannot_change_the_model() -> None:
    async with pools(no_file()) as made:
        key = await begun(made, "small")
        await made.gateways["g1"].say(key, EASY, tokens=400)
        await made.writes(key, 5)
        with pytest.raises(Conflict) as refused:
            await turn(made, key, "large", queue=True)
        assert refused.value.code == "response_in_progress" and refused.value.retryable
        assert refused.value.param == "model" and "stop it, then send this again" in str(refused.value)


@virtual
async def test_an_alias_may_be_chosen_and_left_again() -> None:
    async with pools() as made:
        key = await begun(made, "small")
        await turn(made, key, "auto", "Thanks!")
        assert alias_of(info(made, key)) == "auto" and receipts(made, key)[-1]["alias"] == "auto"
        await turn(made, key, "large")
        assert (info(made, key).model, alias_of(info(made, key)), made.owner(key)) == ("large", "", "l1")
        await turn(made, key, "auto", "Thanks!")
        here = info(made, key).model
        await turn(made, key, here)
        assert (info(made, key).model, alias_of(info(made, key))) == (here, ""), "pinned where it is"
        assert wrote(made, key)[-1] == here
