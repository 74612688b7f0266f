"""OpenAI's Python SDK, unchanged: chat that streams, an answer in the background that is resumed, a conversation.

python docs/examples/openai_sdk.py --url http://127.0.0.1:8080
"""

from __future__ import annotations

import argparse

from openai import OpenAI


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--url", default="http://127.0.0.1:8080")
    options.add_argument("--key", default="none")
    given = options.parse_args()
    client = OpenAI(base_url=f"{given.url}/v1", api_key=given.key)
    model = client.models.list().data[0].id

    # A client that keeps its history itself: resending it lands on the actor that holds the KV of it.
    history = [{"role": "user", "content": "Say hello."}]
    for question in ("And now goodbye.", None):
        said = ""
        for chunk in client.chat.completions.create(model=model, messages=history, stream=True):  # type: ignore[call-overload]
            said += chunk.choices[0].delta.content or ""
        print("chat:", said)
        history += [{"role": "assistant", "content": said}, {"role": "user", "content": question or ""}]

    # An answer in the background outlives its reader, who comes back with the number of the last event that it saw.
    stream = client.responses.create(model=model, input="Tell me more.", background=True, stream=True)
    seen, text, response_id = 0, "", ""
    for event in stream:
        seen = event.sequence_number
        if event.type == "response.created":
            response_id = event.response.id
        if event.type == "response.output_text.delta":
            text += event.delta
            break
    stream.close()
    for event in client.responses.retrieve(response_id, stream=True, starting_after=seen):
        if event.type == "response.output_text.delta":
            text += event.delta
    assert text == client.responses.retrieve(response_id).output_text
    print("response:", text)

    # A conversation that the server keeps.
    conversation = client.conversations.create()
    for question in ("One?", "Two?"):
        client.responses.create(model=model, input=question, conversation=conversation.id)
    items = client.conversations.items.list(conversation.id, order="asc").data
    print("conversation:", [item.role for item in items if item.type == "message"])


if __name__ == "__main__":
    main()
