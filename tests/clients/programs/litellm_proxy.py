"""OpenAI's SDK before LiteLLM's proxy, which runs as long as this program: a tool loop that keeps its messages."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import openai
from functions import MODEL, PROMPT, RESUMES, STATE, run_command, write_file

FUNCTIONS = {"run_command": (run_command, ["command"]), "write_file": (write_file, ["path", "content"])}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": function.__doc__,
            "parameters": {
                "type": "object",
                "properties": {each: {"type": "string"} for each in names},
                "required": names,
            },
        },
    }
    for name, (function, names) in FUNCTIONS.items()
]


def carry_out(name: str, arguments: str) -> str:
    try:
        return FUNCTIONS[name][0](**json.loads(arguments))
    except (KeyError, TypeError) as error:
        return f"Error: {error}"


with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
command = [str(Path(sys.executable).with_name("litellm")), "--config", str(Path.home() / "litellm.yaml")]
proxy = subprocess.Popen(
    [*command, "--host", "127.0.0.1", "--port", str(port)],
    stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"},
)  # fmt: skip
assert proxy.stdout is not None
try:
    for line in proxy.stdout:
        if "Uvicorn running" in line:
            break
    else:
        sys.exit("the proxy did not start")
    file = STATE.with_suffix(".json")
    messages = json.loads(file.read_text()) if RESUMES else [{"role": "system", "content": "You help with files."}]
    messages.append({"role": "user", "content": PROMPT})
    client = openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="sk-client")
    while True:
        file.write_text(json.dumps(messages))
        with client.chat.completions.stream(model=MODEL, messages=messages, tools=TOOLS) as stream:
            for event in stream:
                if event.type == "content.delta":
                    print(event.delta, end="", flush=True)
            answer = stream.get_final_completion().choices[0].message
        messages.append(answer.model_dump(exclude_none=True, include={"role", "content", "tool_calls"}))
        for call in answer.tool_calls or ():
            output = carry_out(call.function.name, call.function.arguments)
            messages.append({"role": "tool", "tool_call_id": call.id, "content": output})
        if not answer.tool_calls:
            break
    file.write_text(json.dumps(messages))
finally:
    proxy.kill()
