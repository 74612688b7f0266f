"""An agent on agno, its conversation in SQLite: chat completions, or Responses with the whole history resent."""

from __future__ import annotations

import os

from agno.agent import Agent
from agno.db.sqlite import SqliteDb
from agno.models.openai import OpenAIResponses
from agno.models.openai.like import OpenAILike
from functions import MODEL, PROMPT, STATE, URL, run_command, write_file

model_class = OpenAIResponses if os.environ["DOOR"] == "responses" else OpenAILike
agent = Agent(
    model=model_class(id=MODEL, base_url=URL, api_key="none"),
    tools=[run_command, write_file],
    instructions="You help with files.",
    db=SqliteDb(db_file=f"{STATE}.db"),
    add_history_to_context=True,
    telemetry=False,
)
for event in agent.run(PROMPT, session_id="one", stream=True):
    print(getattr(event, "content", None) or "", end="", flush=True)
