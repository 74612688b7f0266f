"""Sampling on vLLM: formats, biases and log-probabilities as OpenAI's clients know them."""

from __future__ import annotations

import json
import threading
from typing import Any

import msgspec
import pytest
from vllm.v1.structured_output import backend_guidance

from sessions.model.errors import BadInput
from sessions.model.types import Sampling, TextOptions, Tool
from sessions.turn.tool_call_parser import constrained_output
from testbed.engine_client import ask, collect, key, prompt_of, request
from tests.support.engines.vllm_world import VllmWorld, start

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(400)]

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "maximum": 120}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


def formatted(schema: dict[str, Any]) -> Sampling:
    return Sampling(temperature=0, text=TextOptions(format={"type": "json_schema", "name": "x", "schema": schema}))


async def test_a_format_is_kept_and_a_schema_that_is_none_is_refused(world: VllmWorld) -> None:
    engine = await start(world)
    prompt = await prompt_of(engine, "Describe a person as JSON.")
    answer = await ask(engine, key("a"), prompt, max_tokens=120, sampling=formatted(PERSON))
    person = json.loads(answer.text)
    assert isinstance(person["name"], str) and isinstance(person["age"], int)
    never = {"not": {"type": "object"}}
    for bad in ({"type": "bogus"}, never, {"anyOf": [{"type": "array", "items": never}]}, {"properties": {"x": never}}):
        with pytest.raises(BadInput) as refused:
            await ask(engine, key("a"), prompt, sampling=formatted(bad))
        assert refused.value.code == "invalid_schema"
    named = {"type": "object", "properties": {"not": {"const": {"if": 1}}}, "required": ["not"]}
    answer = await ask(
        engine, key("a"), prompt, max_tokens=60, sampling=formatted(named | {"additionalProperties": False})
    )
    assert json.loads(answer.text) == {"not": {"if": 1}}
    assert engine.stats().running == 0


async def test_a_grammar_is_checked_once_and_off_the_event_loop(
    world: VllmWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The costliest takes a second, in which nobody else would be served."""
    threads: list[int] = []

    def check(*given: Any, **named: Any) -> None:
        threads.append(threading.get_ident())
        validate(*given, **named)

    validate = backend_guidance.validate_guidance_grammar
    monkeypatch.setattr(backend_guidance, "validate_guidance_grammar", check)
    engine = await start(world)
    prompt = await prompt_of(engine, "Describe a person as JSON.")
    await ask(engine, key("a"), prompt, max_tokens=4, sampling=formatted(PERSON))
    assert len(threads) == 1 and threads[0] != threading.get_ident()


async def test_the_words_of_a_call_are_not_spaced_out_unless_they_go_on_so(world: VllmWorld) -> None:
    engine = await start(world)
    prompt = await prompt_of(engine, "Look around.")
    look = Tool(name="look", parameters=PERSON)
    held = Sampling(temperature=0, text=constrained_output(Sampling(tool_choice="required"), (look,)))
    answer = await ask(engine, key("a"), prompt, max_tokens=60, sampling=held)
    made = json.loads(answer.text)
    assert answer.text == json.dumps(made, ensure_ascii=False) and made["name"] == "look"
    begun = await engine.tokenizer.text('{"name":\n  "look",\n  "arguments":')
    later = request(key("a"), [*prompt, *begun], max_tokens=60, sampling=held, emitted=begun)
    rest = await collect(engine.generate(msgspec.structs.replace(later, generation=2)))
    assert json.loads('{"name": "look", "arguments":' + rest.text)["name"] == "look"
