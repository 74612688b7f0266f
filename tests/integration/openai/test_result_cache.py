"""Answers that need no engine, through the doors: who gets one, what it says of itself, what stands behind it."""

from __future__ import annotations

import collections
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from inference.llama import LlamaEngine, LlamaOptions
from inference.moderation.filter_set import PolicyFilterSet
from inference.simulated import SimulatedOptions
from sessions.billing.metering import UsageQuery
from sessions.billing.prices import PriceBook, read_prices
from sessions.metrics import Counter
from sessions.model.events import ResponseCompleted
from sessions.model.types import ALL_SCOPES, Principal, SessionKey, TenantId
from testbed.engine_client import until
from tests.support.doors.assembly import Assembly, assembled
from tests.support.doors.openai_server import ScriptedEngine
from transport.auth.authenticator import key_digest

OPTIONS = SimulatedOptions(step_base_s=0.001, answer_tokens_mean=24)
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
CHAT: dict[str, Any] = {"model": "simulated", "messages": QUESTION, "max_tokens": 64, "temperature": 0}
ON = "[tenants.local]\nresult_cache_s = 600\n"


async def counted(server: Assembly, outcome: str, times: int = 1) -> None:
    """Returns once so many answers were kept, or not for that reason."""
    stores = server.runtime.metrics.families["result_cache_stores"]
    assert isinstance(stores, Counter)
    await until(lambda: stores.values.get((outcome,), 0) >= times)


class Served:
    """A server whose engine says how often it was run."""

    def __init__(self, server: Assembly, engine: ScriptedEngine, http: httpx.AsyncClient) -> None:
        self.server = server
        self.engine = engine
        self.http = http
        self._kept: collections.Counter[str] = collections.Counter()

    async def chat(self, *, headers: dict[str, str] | None = None, **more: Any) -> httpx.Response:
        answer = await self.http.post("/v1/chat/completions", json={**CHAT, **more}, headers=headers)
        assert answer.status_code == 200, answer.text
        return answer

    async def kept(self, outcome: str = "stored") -> None:
        """Returns once one more answer was kept, or not for that reason."""
        self._kept[outcome] += 1
        await counted(self.server, outcome, self._kept[outcome])

    @property
    def runs(self) -> int:
        return len(self.engine.prompts)


Start = Callable[..., Any]


@pytest.fixture
def start(tmp_path: Path) -> Start:
    @asynccontextmanager
    async def begin(limits: str = ON, **more: Any) -> AsyncIterator[Served]:
        path, engine = tmp_path / "limits.toml", ScriptedEngine(OPTIONS)
        path.write_text(limits)
        async with (
            assembled(limits_file=path, engine=engine, **more) as server,
            httpx.AsyncClient(base_url=server.server.url, timeout=60) as http,
        ):
            yield Served(server, engine, http)

    return begin


def text_of(answer: httpx.Response) -> str:
    return str(answer.json()["choices"][0]["message"]["content"])


async def test_the_same_question_is_answered_without_the_engine(start: Start) -> None:
    async with start() as served:
        first = await served.chat()
        await served.kept()
        again = await served.chat()
        assert (first.headers["x-cache"], again.headers["x-cache"]) == ("miss", "hit")
        assert served.runs == 1
        assert text_of(again) == text_of(first) != ""
        given = again.json()["usage"]
        assert given["prompt_tokens_details"]["cached_tokens"] == given["prompt_tokens"]
        assert given["completion_tokens_details"]["cached_tokens"] == given["completion_tokens"] > 0
        assert "cached_tokens" not in first.json()["usage"]["completion_tokens_details"]


async def test_a_stream_has_the_same_events_and_the_log_says_where_it_came_from(start: Start) -> None:
    async with start() as served:
        kinds = []
        for outcome in ("miss", "hit"):
            answer = await served.http.post(
                "/v1/responses", json={"model": "simulated", "input": "Name a river.", "temperature": 0, "stream": True}
            )
            assert answer.headers["x-cache"] == outcome
            events = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
            kinds.append(list(dict.fromkeys(event["type"] for event in events)))
            shown = await served.http.get(f"/v1/responses/{events[0]['response']['id']}")
            assert shown.json()["status"] == "completed"
            key = SessionKey(TenantId("local"), answer.headers["x-session-id"])
            page = await served.server.journal.read(key, after=0, limit=100, bytes_max=1 << 20)
            assert page is not None
            ends = [record.event for record in page.records if isinstance(record.event, ResponseCompleted)]
            assert [event.response.service for event in ends] == [{"cache": outcome}]
            if outcome == "miss":
                await served.kept()
        assert kinds[0] == kinds[1] and "response.output_text.delta" in kinds[0]
        assert served.runs == 1


async def test_the_turn_after_a_hit_goes_on_from_the_answer_that_was_given(start: Start) -> None:
    """The ledger holds the answer's own tokens; no KV of them is there, and the next turn says so."""
    async with start() as served:
        first = await served.chat(user="ann")
        await served.kept()
        again = await served.chat(user="ben")
        assert again.headers["x-cache"] == "hit"
        sessions = [each.headers["x-session-id"] for each in (first, again)]
        assert sessions[0] != sessions[1]
        key = SessionKey(TenantId("local"), again.headers["x-session-id"])
        assert served.server.engine.place(key).tokens == 0
        history = [
            *QUESTION,
            {"role": "assistant", "content": text_of(first)},
            {"role": "user", "content": "And of Italy?"},
        ]
        prompts, usages = [], []
        for user in ("ann", "ben"):  # one goes on from the session of the run, one from the session of the hit
            answer = await served.chat(messages=history, temperature=1.0, user=user)
            prompts.append((answer.headers["x-session-id"], list(served.engine.prompts[-1])))
            usages.append(answer.json()["usage"])
        assert {session for session, _ in prompts} == set(sessions)
        assert prompts[0][1] == prompts[1][1], "both have the same ledger"
        by_session = {session: usage for (session, _), usage in zip(prompts, usages, strict=True)}
        assert by_session[sessions[1]]["prompt_tokens_details"]["cached_tokens"] == 0
        assert by_session[sessions[0]]["prompt_tokens_details"]["cached_tokens"] > 0


async def test_a_hit_is_billed_as_cached(start: Start) -> None:
    prices = read_prices('currency = "USD"\n[[prices]]\nmodel = "*"\ninput = 10\ncached = 1\noutput = 100\n')
    async with start(prices=PriceBook(prices)) as served:
        await served.chat()
        await served.kept()
        usage = (await served.chat()).json()["usage"]
        tokens = usage["prompt_tokens"] + usage["completion_tokens"]
        assert float(usage["cost"]["amount"]) == pytest.approx(tokens / 1e6)
        rows = await served.server.gateway.store.usage.entries(UsageQuery(tenant=TenantId("local")), after=0, limit=10)
        assert [row.row.usage.cached_output_tokens for row in rows] == [0, usage["completion_tokens"]]
        sums = (await served.http.get("/v1/usage", params={"group_by": "model"})).json()["data"][0]
        assert sums["cached_output_tokens"] == usage["completion_tokens"]


async def test_what_is_personal_is_not_kept(start: Start) -> None:
    async with start() as served:
        messages = [{"role": "user", "content": "Write to jane.doe@example.com about the rent."}]
        await served.chat(messages=messages)
        await served.kept("personal")
        assert (await served.chat(messages=messages)).headers["x-cache"] == "miss"
        await served.kept("personal")
        served.engine.script.append("Call +49 30 901820 for that.")
        await served.chat()
        await served.kept("personal")


async def test_filtered_answers_are_not_kept_and_another_policy_finds_nothing(start: Start, tmp_path: Path) -> None:
    policy = tmp_path / "policy.toml"
    policy.write_text('[policies.default.output]\nphrases = { deny = ["nightjar"], action = "flag" }\n')
    filters = PolicyFilterSet(str(policy))
    await filters.open()
    try:
        async with start(filters=filters) as served:
            for _ in range(2):
                served.engine.script.append("The nightjar sleeps.")
                assert (await served.chat()).headers["x-cache"] == "miss"
            await served.chat(seed=5)
            await served.kept()
            assert (await served.chat(seed=5)).headers["x-cache"] == "hit"
            policy.write_text('[policies.default.output]\nphrases = { deny = ["capital"], action = "block" }\n')
            assert await filters.reload()
            assert (await served.chat(seed=5)).headers["x-cache"] == "miss"
    finally:
        await filters.close()


async def test_an_erasure_of_any_user_drops_what_the_tenant_has(start: Start) -> None:
    user = Principal(tenant=TenantId("acme"), key_id="k", role="service", scopes=ALL_SCOPES)
    keys = {key_digest("s3cret-key-of-acme"): user}
    bearer = {"authorization": "Bearer s3cret-key-of-acme"}
    async with start("[tenants.acme]\nresult_cache_s = 600\n", keys=keys) as served:
        await served.chat(headers=bearer, user="jane")
        await served.kept()
        assert (await served.chat(headers=bearer, user="john")).headers["x-cache"] == "hit"
        erased = await served.http.post("/v1/users/jane/erase", headers=bearer)
        assert erased.status_code == 200, erased.text
        assert (await served.chat(headers=bearer, user="john")).headers["x-cache"] == "miss"


async def test_tool_calls_are_given_again_under_ids_of_their_own(start: Start) -> None:
    tools = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]
    async with start() as served:
        served.engine.script.append('<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>')
        calls = []
        for outcome in ("miss", "hit"):
            answer = await served.chat(tools=tools, max_tokens=200)
            assert answer.headers["x-cache"] == outcome
            calls.append(answer.json()["choices"][0]["message"]["tool_calls"][0])
            if outcome == "miss":
                await served.kept()
        assert calls[0]["function"] == calls[1]["function"]
        assert calls[0]["id"] != calls[1]["id"]


@pytest.mark.model
async def test_a_real_model_is_not_run_for_a_hit(model_path: Path, tmp_path: Path) -> None:
    limits = tmp_path / "limits.toml"
    limits.write_text(ON)
    engine = LlamaEngine(LlamaOptions(model_path=model_path, slots=2, context_window=1024))
    async with (
        assembled(limits_file=limits, engine=engine) as server,
        httpx.AsyncClient(base_url=server.server.url, timeout=60) as http,
    ):
        asked = [{"role": "system", "content": "Answer in one short sentence."}, *QUESTION]
        body = {**CHAT, "model": engine.info.model, "max_tokens": 200, "stop": ["."], "messages": asked}
        first = await http.post("/v1/chat/completions", json=body)
        assert first.json()["choices"][0]["finish_reason"] == "stop", first.text
        await counted(server, "stored")
        decoded = engine.stats().counters["decoded_tokens"]
        again = await http.post("/v1/chat/completions", json=body)
        assert (first.headers["x-cache"], again.headers["x-cache"]) == ("miss", "hit")
        assert text_of(again) == text_of(first) != ""
        assert engine.stats().counters["decoded_tokens"] == decoded
        answer = {"role": "assistant", "content": text_of(first)}
        history = [*asked, answer, {"role": "user", "content": "And of Italy?"}]
        follow = [
            await http.post("/v1/chat/completions", json={**body, "messages": history, "seed": 3, "top_p": each})
            for each in (0.9, 0.8)
        ]
        assert {each.headers["x-session-id"] for each in follow} == {
            each.headers["x-session-id"] for each in (first, again)
        }
        assert text_of(follow[0]) == text_of(follow[1])  # greedy, from the same tokens
        assert len({each.json()["usage"]["prompt_tokens"] for each in follow}) == 1
