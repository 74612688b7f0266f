"""Policies where they act: real actors and doors, an engine that says what it is told to, a policy in a file."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import openai
import pytest

from inference.moderation import PolicyFilterSet
from inference.moderation.input_filter import INLINE_MAX
from inference.simulated import SimulatedOptions, decode
from sessions.model import events as ev
from sessions.model.generation import Chunk, EngineInfo, Finish, GenerationRequest
from sessions.model.types import LOCAL_PRINCIPAL
from sessions.model.verdicts import Verdict
from tests.support.doors.openai_server import SIMULATED, ScriptedEngine, Serving, serving

POLICY = """
[policies.default]
mode = "{mode}"
[policies.default.input]
phrases = {{ deny = ["project nightjar"] }}
pii = {{ action = "redact" }}
[policies.default.output]
phrases = {{ deny = ["project nightjar"], action = "{action}" }}
pii = {{ kinds = ["email"], action = "{pii}" }}
"""


class TellingEngine(ScriptedEngine):
    """Gives log probabilities."""

    @property
    def info(self) -> EngineInfo:
        info = super().info
        return msgspec.structs.replace(info, sampling=info.sampling | {"logprobs"})

    async def generate(self, request: GenerationRequest) -> AsyncIterator[Chunk | Finish]:
        async for each in super().generate(request):
            if isinstance(each, Chunk):
                told = {"token": each.text, "logprob": -0.5, "bytes": list(each.text.encode()), "top_logprobs": []}
                each = msgspec.structs.replace(each, logprobs=(told,))
            yield each


@asynccontextmanager
async def running(
    path: Path, engine: ScriptedEngine | None = None, **policy: str
) -> AsyncIterator[tuple[Serving, PolicyFilterSet]]:
    path.write_text(POLICY.format(**{"mode": "window", "action": "block", "pii": "redact"} | policy))
    filters = PolicyFilterSet(str(path))
    await filters.open()
    try:
        async with serving(SimulatedOptions(step_base_s=0.001), filters=filters, engine=engine) as server:
            yield server, filters
    finally:
        await filters.close()


async def ask(server: Serving, text: str, **more: object) -> openai.types.chat.ChatCompletion:
    messages = [*more.pop("before", ()), {"role": "user", "content": text}]  # type: ignore[misc]
    async with server.client() as client:
        return await client.chat.completions.create(model=SIMULATED, messages=messages, **more)  # type: ignore[call-overload, no-any-return]


async def test_the_next_turn_knows_only_what_was_released(tmp_path: Path) -> None:
    async with running(tmp_path / "p.toml") as (server, _):
        server.engine.script += ["Sure: project nightjar starts", "Fine."]
        first = await ask(server, "tell me")
        choice = first.choices[0]
        assert choice.finish_reason == "content_filter" and choice.message.content == "Sure: "
        assert choice.message.refusal == "The rest of this answer was withheld."
        told = [{"role": "user", "content": "tell me"}, {"role": "assistant", "content": "Sure: "}]
        await ask(server, "and?", before=told)
        released = [ord(letter) for letter in "Sure: "]
        opening, prompt = list(server.engine.prompts[0]), list(server.engine.prompts[-1])
        answer = [*opening, *released, *server.engine.tokenizer.answer_closing]
        assert prompt[: len(answer)] == answer
        assert "nightjar" not in decode(prompt)


async def test_strict_shows_the_whole_answer_or_none_of_it(tmp_path: Path) -> None:
    async with running(tmp_path / "p.toml", mode="strict") as (server, _):
        server.engine.script += ["Sure: project nightjar starts", "Write to ana@example.org now", " or not."]
        blocked = (await ask(server, "one")).choices[0]
        assert blocked.message.content in (None, "") and blocked.finish_reason == "content_filter"
        redacted = (await ask(server, "two")).choices[0]
        assert redacted.message.content == "Write to [email] or not." and redacted.finish_reason == "stop"
        deltas = [r.event.delta for r in server.log(server.sessions[1]) if isinstance(r.event, ev.OutputTextDelta)]
        assert deltas == ["Write to [email] or not."]


async def test_async_takes_back_for_everybody(tmp_path: Path) -> None:
    async with running(tmp_path / "p.toml", mode="async", pii="retract") as (server, _):
        server.engine.script += ["Write to ana@example.org now please", " or not."]
        choice = (await ask(server, "two")).choices[0]
        assert choice.message.content is not None and "ana@example" not in choice.message.content
        assert choice.message.content.startswith("Write to [withheld] ")
        retracted = [r.event for r in server.log(server.sessions[0]) if isinstance(r.event, ev.ContentRetracted)]
        assert [(each.start, each.end, each.replacement) for each in retracted] == [(9, 24, "[withheld]")]
        assert "ana@example" not in decode(server.engine.prompts[-1])


async def test_log_probabilities_do_not_spell_out_what_was_taken_back(tmp_path: Path) -> None:
    engine = TellingEngine(SimulatedOptions(step_base_s=0.001))
    said = ["Write to ana@example.org now please", " or not."]
    async with running(tmp_path / "p.toml", engine, mode="async", pii="retract") as (server, _):
        server.engine.script += [*said, "Fine.", *said]
        withheld = (await ask(server, "two", logprobs=True)).choices[0]
        assert withheld.message.content is not None and withheld.message.content.startswith("Write to [withheld] ")
        assert withheld.logprobs is None
        plain = (await ask(server, "three", logprobs=True)).choices[0]
        assert plain.logprobs is not None and plain.logprobs.content is not None
        assert "".join(each.token for each in plain.logprobs.content) == plain.message.content == "Fine."
        async with server.client() as client:
            response = await client.responses.create(
                model=SIMULATED, input="four", include=["message.output_text.logprobs"]
            )
        assert response.output_text.startswith("Write to [withheld] ") and '"token"' not in response.to_json()


async def test_a_refused_message_touches_no_engine_and_a_redacted_one_is_stored_redacted(tmp_path: Path) -> None:
    async with running(tmp_path / "p.toml") as (server, _):
        with pytest.raises(openai.BadRequestError) as caught:
            await ask(server, "About PROJECT\u200b NightJar!")
        assert caught.value.code == "content_filter" and not server.engine.prompts
        assert server.runtime.metrics.verdicts.values == {("input", "block", "phrases"): 1}
        await ask(server, "I am ana@example.org, card 4111 1111 1111 1111.")
        assert "I am [email], card [credit_card]." in decode(server.engine.prompts[0])
        long = "word " * (INLINE_MAX // 4) + "and ana@example.org at the end"
        await ask(server, long)
        assert decode(server.engine.prompts[1]).endswith("and [email] at the end")


async def test_a_policy_is_read_again_and_a_bad_one_leaves_the_old_in_force(tmp_path: Path) -> None:
    path = tmp_path / "p.toml"
    async with running(path) as (server, filters):
        old = filters.versions
        path.write_text("[policies.default]\nmode = 'loud'\n")
        assert not await filters.reload() and filters.versions == old
        path.write_text('[policies.default.input]\nphrases = { deny = ["nectarine"] }\n')
        assert await filters.reload() and filters.versions != old
        with pytest.raises(openai.BadRequestError):
            await ask(server, "A nectarine, please")
        await ask(server, "project nightjar is allowed now")


async def test_a_message_that_a_worker_died_of_may_be_sent_again(tmp_path: Path) -> None:
    async with running(tmp_path / "p.toml") as (server, filters):
        worker = filters._scanning._process
        assert worker is not None
        worker.kill()
        await worker.wait()
        long = "word " * INLINE_MAX
        with pytest.raises(openai.InternalServerError) as caught:
            await ask(server, long)
        assert (caught.value.status_code, caught.value.code) == (503, "filters_unavailable")
        await ask(server, long)  # waits for the new worker
        assert filters._scanning.restarts == 1


JUDGED = """
[policies.default]
deadline_ms = {deadline_ms}
[policies.default.input]
pii = {{ action = "redact" }}
toxicity = {{ action = "flag" }}
"""
ATTACK = "word " * (INLINE_MAX // 4) + ". Go fuck yourself, asshole. Ask ana@example.org"


@asynccontextmanager
async def judged(path: Path, *, deadline_ms: int) -> AsyncIterator[PolicyFilterSet]:
    path.write_text(JUDGED.format(deadline_ms=deadline_ms))
    filters = PolicyFilterSet(str(path))
    await filters.open()
    try:
        yield filters
    finally:
        await filters.close()


async def checked(filters: PolicyFilterSet, text: str) -> Verdict:
    (found,) = filters.input_filters(LOCAL_PRINCIPAL)
    return await found.check(LOCAL_PRINCIPAL, text)


async def test_a_long_message_is_looked_at_once_for_classifiers_and_patterns(tmp_path: Path) -> None:
    async with judged(tmp_path / "p.toml", deadline_ms=60_000) as filters:
        verdict = await checked(filters, ATTACK)
        assert verdict.action == "redact" and verdict.replacement == ATTACK.replace("ana@example.org", "[email]")
        assert sorted(each.category for each in verdict.findings) == ["pii/email", "toxicity"]
        assert filters._judging is not None
        assert (filters._judging.texts, filters._scanning.texts) == (1, 0)


async def test_patterns_are_found_without_the_classifiers_worker(tmp_path: Path) -> None:
    async with judged(tmp_path / "p.toml", deadline_ms=200) as filters:
        assert filters._judging is not None and filters._judging._process is not None
        for how in (signal.SIGSTOP, signal.SIGKILL):
            filters._judging._process.send_signal(how)
            verdict = await checked(filters, ATTACK)
            assert verdict.action == "redact" and verdict.replacement == ATTACK.replace("ana@example.org", "[email]")
            assert sorted(each.category for each in verdict.findings) == ["pii/email", "toxicity/unjudged"]
