"""A crew of one agent on CrewAI."""

from __future__ import annotations

from crewai import LLM, Agent, Crew, Task
from crewai.tools import tool
from functions import MODEL, PROMPT, URL, run_command, write_file

agent = Agent(
    role="Helper",
    goal="Help with files",
    backstory="You help with files.",
    llm=LLM(model=f"openai/{MODEL}", base_url=URL, api_key="none", stream=True),
    tools=[tool("run_command")(run_command), tool("write_file")(write_file)],
)
task = Task(description=PROMPT, expected_output="An answer", agent=agent)
print(Crew(agents=[agent], tasks=[task]).kickoff().raw)
