"""How each client is configured, run once, and resumed: one entry for each, and nothing else is known of it.

`{url}` is the server's address without a path, `{python}` the interpreter of the client's own environment; paths of
files are those below a home folder that is made anew for each scenario. The same texts stand in docs/clients.md.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Literal

from tests.support.doors.openai_server import SIMULATED

HERE: Final = Path(__file__).parent
NPM: Final = HERE / "node_modules"

Call = tuple[str, Mapping[str, Any]]  # a function's name, and its arguments


@dataclass(frozen=True, kw_only=True)
class Client:
    """One client: what it is, how it is configured, how it is run."""

    package: str  # its name in the registry
    door: Literal["chat", "responses", "messages", "completions"]
    run: tuple[str, ...]  # one prompt, which comes last; the answer is printed
    resume: tuple[str, ...] | None = None  # the same in the conversation that was the last one; None: it cannot
    keeps_cancelled: bool = True  # whether a conversation whose first answer was cancelled can be resumed
    files: Mapping[str, str] = field(default_factory=dict)  # its configuration
    variables: Mapping[str, str] = field(default_factory=dict)
    shell: Callable[[str], Call] | None = None  # the call that runs a command
    write: Callable[[str, str], Call] | None = None  # the call that writes a file
    edit: Callable[[str, str], str] | None = None  # the answer that writes a file, where there are no calls
    final: Callable[[str], str] = str  # the answer that ends the work
    environment: str = "npm"  # or a group of requirements/
    lacks: Mapping[str, str] = field(default_factory=dict)  # scenario: why it cannot be tried
    scenarios: tuple[str, ...] = ("two turns", "tools", "invalid calls", "cancel", "restart")
    side: str = ""  # words of a prompt that is none of the conversation's steps
    reuse: float = 0.99
    why_less: str = ""  # where `reuse` is lower

    @property
    def has_tools(self) -> bool:
        return self.shell is not None or "built-in tools" in self.scenarios


def call(name: str, arguments: Mapping[str, object]) -> str:
    """A call as the model writes it: with the white space that it likes, which no client keeps."""
    return f'<tool_call>\n{{"name": "{name}", "arguments": {json.dumps(arguments)}}}\n</tool_call>'


def as_json(value: Mapping[str, Any]) -> str:
    """A file of settings, a line for each of its first fields."""
    fields = (f"  {json.dumps(key)}: {json.dumps(field)}" for key, field in value.items())
    return "{\n" + ",\n".join(fields) + "\n}"


PROGRAM: Final = ("SESSILE_TEST_URL", "DOOR", "CREWAI_DISABLE_TELEMETRY")
"""The variables of a program of ours, which nobody else's has."""


def program(
    package: str, door: Literal["chat", "responses"], file: str, environment: str = "clients", **options: Any
) -> Client:
    """A library, in a program of ours that has two functions."""
    command = ("python", f"{{here}}/programs/{file}")
    return Client(
        package=package,
        door=door,
        environment=environment,
        variables=dict(zip(PROGRAM, ("{url}", door, "true"), strict=True)),
        shell=lambda command: ("run_command", {"command": command}),
        write=lambda path, text: ("write_file", {"path": path, "content": text}),
        run=command,
        **{"resume": (*command, "--resume"), **options},
    )


def codex(settings: str = "", lacks: Mapping[str, str] = MappingProxyType({})) -> Client:
    """Codex over HTTP, or with settings of its provider."""
    own = ("--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox")
    return Client(
        package="@openai/codex",
        door="responses",
        files={
            ".codex/config.toml": f'''model = "{SIMULATED}"
model_provider = "sessile"
[model_providers.sessile]
name = "Sessile"
base_url = "{{url}}/v1"
{settings}'''
        },
        run=("codex", "exec", *own),
        resume=("codex", "exec", "resume", "--last", *own),
        shell=lambda command: ("exec_command", {"cmd": command}),
        lacks=lacks,
    )


CLIENTS: Final[Mapping[str, Client]] = {
    "Codex": codex(),
    "Codex, socket": codex("supports_websockets = true\n"),
    "opencode": Client(
        package="opencode-ai",
        door="chat",
        files={
            ".config/opencode/opencode.json": as_json(
                {
                    "model": f"sessile/{SIMULATED}",
                    "provider": {
                        "sessile": {
                            "npm": "@ai-sdk/openai-compatible",
                            "options": {"baseURL": "{url}/v1"},
                            "models": {SIMULATED: {}},
                        }
                    },
                }
            )
        },
        run=("opencode", "run", "--auto"),
        resume=("opencode", "run", "--auto", "--continue"),
        shell=lambda command: ("bash", {"command": command, "description": "Runs it"}),
        write=lambda path, text: ("write", {"filePath": path, "content": text}),
    ),
    "pi": Client(
        package="@mariozechner/pi-coding-agent",
        door="chat",
        files={
            ".pi/agent/models.json": as_json(
                {
                    "providers": {
                        "sessile": {
                            "baseUrl": "{url}/v1",
                            "api": "openai-completions",
                            "apiKey": "none",
                            "models": [{"id": SIMULATED}],
                        }
                    }
                }
            ),
            ".pi/agent/settings.json": as_json({"defaultProvider": "sessile", "defaultModel": SIMULATED}),
        },
        variables={"PI_OFFLINE": "1"},
        run=("pi", "-p"),
        resume=("pi", "-p", "--continue"),
        shell=lambda command: ("bash", {"command": command}),
        write=lambda path, text: ("write", {"path": path, "content": text}),
    ),
    "Qwen Code": Client(
        package="@qwen-code/qwen-code",
        door="chat",
        files={
            ".qwen/settings.json": as_json(
                {"security": {"auth": {"selectedType": "openai"}}, "privacy": {"usageStatisticsEnabled": False}}
            )
        },
        variables={"OPENAI_BASE_URL": "{url}/v1", "OPENAI_API_KEY": "none", "OPENAI_MODEL": SIMULATED},
        side="managed memory extraction subagent",
        reuse=0.95,
        why_less="when it resumes, its opening lists the working folder anew",
        run=("qwen", "--yolo"),
        resume=("qwen", "--yolo", "--continue"),
        shell=lambda command: ("run_shell_command", {"command": command, "is_background": False}),
        write=lambda path, text: ("write_file", {"file_path": path, "content": text}),
    ),
    "Cline": Client(
        package="cline",
        door="chat",
        files={
            ".cline/data/settings/providers.json": as_json(
                {
                    "version": 1,
                    "lastUsedProvider": "openai-compatible",
                    "providers": {
                        "openai-compatible": {
                            "settings": {
                                "provider": "openai-compatible",
                                "apiKey": "none",
                                "model": SIMULATED,
                                "baseUrl": "{url}/v1",
                            },
                            "updatedAt": "2026-01-01T00:00:00.000Z",
                            "tokenSource": "manual",
                        }
                    },
                }
            )
        },
        run=("cline", "--provider", "openai-compatible"),
        lacks={
            "two turns": "it resumes in its own terminal page alone",
            "restart": "it resumes in its own terminal page alone",
        },
        shell=lambda command: ("run_commands", {"commands": [command]}),
    ),
    "Continue": Client(
        package="@continuedev/cli",
        door="chat",
        files={
            ".continue/config.yaml": f"""name: Sessile
version: 1.0.0
schema: v1
models:
  - {{name: {SIMULATED}, provider: openai, model: {SIMULATED}, apiBase: "{{url}}/v1", apiKey: none}}
"""
        },
        variables={"CONTINUE_TELEMETRY_ENABLED": "0"},
        run=("cn", "--config", "{home}/.continue/config.yaml", "--auto", "-p"),
        resume=("cn", "--config", "{home}/.continue/config.yaml", "--auto", "--resume", "-p"),
        shell=lambda command: ("Bash", {"command": command}),
        write=lambda path, text: ("Write", {"filepath": path, "content": text}),
    ),
    "Claude Code": Client(
        package="@anthropic-ai/claude-code",
        door="messages",
        files={".claude/settings.json": as_json({"permissions": {"allow": ["Bash", "Write", "Edit"]}})},
        variables={
            "ANTHROPIC_BASE_URL": "{url}",
            "ANTHROPIC_API_KEY": "none",
            "ANTHROPIC_MODEL": SIMULATED,
            "ANTHROPIC_SMALL_FAST_MODEL": SIMULATED,
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        },
        run=("claude", "-p"),
        resume=("claude", "-p", "--continue"),
        shell=lambda command: ("Bash", {"command": command, "description": "Runs it"}),
        write=lambda path, text: ("Write", {"file_path": path, "content": text}),
    ),
    "aider": Client(
        package="aider-chat",
        door="chat",
        environment="clients-aider",
        files={
            ".aider.conf.yml": f"""model: openai/{SIMULATED}
openai-api-base: {{url}}/v1
openai-api-key: none
analytics-disable: true
"""
        },
        run=("aider", "--no-git", "--yes-always", "--no-show-model-warnings", "--no-check-update", "--message"),
        resume=(
            *("aider", "--no-git", "--yes-always", "--no-show-model-warnings", "--no-check-update"),
            *("--restore-chat-history", "--message"),
        ),
        edit=lambda path, text: f"Here it is.\n\n{Path(path).name}\n```\n{text}```\n",
        lacks={"invalid calls": "it calls no functions"},
        side="*Briefly* summarize this partial conversation",
        reuse=0.2,
        why_less="its instructions stand behind the history, which it sums up where it is long",
    ),
    "llm": Client(
        package="llm",
        door="chat",
        environment="clients",
        files={
            ".config/io.datasette.llm/extra-openai-models.yaml": f"""- model_id: {SIMULATED}
  model_name: {SIMULATED}
  api_base: {{url}}/v1
  supports_tools: true
"""
        },
        run=("llm", "-m", SIMULATED, "--functions", "{here}/programs/functions.py", "--cl", "0"),
        keeps_cancelled=False,
        resume=("llm", "-c", "--functions", "{here}/programs/functions.py", "--cl", "0"),
        shell=lambda command: ("run_command", {"command": command}),
        write=lambda path, text: ("write_file", {"path": path, "content": text}),
    ),
    "mini-swe-agent": Client(
        package="mini-swe-agent",
        door="chat",
        environment="clients-litellm",
        variables={
            "MSWEA_CONFIGURED": "true",
            "MSWEA_COST_TRACKING": "ignore_errors",
            "OPENAI_API_BASE": "{url}/v1",
            "OPENAI_API_KEY": "none",
        },
        run=("mini", "-m", f"openai/{SIMULATED}", "--yolo", "--exit-immediately", "-t"),
        shell=lambda command: ("bash", {"command": command}),
        final=lambda text: call("bash", {"command": f"echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT && echo '{text}'"}),
        lacks=dict.fromkeys(("two turns", "restart"), "it has one task a run"),
    ),
    "gptme": Client(
        package="gptme",
        door="chat",
        environment="clients",
        files={
            ".config/gptme/config.toml": f"""[env]
MODEL = "local/{SIMULATED}"
OPENAI_BASE_URL = "{{url}}/v1"
TOOL_FORMAT = "tool"
"""
        },
        run=("gptme", "--non-interactive", "--name", "one"),
        resume=("gptme", "--non-interactive", "--name", "one"),
        final=lambda text: f"{text}\n{call('complete', {})}",
        shell=lambda command: ("shell", {"command": command}),
        write=lambda path, text: ("save", {"path": path, "content": text}),
        lacks={"invalid calls": "it ends when the model calls a function that is not there"},
        why_less="it resends the words in front of a call with a line break behind them",
    ),
    "LiteLLM's proxy": program(
        "litellm",
        "chat",
        "litellm_proxy.py",
        "clients-litellm",
        files={
            "litellm.yaml": f"""model_list:
  - model_name: {SIMULATED}
    litellm_params: {{model: openai/{SIMULATED}, api_base: "{{url}}/v1", api_key: none}}
general_settings: {{master_key: sk-client}}
"""
        },
    ),
    "Open WebUI": Client(
        package="open-webui",
        door="chat",
        environment="clients-open-webui",
        variables={"OPENAI_API_BASE_URL": "{url}/v1", "WEBUI_AUTH": "False", "DATA_DIR": "{home}/data"},
        run=("node", "{here}/programs/open_webui.mjs"),
        resume=("node", "{here}/programs/open_webui.mjs", "--resume"),
        scenarios=("two turns", "built-in tools", "cancel", "restart", "thoughts"),
    ),
    "LangGraph": program("langgraph", "chat", "langgraph_agent.py"),
    "LangGraph, Responses": program("langgraph", "responses", "langgraph_agent.py"),
    "agno": program("agno", "chat", "agno_agent.py"),
    "agno, Responses": program(
        "agno",
        "responses",
        "agno_agent.py",
        reuse=0.98,
        why_less="it resends calls without the words in front of them",
    ),
    "CrewAI": program(
        "crewai",
        "chat",
        "crewai_agent.py",
        "clients-crewai",
        resume=None,
        lacks={
            **dict.fromkeys(("two turns", "restart"), "a crew has one task a run"),
            "cancel": "Ctrl-C does not end it while an answer streams",
        },
    ),
    "lm-evaluation-harness": Client(
        package="lm-eval",
        door="completions",
        environment="clients-lm-eval",
        variables={"HF_HUB_OFFLINE": "1"},
        run=(
            *("lm_eval", "run", "--model", "local-completions", "--tasks", "own", "--include_path", "{home}/work"),
            *("--log_samples", "--output_path", "{home}/work", "--model_args"),
        ),
        scenarios=("log-likelihoods",),
    ),
}
