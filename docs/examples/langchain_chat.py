"""LangChain's OpenAI chat model, unchanged: a chain that streams, and a tool call.

pip install langchain-openai
python docs/examples/langchain_chat.py --url http://127.0.0.1:8080
"""

from __future__ import annotations

import argparse

from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_openai import ChatOpenAI
from pydantic import SecretStr


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--url", default="http://127.0.0.1:8080")
    options.add_argument("--key", default="none")
    options.add_argument("--model", default="simulated")
    given = options.parse_args()
    model = ChatOpenAI(base_url=f"{given.url}/v1", api_key=SecretStr(given.key), model=given.model, max_retries=0)

    prompt = ChatPromptTemplate.from_messages([("system", "Answer in one sentence."), ("user", "{question}")])
    chain = prompt | model | StrOutputParser()
    print("stream:", "".join(chain.stream({"question": "What is an actor?"})))

    # A history that is sent again and again stays on one actor.
    history: list[HumanMessage | AIMessage] = []
    for question in ("What is a log?", "And a cursor?"):
        history.append(HumanMessage(question))
        answer = model.invoke(history)
        assert isinstance(answer, AIMessage)
        history.append(answer)
        usage = answer.usage_metadata
        assert usage is not None
        print("answer:", answer.content, "| input tokens:", usage["input_tokens"])


if __name__ == "__main__":
    main()
