"""Runs libraries that drive OpenAI's or Anthropic's API against a server, and MCP's reference servers as its tools:
each in its own environment, unchanged.

    python -m tests.sdks.run                  # a server of this process's, whose model does as it is told
    python -m tests.sdks.run --url URL/v1     # one that runs already

`make test-sdks` makes the environments (`.venv-sdks`, `.venv-sdks-openai2`, `.venv-sdks-mcp`, `node_modules` here)
from their locks.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from inference.chat_template import ChatTemplate
from inference.simulated import SimulatedOptions, decode
from sessions.model.generation import Chunk, Finish, GenerationRequest
from tests.support.doors.openai_server import ScriptedEngine, serving
from tests.support.engines.chat_templates import FAMILIES
from tests.support.node import WITH_NODE

HERE: Final = Path(__file__).parent
ROOT: Final = HERE.parent.parent
PYTEST: Final = ("-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", "-c", str(HERE / "pytest.ini"))
SUITES: Final = {
    "langchain": ("sdks", "langchain_sdk.py"),
    "pydantic-ai": ("sdks", "pydantic_ai_sdk.py"),
    "agents": ("sdks", "agents_sdk.py"),
    "instructor": ("sdks-openai2", "instructor_sdk.py"),
    "llama-index": ("sdks-openai2", "llama_index_sdk.py"),
    "ai": ("node", "ai_sdk.test.mjs"),
    "anthropic": ("node", "anthropic_sdk.test.mjs"),
    "mcp-servers": ("", "mcp_servers.py"),
    "thoughts": ("sdks", "thoughts_sdk.py"),
    "thoughts-node": ("node", "thoughts.test.mjs"),
}
OF_THOUGHTS: Final = ("thoughts", "thoughts-node")  # they want a model that thinks
_WEATHER: Final = re.compile(r'"name":"(\w*weather\w*)"')


class ObligingEngine(ScriptedEngine):
    """Calls a function for the weather, where there is one and the weather is not known yet; else says something, or
    the smallest value of the schema that it is held to."""

    def generate(self, request: GenerationRequest) -> AsyncIterator[Chunk | Finish]:
        prompt = decode(request.prompt)
        function = _WEATHER.search(prompt)
        unknown = "weather in" in prompt and "18 degrees" not in prompt
        if request.sampling.text is None and function is not None and unknown:
            self.script.append(f'<tool_call>{{"name": "{function[1]}", "arguments": {{"city": "Rome"}}}}</tool_call>')
        return super().generate(request)


class ThinkingEngine(ObligingEngine):
    """Does the same, and thinks before it, between the marks of Qwen 3's template."""

    thoughts = ChatTemplate(FAMILIES["qwen3"], bos="<s>", eos="</s>").thoughts()

    def generate(self, request: GenerationRequest) -> AsyncIterator[Chunk | Finish]:
        answer = super().generate(request)
        if request.sampling.text is None:
            said = self.script.pop() if self.script else "It is warm."
            self.script.append(f"<think>\nHm, I had better look.\n</think>\n\n{said}")
        return answer


@asynccontextmanager
async def served(url: str, name: str) -> AsyncIterator[str]:
    if url:
        yield url
        return
    options = SimulatedOptions(step_base_s=0.001, answer_tokens_mean=24)
    engine = ThinkingEngine(options) if name in OF_THOUGHTS else ObligingEngine(options)
    async with serving(options, engine=engine) as server:
        yield f"{server.server.url}/v1"


async def run(name: str, given_url: str) -> int:
    environment, file = SUITES[name]
    if not environment:  # its own servers, driven from here
        command = [sys.executable, *PYTEST, str(HERE / file)]
        return subprocess.run(command, cwd=ROOT, env={**os.environ, "SESSILE_TEST_BASE_URL": ""}).returncode
    if environment == "node":
        command = [str(WITH_NODE), "node", "--test", str(HERE / file)]
    else:
        command = [str(ROOT / f".venv-{environment}" / "bin" / "python"), *PYTEST, str(HERE / file)]
    print(f"\n== {name} ==", flush=True)
    async with served(given_url, name) as url:
        env = {**os.environ, "SESSILE_TEST_BASE_URL": url}
        process = await asyncio.create_subprocess_exec(*command, cwd=HERE, env=env)
        return await process.wait()


async def main(given: argparse.Namespace) -> int:
    failed = [name for name in given.only or SUITES if await run(name, given.url)]
    print(f"\nfailed: {', '.join(failed)}" if failed else "\nall passed")
    return 1 if failed else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="", help="of a server that runs already, with /v1")
    parser.add_argument("only", nargs="*", choices=[*SUITES, []], help="these alone")
    sys.exit(asyncio.run(main(parser.parse_args())))
