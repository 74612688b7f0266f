"""Histories that are changed anywhere before they are resent, brought along ones too: what is the same is not computed
again, whoever's session holds it; and nobody gains by another's."""

from __future__ import annotations

import random
from typing import Any

import httpx
import msgspec
import pytest

from inference.simulated import SimulatedOptions
from sessions.model.types import LOCAL_PRINCIPAL, Principal, TenantId
from tests.support.doors.openai_server import SIMULATED, Serving, serving
from tests.support.rounds.mutated_histories import MUTATIONS, HistoryRounds, sentence
from transport.auth.authenticator import key_digest

BLOCK = 32
ROUNDS = 4  # of each way


@pytest.mark.parametrize("mutation", MUTATIONS)
async def test_what_stands_behind_the_first_difference_is_computed_and_a_block_at_most(
    server: Serving, mutation: str
) -> None:
    async with httpx.AsyncClient(base_url=server.server.url) as http:
        player = HistoryRounds(http, SIMULATED, exchanges=3, answer_tokens=12)
        for number in range(ROUNDS):
            rng = random.Random(f"{mutation} {number}")
            done = await player.resend(mutation, rng, await player.begin(rng))
            assert done.is_within(BLOCK) and done.computed < done.prompt_tokens, done


async def test_the_first_question_once_more_and_an_imported_history_lie_in_sessions_of_their_own(
    server: Serving,
) -> None:
    messages = [{"role": "user", "content": f"A question about {number} rivers and their lakes."} for number in (1, 2)]
    async with httpx.AsyncClient(base_url=server.server.url) as http:
        seen = [await _sent(http, each) for each in ([messages[0]], [messages[0]], messages, [messages[0]])]
    assert len({session for session, _, _ in seen}) > 1
    assert all(prompt - cached <= BLOCK for _, prompt, cached in seen[1:])


CALLERS = {
    "mine": LOCAL_PRINCIPAL,
    "another key": msgspec.structs.replace(LOCAL_PRINCIPAL, key_id="other"),
    "another user of the key": msgspec.structs.replace(LOCAL_PRINCIPAL, user="bob"),
    "another tenant": Principal(tenant=TenantId("other"), key_id=LOCAL_PRINCIPAL.key_id),
}


@pytest.mark.parametrize("stored", [False, True])
async def test_nobody_gains_by_what_another_has_computed(options: SimulatedOptions, stored: bool) -> None:
    history: Any = [{"role": "user", "content": sentence(random.Random(1), 60)}]
    keys = {key_digest(key): caller for key, caller in CALLERS.items()}
    async with serving(options, keys=keys) as made, httpx.AsyncClient(base_url=made.server.url) as http:
        if stored:  # a conversation of its own, which no resent history is taken from
            body = {"model": SIMULATED, "input": history[0]["content"], "user": "ann"}
            answer = await http.post("/v1/responses", json=body, headers={"authorization": "Bearer mine"})
            answer.raise_for_status()
        else:
            await _sent(http, history, user="ann", key="mine")
        for key, user in (*((key, "ann") for key in CALLERS if key != "mine"), ("mine", "bob"), ("mine", None)):
            _, _, cached = await _sent(http, history, user=user, key=key)
            assert cached == 0, f"{key}, {user}"
        _, prompt, cached = await _sent(http, history, user="ann", key="mine")
        assert cached == 0 if stored else prompt - cached <= BLOCK


async def _sent(
    http: httpx.AsyncClient, messages: Any, *, user: str | None = None, key: str = "none"
) -> tuple[str, int, int]:
    """The session, its prompt's tokens, and how many of them were cached."""
    body = {"model": SIMULATED, "messages": messages, "max_tokens": 8, **({} if user is None else {"user": user})}
    answer = await http.post("/v1/chat/completions", json=body, headers={"authorization": f"Bearer {key}"})
    answer.raise_for_status()
    usage = answer.json()["usage"]
    return answer.headers["x-session-id"], usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]
