"""The default model with its real weights: tools beside a required format. It is skipped where the model was never
fetched (`make serve` fetches it)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.support.doors.openai_targets import READY, ROOT, printed

MODEL = ROOT / ".cache" / "models" / "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf"
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Tells the weather in a city now.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
FORM: Any = {
    "type": "json_schema",
    "json_schema": {
        "name": "report",
        "schema": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "degrees": {"type": "integer"}},
            "required": ["city", "degrees"],
            "additionalProperties": False,
        },
    },
}

pytestmark = [pytest.mark.slow, pytest.mark.model]


async def test_a_call_comes_as_without_the_format_and_the_answer_after_its_output_fits_the_schema(
    tmp_path: Path,
) -> None:
    if not MODEL.is_file():
        pytest.skip("the default model was not fetched")
    flags = ("--engine", "llama", "--model", str(MODEL), "--slots", "2", "--context", "4096", "--port", "0")
    serve = ("app.py", "serve", *flags, "--data", str(tmp_path / "data"), "--log-level", "error")
    async with (
        printed(*serve, last=READY) as (*_, line),
        openai.AsyncOpenAI(base_url=f"{line.removeprefix(READY)}v1", api_key="none", max_retries=0) as client,
    ):
        model, *_ = (await client.models.list()).data
        messages: list[Any] = [{"role": "user", "content": "What is the weather in Rome? Use the tool."}]
        asked: dict[str, Any] = {"model": model.id, "tools": [WEATHER], "temperature": 0, "max_tokens": 120}
        calls = []
        for more in ({}, {"response_format": FORM}):
            answer = (await client.chat.completions.create(messages=messages, **asked, **more)).choices[0]
            assert answer.finish_reason == "tool_calls" and answer.message.tool_calls
            calls.append(answer.message.tool_calls)
        (without,), (call,) = calls
        assert isinstance(call.function, type(without.function))
        assert (call.function.name, json.loads(call.function.arguments)) == ("get_weather", {"city": "Rome"})
        assert (without.function.name, without.function.arguments) == (call.function.name, call.function.arguments)
        messages.append(answer.message.model_dump(exclude_none=True))
        messages.append({"role": "tool", "tool_call_id": call.id, "content": "21 degrees, sunny"})
        # Left free, so small a model calls the tool once more.
        more = {"response_format": FORM, "tool_choice": "none"}
        ended = (await client.chat.completions.create(messages=messages, **asked, **more)).choices[0]
        assert ended.finish_reason == "stop" and ended.message.content is not None
        assert json.loads(ended.message.content) == {"city": "Rome", "degrees": 21}
