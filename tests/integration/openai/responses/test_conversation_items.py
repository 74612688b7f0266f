"""`DELETE /v1/conversations/{id}/items/{item}`: out of the conversation, out of prompts, out of what is read."""

from __future__ import annotations

import httpx
import openai
import pytest

from inference.simulated import decode
from tests.support.doors.openai_server import SIMULATED, Serving


async def test_a_deleted_item_is_in_no_list_no_prompt_and_no_log(
    client: openai.AsyncOpenAI, server: Serving, http: httpx.AsyncClient
) -> None:
    conversation = await client.conversations.create(items=[{"role": "user", "content": "my secret word"}])
    made = await client.responses.create(model=SIMULATED, input="hello", conversation=conversation.id)
    items = [item async for item in client.conversations.items.list(conversation.id, order="asc")]
    assert len(items) == 3
    left = await client.conversations.items.delete(items[0].id or "", conversation_id=conversation.id)
    assert left.id == conversation.id and left.object == "conversation"
    after = [item async for item in client.conversations.items.list(conversation.id, order="asc")]
    assert [item.id for item in after] == [item.id for item in items[1:]]
    await client.responses.create(model=SIMULATED, input="go on", conversation=conversation.id)
    prompt = decode(server.engine.prompts[-1])
    assert "secret" not in prompt and "hello" in prompt and made.output_text in prompt
    exported = (await http.get(f"/v1/sessions/{conversation.id}/export")).text
    assert "secret" not in exported and "hello" in exported
    assert "secret" not in (await http.get(f"/v1/sessions/{conversation.id}/export?format=markdown")).text
    with pytest.raises(openai.NotFoundError) as caught:
        await client.conversations.items.delete(items[0].id or "", conversation_id=conversation.id)
    assert caught.value.code == "item_not_found"


async def test_an_answer_s_item_goes_and_its_response_stays(client: openai.AsyncOpenAI) -> None:
    conversation = await client.conversations.create()
    made = await client.responses.create(model=SIMULATED, input="hello", conversation=conversation.id)
    await client.conversations.items.delete(made.output[0].id or "", conversation_id=conversation.id)
    kept = await client.responses.retrieve(made.id)
    assert kept.status == "completed" and made.output_text not in kept.output_text
    more = await client.responses.create(model=SIMULATED, input="and then", conversation=conversation.id)
    assert more.output_text
    items = [item async for item in client.conversations.items.list(conversation.id)]
    assert len(items) == 3  # two questions and an answer


async def test_nothing_is_deleted_below_what_is_being_written(client: openai.AsyncOpenAI, server: Serving) -> None:
    conversation = await client.conversations.create(items=[{"role": "user", "content": "first"}])
    (item,) = [each async for each in client.conversations.items.list(conversation.id)]
    server.engine.script.append("word " * 2_000)
    stream = await client.responses.create(model=SIMULATED, input="go", conversation=conversation.id, stream=True)
    async for _ in stream:
        with pytest.raises(openai.ConflictError):
            await client.conversations.items.delete(item.id or "", conversation_id=conversation.id)
        break
    await stream.close()
