"""Runs of the code tool through OpenAI's Responses API, on an engine that writes what it is given."""

from __future__ import annotations

import json
from typing import Any

import openai
from openai.types.responses import Response, ResponseCodeInterpreterToolCall
from openai.types.responses.response_code_interpreter_tool_call import OutputLogs

from tests.support.doors.openai_server import SIMULATED, Serving

CODE: Any = {"type": "code_interpreter", "container": {"type": "auto"}}


async def run(client: openai.AsyncOpenAI, server: Serving, code: str, said: str = "Done.", **more: Any) -> Response:
    """Has the model run code, and then say something."""
    call = {"name": "code_interpreter", "arguments": {"code": code}}
    server.engine.script += [f"<tool_call>\n{json.dumps(call)}\n</tool_call>", said]
    more = {"input": "run it", "tools": [CODE], **more}
    done: Response = await client.responses.create(model=SIMULATED, **more)
    return done


def logs(done: Response) -> str:
    """Returns the output that the code printed."""
    (ran,) = [item for item in done.output if isinstance(item, ResponseCodeInterpreterToolCall)]
    assert ran.outputs is not None
    (output,) = ran.outputs
    assert isinstance(output, OutputLogs)
    return output.logs
