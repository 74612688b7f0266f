"""Questions about texts at a gateway of a cluster: any replica of the model answers, over its peer link."""

from __future__ import annotations

import pytest

from inference.simulated import SimulatedEngine, decode
from sessions.model.errors import BadInput, Unavailable
from sessions.model.inspection import JudgedTexts, PromptMessage, PromptTokens, TextTokens, TokenIds
from sessions.model.types import Tool
from tests.support.cluster.real import ALICE, FAST, real_cluster


async def test_a_replica_answers_and_a_second_one_where_it_has_ended() -> None:
    async with real_cluster(2) as cluster:
        router = await cluster.add_gateway("g")
        model = SimulatedEngine(FAST).info.model
        found = await router.inspect(ALICE, model, TextTokens("the river", starts=True))
        assert isinstance(found, TokenIds) and decode(found.tokens[1:]) == "the river"
        tool = Tool(name="look", parameters={"type": "object"})
        question = PromptTokens(tools=(tool,), messages=(PromptMessage(role="user", text="the river"),))
        whole = await router.inspect(ALICE, model, question)
        assert isinstance(whole, TokenIds) and "look" in decode(whole.tokens) and whole.context_window > 0
        with pytest.raises(BadInput) as caught:
            await router.inspect(ALICE, model, JudgedTexts(("x",)))
        assert caught.value.code == "moderation_unavailable"  # as the replica has it
        await cluster.replicas["r1"].crash()
        for _ in range(4):
            assert await router.inspect(ALICE, model, TextTokens("the river", starts=True)) == found
        with pytest.raises(Unavailable):
            await router.inspect(ALICE, "another", TextTokens("x"))
