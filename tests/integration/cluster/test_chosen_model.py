"""A turn names another model than its session has: the conversation goes on there, or the turn is refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from sessions.machine.model_routing import alias_of
from sessions.model import commands as cm
from sessions.model import events as ev
from sessions.model.errors import Conflict, NotFound
from sessions.model.request import request_of
from sessions.model.types import SessionKey
from sessions.routing.models_file import NO_POOLS
from tests.support.cluster.harness import ALICE, Cluster, until
from tests.support.cluster.model_pools import EASY, FileInForce, add, events, pools, receipts, say
from tests.support.virtual_time import virtual


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
        head = made.store.head(key)
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
