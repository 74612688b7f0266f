"""An agent on LangGraph, its conversation in SQLite: chat completions, or Responses with the whole history resent."""

from __future__ import annotations

import os

from functions import MODEL, PROMPT, STATE, URL, run_command, write_file
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.prebuilt import create_react_agent

model = ChatOpenAI(model=MODEL, base_url=URL, api_key="none", use_responses_api=os.environ["DOOR"] == "responses")
with SqliteSaver.from_conn_string(f"{STATE}.db") as saver:
    agent = create_react_agent(model, [run_command, write_file], prompt="You help with files.", checkpointer=saver)
    for state in agent.stream(
        {"messages": [("user", PROMPT)]}, {"configurable": {"thread_id": "one"}}, stream_mode="values"
    ):
        print(state["messages"][-1].text)
