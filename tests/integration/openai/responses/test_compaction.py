"""Compaction by OpenAI's own SDK: `responses.compact`, its item sent back, `context_management`."""

from __future__ import annotations

import asyncio
from typing import Any

import openai
import pytest

from inference.simulated import SimulatedOptions
from inference.simulated.vocabulary import decode
from sessions.model.types import LOCAL_PRINCIPAL, Principal, SessionId, SessionKey, TenantId
from tests.support.doors.openai_server import SIMULATED, Serving, serving
from tests.support.doors.websocket_wire import wire
from tests.support.engines.engines import until
from transport.auth.authenticator import key_digest
from transport.http_api.routes import responses

QUESTION: Any = {"role": "user", "content": "What is hers?"}


def last_prompt(server: Serving) -> str:
    return decode(server.engine.prompts[-1])


async def compacted(client: openai.AsyncOpenAI, server: Serving, **given: Any) -> Any:
    server.engine.script.append("Ana owns a violin.")
    return await client.responses.compact(model=SIMULATED, **given)


async def test_a_conversation_is_compacted_and_goes_on_behind_the_item(
    client: openai.AsyncOpenAI, server: Serving
) -> None:
    first = await client.responses.create(model=SIMULATED, input="Ana has a violin")
    made = await compacted(client, server, previous_response_id=first.id)
    assert made.object == "response.compaction" and made.usage.input_tokens > made.usage.output_tokens > 0
    *users, item = made.output
    assert [each.content[0].text for each in users] == ["Ana has a violin"]
    assert item.type == "compaction" and item.encrypted_content
    given: list[Any] = [each.model_dump(warnings=False) for each in made.output]
    answer = await client.responses.create(
        model=SIMULATED, input=[*given, {"role": "user", "content": "What is hers?"}]
    )
    prompt = last_prompt(server)
    assert "Ana owns a violin." in prompt and "Ana has" not in prompt and "What is hers?" in prompt
    assert len(server.sessions) == 1
    resent = [*given, QUESTION]
    resent += [{"role": "assistant", "content": answer.output_text}, {"role": "user", "content": "Sure?"}]
    again = await client.responses.create(model=SIMULATED, input=resent, store=False)
    assert again.usage is not None and answer.usage is not None
    assert again.usage.input_tokens_details.cached_tokens >= answer.usage.input_tokens
    assert len(server.sessions) == 1


async def test_a_history_is_compacted_where_it_lies(client: openai.AsyncOpenAI, server: Serving) -> None:
    history: list[Any] = [{"role": "user", "content": "Ana has a violin"}]
    first = await client.responses.create(model=SIMULATED, input=history, store=False)
    history.append({"role": "assistant", "content": first.output_text})
    made = await compacted(client, server, input=history)
    assert len(server.sessions) == 1
    assert made.usage.input_tokens_details.cached_tokens >= (first.usage.input_tokens if first.usage else 0)
    elsewhere = await compacted(client, server, input=[{"role": "user", "content": "Another one"}])
    assert elsewhere.output[-1].id != made.output[-1].id and len(server.sessions) == 2


async def test_an_item_is_of_its_tenant_and_goes_with_what_it_was_made_of(options: SimulatedOptions) -> None:
    keys = {key_digest(name): Principal(tenant=TenantId(name), key_id="k", role="service") for name in ("acme", "beta")}
    async with serving(options, keys=keys) as server, server.client("acme") as acme, server.client("beta") as beta:
        first = await acme.responses.create(model=SIMULATED, input="Ana has a violin")
        item = (await compacted(acme, server, previous_response_id=first.id)).output[-1].model_dump(warnings=False)
        question: list[Any] = [item, {"role": "user", "content": "What is hers?"}]
        with pytest.raises(openai.NotFoundError, match="not there any more"):
            await beta.responses.create(model=SIMULATED, input=question)
        for wrong in ("", "e30=", "!", item["encrypted_content"][:-8]):
            with pytest.raises((openai.BadRequestError, openai.NotFoundError)):
                await acme.responses.create(model=SIMULATED, input=[item | {"encrypted_content": wrong}, *question[1:]])
        await acme.responses.create(model=SIMULATED, input=question)
        await acme.responses.delete(first.id)
        with pytest.raises(openai.NotFoundError, match="not there any more"):
            await acme.responses.create(model=SIMULATED, input=question)


async def test_the_same_again_is_the_same_compaction(client: openai.AsyncOpenAI, server: Serving) -> None:
    first = await client.responses.create(model=SIMULATED, input="Ana has a violin")
    made = await compacted(client, server, previous_response_id=first.id)
    again = await client.responses.compact(model=SIMULATED, previous_response_id=first.id)
    assert again.output[-1] == made.output[-1] and again.usage.total_tokens == 0
    with pytest.raises(openai.BadRequestError, match="input"):
        await client.responses.compact(model=SIMULATED)


async def test_a_response_without_output_is_compacted_with_what_came_before_it(
    client: openai.AsyncOpenAI, server: Serving
) -> None:
    """It was an internal error."""
    first = await client.responses.create(model=SIMULATED, input="Ana has a violin")
    names = []
    async with wire(server.server.port, path="/v1/responses", subprotocols=()) as socket:
        for more in ({"previous_response_id": first.id}, {}):
            socket.send({"type": "response.create", "model": SIMULATED, "input": [], "generate": False, **more})
            names.append((await socket.until(type="response.completed"))["response"]["id"])
    made = await compacted(client, server, previous_response_id=names[0])
    assert [each.type for each in made.output] == ["message", "compaction"]
    with pytest.raises(openai.ConflictError, match="nothing to summarise"):
        await client.responses.compact(model=SIMULATED, previous_response_id=names[1])


async def test_who_leaves_a_compaction_is_no_reader_any_more(
    client: openai.AsyncOpenAI, server: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its request went on for up to five minutes."""
    first = await client.responses.create(model=SIMULATED, input="Ana has a violin")
    begun = asyncio.Event()

    async def never(*_: Any) -> Any:
        begun.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(responses, "_compaction_outcome", never)
    leaving = asyncio.create_task(client.responses.compact(model=SIMULATED, previous_response_id=first.id))
    await begun.wait()
    assert len(server.gateway.feeds) == 1
    leaving.cancel()
    await until(lambda: len(server.gateway.feeds) == 0)


async def test_context_management_has_its_conversation_compacted(client: openai.AsyncOpenAI, server: Serving) -> None:
    managed: Any = [{"type": "compaction", "compact_threshold": 1_000}]
    await client.responses.create(model=SIMULATED, input="hello", context_management=managed)
    key = SessionKey(TenantId("local"), SessionId(server.sessions[0]))
    _, state = await server.gateway.logs.state(LOCAL_PRINCIPAL, key)
    assert (state["context_policy"], state["compact_threshold"]) == ("compact", 1_000)
    wrong: Any = [{"type": "truncation"}]
    with pytest.raises(openai.BadRequestError):
        await client.responses.create(model=SIMULATED, input="hello", context_management=wrong)
