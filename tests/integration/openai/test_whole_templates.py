"""Conversations of the small model under templates that are no sum of pieces: what stands unchanged is reused."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.support.doors.openai_targets import READY, printed
from tests.support.rounds.openai_users import ResendingClient

pytestmark = pytest.mark.model

STRICT = """\
{{- '<|im_start|>system\\nToday is ' + strftime_now('%d %B %Y') + '.<|im_end|>\\n' -}}
{%- for message in messages -%}
{%- if (message.role == 'user') != (loop.index0 % 2 == 0) -%}{{ raise_exception('roles must alternate') }}{%- endif -%}
{{- '<|im_start|>' + message.role + '\\n' + SAID + '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}
"""
WHOLE = STRICT.replace("SAID", "message.content")
SHORTENED = STRICT.replace(
    "SAID", "(message.content.split(' ')[0] if message.role == 'assistant' else message.content)"
)
QUESTION_TOKENS = 24  # one question with what stands around it and the answer before
ANSWER_TOKENS = 8


@asynccontextmanager
async def served(template: str, model: Path, folder: Path) -> AsyncIterator[openai.AsyncOpenAI]:
    file = folder / "template.jinja"
    file.write_text(template)
    fixed = {"port": "0", "log-level": "error", "engine": "llama", "threads": "1", "slots": "2", "context": "2048"}
    words = [word for name, value in fixed.items() for word in (f"--{name}", value)]
    flags = (*words, "--data", str(folder / "data"), "--model", str(model), "--chat-template", str(file))
    async with (
        printed("app.py", "serve", *flags, last=READY) as (*_, said),
        openai.AsyncOpenAI(base_url=f"{said.removeprefix(READY)}v1", api_key="none", max_retries=0) as client,
    ):
        yield client


def computed(usage: Any) -> int:
    return int(usage.prompt_tokens - usage.prompt_tokens_details.cached_tokens)


@pytest.mark.slow
@pytest.mark.parametrize(("template", "again"), [(WHOLE, 0), (SHORTENED, ANSWER_TOKENS)], ids=["whole", "shortened"])
async def test_ten_turns_compute_what_stands_behind_the_first_difference(
    template: str, again: int, model_path: Path, tmp_path: Path
) -> None:
    async with served(template, model_path, tmp_path) as client:
        model, *_ = (await client.models.list()).data
        assert model.model_extra is not None
        assert model.model_extra["capabilities"]["foldings"] == ["system", "neighbours", "tool"]
        one = ResendingClient(client, model.id, "Name a river.", max_tokens=ANSWER_TOKENS, temperature=0)
        one.messages.insert(0, {"role": "system", "content": "Answer in a few words, and be kind to children."})
        for number in range(10):
            await one.turn(f"And river number {number}?")
        assert len(set(one.sessions)) == 1
        assert all(computed(usage) <= QUESTION_TOKENS + again for usage in one.usage[1:])
        first = one.messages[:4]
        edited = ResendingClient(client, model.id, "", max_tokens=ANSWER_TOKENS, temperature=0)
        edited.messages = [*first[:-1], {"role": "user", "content": "And a lake?"}]
        await edited.turn("And a sea?")
        assert computed(edited.usage[0]) <= QUESTION_TOKENS + again
        regenerated = ResendingClient(client, model.id, "", max_tokens=ANSWER_TOKENS, temperature=0)
        regenerated.messages = list(first)
        await regenerated.turn("And then?")
        assert regenerated.messages[4] == one.messages[4], "the same prompt, the same answer"


@pytest.mark.slow
async def test_a_conversation_that_the_template_refuses_is_that_requests_fault(
    model_path: Path, tmp_path: Path
) -> None:
    async with served(WHOLE, model_path, tmp_path) as client:
        model, *_ = (await client.models.list()).data  # embedding models come behind
        messages: list[Any] = [{"role": "assistant", "content": "Hello."}, {"role": "user", "content": "Who are you?"}]
        with pytest.raises(openai.BadRequestError, match="roles must alternate"):
            await client.chat.completions.create(model=model.id, messages=messages, max_tokens=4)
        done = await client.chat.completions.create(model=model.id, messages=messages[1:], max_tokens=4)
        assert done.choices[0].message.content
