"""Each command loads what it needs and no more: which of the heavy parts are in memory when it ends.

A part that is not loaded takes no time, so nothing here is measured. Commands that are made like
another one are `slow`.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

ROOT = Path(__file__).resolve().parents[3]
SERVER = ("uvicorn", "starlette", "grpc", "transport.gateway", "actors.hosting", "inference.factory")
DATABASES = ("redis", "asyncpg", "persistence.sqlite", "persistence.postgres")
ENGINES = ("xllamacpp", "vllm", "torch", "spacy", "jinja2", "huggingface_hub", "inference.llama.engine")
LITTLE = ("structlog", "urllib.request", "cryptography", "sessions.machine")
REPORT = """
import atexit, sys
atexit.register(lambda: print("loaded", *sorted(sys.modules), file=sys.stderr))
"""


LIGHT = (*SERVER, *DATABASES, *ENGINES)
ON_A_FOLDER = (*SERVER, *ENGINES, "redis")
OF_A_CLUSTER = ("transport.gateway", "uvicorn", *ENGINES)
COMMANDS: list[tuple[str, tuple[str, ...]]] = [
    ("--help", (*LIGHT, *LITTLE)),
    ("serve --help", (*LIGHT, *LITTLE)),
    ("keys create --help", (*LIGHT, *LITTLE)),
    ("models list", LIGHT),
    ("keys list --url http://127.0.0.1:1", LIGHT),
    ("keys list --data nowhere", ON_A_FOLDER),
    ("plan --json", LIGHT),
    ("replicas --directory redis://127.0.0.1:1", OF_A_CLUSTER),
]
MADE_LIKE_THEM: list[tuple[str, tuple[str, ...]]] = [
    ("--version", (*LIGHT, *LITTLE)),
    ("srve", (*LIGHT, *LITTLE)),
    ("audit verify --url http://127.0.0.1:1", LIGHT),
    ("encryption status --url http://127.0.0.1:1", LIGHT),
    ("tokens list --url http://127.0.0.1:1", LIGHT),
    ("users export mary --url http://127.0.0.1:1", LIGHT),
    ("audit verify --data nowhere", ON_A_FOLDER),
    ("users erase mary --tenant acme --data nowhere", ON_A_FOLDER),
    ("usage reconcile --data nowhere", ON_A_FOLDER),
    ("restore --from nowhere", ON_A_FOLDER),
    ("doctor --directory redis://127.0.0.1:1", OF_A_CLUSTER),
]


@pytest.mark.parametrize(
    ("command", "not_loaded"),
    [*COMMANDS, *(pytest.param(*each, marks=pytest.mark.slow) for each in MADE_LIKE_THEM)],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_command_loads_only_what_it_needs(command: str, not_loaded: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(REPORT)
    done = subprocess.run(
        [sys.executable, str(ROOT / "app.py"), *command.split()],
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    (report,) = (line for line in done.stderr.splitlines() if line.startswith("loaded "))
    loaded = report.split()
    assert "transport.cli.commands" in loaded, done.stderr
    assert [name for name in loaded if any(name == each or name.startswith(f"{each}.") for each in not_loaded)] == []


LATE = """
import asyncio, atexit, sys
run = asyncio.Runner.run
def noted(runner, *arguments, **options):
    before = set(sys.modules)
    atexit.register(lambda: print("late", *sorted(set(sys.modules) - before), file=sys.stderr))
    return run(runner, *arguments, **options)
asyncio.Runner.run = noted
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "engine", [("--engine", "sim"), pytest.param(("--model", "smollm2-135m"), marks=pytest.mark.model)], ids=str
)
def test_a_server_loads_nothing_while_its_loop_runs(engine: tuple[str, ...], tmp_path: Path) -> None:
    """Neither before it is ready nor with its first requests: what loads a module holds the loop up."""
    (tmp_path / "sitecustomize.py").write_text(LATE)
    command = [sys.executable, str(ROOT / "app.py"), "serve", *engine, "--port", "0", "--data", str(tmp_path / "data")]
    with subprocess.Popen(
        command,
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as server:
        assert server.stdout is not None
        (url,) = re.findall(r"ready: (\S+)/", server.stdout.readline())
        (model,) = httpx.get(f"{url}/v1/models", timeout=60).json()["data"]
        body = {"model": model["id"], "max_tokens": 5, "messages": [{"role": "user", "content": "Hello!"}]}
        for path in ("/", "/healthz", "/metrics", "/v1/sessions", "/openapi.json"):
            assert httpx.get(url + path, timeout=60).status_code == 200
        assert httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60).status_code == 200
        server.terminate()
        _, errors = server.communicate(timeout=60)
    (late,) = (line.split()[1:] for line in errors.splitlines() if line.startswith("late"))
    assert late == []
