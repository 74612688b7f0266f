"""Starts of the server: what is said, what is loaded, interrupts, and the process's title."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from app import limits
from deploy.limit_services import open_limits
from inference.simulated import SimulatedEngine
from persistence.memory.store import MemoryStore
from sessions.metrics import Metrics
from sessions.model.types import TenantId
from testbed.server_process import ROOT
from transport.cli.settings import Settings

NO_MODEL = ("--model", "no-such-model.gguf")


def run(*words: str, cwd: Path = ROOT, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "app.py"), *words]
    variables = {name: value for name, value in os.environ.items() if not name.startswith("SESSILE_")}
    return subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, timeout=60, env={**variables, **environment}
    )


def refused(done: subprocess.CompletedProcess[str], sentence: str) -> None:
    assert done.returncode == 2 and not done.stdout, done.stdout
    assert re.fullmatch(rf"sessile: .*{sentence}.*\n", done.stderr), done.stderr


@pytest.mark.parametrize(
    ("role", "flag"),
    [
        ("serve", "--port"),
        pytest.param("serve", "--grpc-port", marks=pytest.mark.slow),
        pytest.param("serve", "--metrics-port", marks=pytest.mark.slow),
        pytest.param("gateway", "--port", marks=pytest.mark.slow),
        pytest.param("replica", "--peer-port", marks=pytest.mark.slow),
    ],
)
def test_a_taken_port_is_refused_before_the_model_is_loaded(role: str, flag: str, tmp_path: Path) -> None:
    cluster = (
        () if role == "serve" else ("--directory", "redis://127.0.0.1:1", "--journal", "postgresql://127.0.0.1:1/x")
    )
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        free = () if flag == "--port" else ("--port", "0")
        done = run(role, *free, flag, port, *cluster, *NO_MODEL, "--data", str(tmp_path / "data"))
    refused(done, f"port {port} of 127.0.0.1 is taken; .* with {flag}")


@pytest.mark.parametrize(
    ("flag", "value", "why"),
    [
        ("--tools", "none.toml", "tools = 'none.toml': No such file"),
        pytest.param("--embeddings", "none.toml", "embeddings = 'none.toml': No such file", marks=pytest.mark.slow),
        pytest.param("--usage-stream", "file:///x", "usage_stream: redis://.* are known", marks=pytest.mark.slow),
        pytest.param("--usage-stream-options", "a.toml", "usage_stream is not set", marks=pytest.mark.slow),
        pytest.param("--host", "0.0.0.0", "without keys only a loopback address", marks=pytest.mark.slow),
    ],
)
def test_a_setting_that_is_wrong_leaves_no_data_folder(flag: str, value: str, why: str, tmp_path: Path) -> None:
    refused(run("serve", "--engine", "sim", "--port", "0", flag, value, cwd=tmp_path), why)
    assert list(tmp_path.iterdir()) == []


def test_a_missing_model_is_named(tmp_path: Path) -> None:
    done = run("serve", "--port", "0", *NO_MODEL, "--data", str(tmp_path / "data"), "--log-level", "error")
    refused(done, "no-such-model.gguf.* does not exist.*--model")
    assert list(tmp_path.iterdir()) == []  # a start that was none leaves none of its folders
    done = run("serve", "--port", "0", "--model", "smollm2.135", "--data", str(tmp_path / "data"))
    refused(done, "smollm2-135m.* did you mean smollm2-135m")
    assert list(tmp_path.iterdir()) == []


def test_no_command_shows_what_there_is_with_status_2() -> None:
    for words in ((), ("keys",)):
        done = run(*words)
        assert done.returncode == 2 and "Usage: ./sessile" in done.stdout and not done.stderr
    done = run("chat", "--help")
    assert done.returncode == 0 and "--session ID" in done.stdout and "--key-file FILE" in done.stdout
    assert "--port" not in done.stdout and "Example: ./sessile chat" in done.stdout


def test_a_server_starts_from_any_folder_and_logs_json_where_nobody_looks(tmp_path: Path) -> None:
    command = [str(ROOT / "sessile"), "serve", "--engine", "sim", "--port", "0"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        assert server.stdout.readline().startswith("Sessile is ready: http://127.0.0.1:")
        server.send_signal(signal.SIGTERM)
        _, logged = server.communicate(timeout=60)
    assert server.returncode == 0 and (tmp_path / "data" / "journal.db").exists()
    assert logged and all(line.startswith("{") for line in logged.splitlines()), logged


@pytest.mark.parametrize(
    "words",
    [("models", "list"), *(pytest.param((word,), marks=pytest.mark.slow) for word in ("--help", "--version", "keys"))],
)
def test_output_that_nobody_takes_ends_a_command_as_it_ends_cat(words: tuple[str, ...]) -> None:
    command = [sys.executable, str(ROOT / "app.py"), *words]
    reader, writer = os.pipe()
    os.close(reader)
    try:
        gone = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=60)
    finally:
        os.close(writer)
    assert (gone.returncode, gone.stderr) == (141, "")
    with open("/dev/full", "w") as full:
        unwritten = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert unwritten.returncode == 1
    assert unwritten.stderr == "sessile: standard output cannot be written: No space left on device\n"


def test_an_interrupt_ends_a_command_that_waits_for_a_server(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        command = [sys.executable, str(ROOT / "app.py"), "encryption", "rotate", "--url", url]
        with subprocess.Popen(
            command, stderr=subprocess.PIPE, text=True, env={**os.environ, "SESSILE_API_KEY": "k"}
        ) as running:
            silent.settimeout(60)
            connection, _ = silent.accept()
            with connection:
                connection.recv(1)
                running.send_signal(signal.SIGINT)
                _, errors = running.communicate(timeout=60)
    assert (running.returncode, errors) == (130, "")


INTERRUPTED: Final = """
import importlib.abc, os, signal, sys
class Interrupt(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == {name!r}:
            sys.meta_path.remove(self)
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupt())
"""


def interrupted(folder: Path, loaded: str, *command: str, ignore: bool = False) -> tuple[int, str]:
    """The status and stderr of a command that gets SIGINT when it comes to loading a module of this name."""
    prepare: Callable[[], object] | None = (lambda: signal.signal(signal.SIGINT, signal.SIG_IGN)) if ignore else None
    (folder / "sitecustomize.py").write_text(INTERRUPTED.format(name=loaded))
    ran = subprocess.run(
        [sys.executable, str(ROOT / "app.py"), *command],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder)},
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=prepare,
        timeout=60,
    )
    return ran.returncode, ran.stderr


@pytest.mark.parametrize(
    "loaded", ["uvloop", *(pytest.param(each, marks=pytest.mark.slow) for each in ("msgspec", "starlette"))]
)
def test_an_interrupt_while_modules_are_loaded_ends_the_start_quietly(tmp_path: Path, loaded: str) -> None:
    status, errors = interrupted(tmp_path, loaded, "serve", "--engine", "sim", "--port", "0")
    assert errors == ""
    assert status in (-signal.SIGINT, 130)


def test_an_interrupt_that_is_ignored_stays_so(tmp_path: Path) -> None:
    status, errors = interrupted(tmp_path, "msgspec", "audit", "verify", ignore=True)
    assert status == 2 and "there is no journal in this folder" in errors


@contextmanager
def answering(folder: Path, drain_s: int) -> Iterator[tuple[subprocess.Popen[str], Iterator[str]]]:
    """A server that is told to stop while it streams an answer that ends in a day, and the answer's lines."""
    command = [
        sys.executable,
        str(ROOT / "app.py"),
        "serve",
        "--port",
        "0",
        "--drain-s",
        str(drain_s),
        "--engine",
        "sim",
    ]
    command += ["--sim-tokens-per-s", "1", "--sim-answer-tokens", "100000", "--log-format", "json"]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        address = server.stdout.readline().removeprefix("Sessile is ready: ").strip()
        with httpx.Client(base_url=address, timeout=60) as http:
            model = http.get("/v1/models").json()["data"][0]["id"]
            turn = {"model": model, "input": "a long story", "stream": True}
            with http.stream("POST", "/v1/responses", json=turn) as answer:
                lines = answer.iter_lines()
                next(lines)
                server.send_signal(signal.SIGINT)
                yield server, lines


def test_a_second_interrupt_ends_a_server_that_waits_for_its_answers(tmp_path: Path) -> None:
    with answering(tmp_path, drain_s=500) as (server, _):
        assert server.stderr is not None
        stopping = next(line for line in map(json.loads, server.stderr) if line["event"] == "stopping")
        server.send_signal(signal.SIGINT)
        server.wait(timeout=60)
    assert stopping["answers_s"] == 500 and "Ctrl-C" in stopping["hint"]
    assert server.returncode == -signal.SIGINT


def test_an_answer_that_outlasts_the_stop_ends_with_an_error(tmp_path: Path) -> None:
    """It was cut without a word, and its traceback stood in the log."""
    with answering(tmp_path, drain_s=1) as (server, lines):
        *_, last, _ = lines
        _, logged = server.communicate(timeout=60)
    assert '"code":"draining"' in last and server.returncode == 0
    assert "Traceback" not in logged and all(line.startswith("{") for line in logged.splitlines()), logged


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
import asyncio, atexit, sys, threading
run = asyncio.Runner.run
class Finder:
    late = set()
    def find_spec(self, name, path=None, target=None):
        if threading.current_thread() is threading.main_thread():
            self.late.add(name)
def noted(runner, *arguments, **options):
    sys.meta_path.insert(0, Finder())
    atexit.register(lambda: print("late", *sorted(Finder.late & set(sys.modules)), file=sys.stderr))
    return run(runner, *arguments, **options)
asyncio.Runner.run = noted
"""


def hooked_server(folder: Path, hook: str, *flags: str) -> subprocess.Popen[str]:
    """Starts a server in which `hook` runs before everything else."""
    (folder / "sitecustomize.py").write_text(hook)
    return subprocess.Popen(
        [sys.executable, str(ROOT / "app.py"), "serve", *flags, "--port", "0", "--data", "data"],
        cwd=folder,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "engine", [("--engine", "sim"), pytest.param(("--model", "smollm2-135m"), marks=pytest.mark.model)], ids=str
)
def test_a_server_loads_nothing_on_its_loop(engine: tuple[str, ...], tmp_path: Path) -> None:
    """Neither before it is ready nor with its first requests: what loads a module holds the loop up. Routes are loaded
    in threads."""
    with hooked_server(tmp_path, LATE, *engine) as server:
        try:
            assert server.stdout is not None
            (url,) = re.findall(r"ready: (\S+)/", server.stdout.readline())
            model, *_ = httpx.get(f"{url}/v1/models", timeout=60).json()["data"]
            body = {"model": model["id"], "max_tokens": 5, "messages": [{"role": "user", "content": "Hello!"}]}
            for path in ("/", "/healthz", "/metrics", "/v1/sessions", "/openapi.json"):
                assert httpx.get(url + path, timeout=60).status_code == 200
            assert httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60).status_code == 200
            server.terminate()
            _, errors = server.communicate(timeout=60)
        finally:
            server.kill()
    (late,) = (line.split()[1:] for line in errors.splitlines() if line.startswith("late"))
    assert late == []


READY = """
import builtins, sys
shown = builtins.print
def noted(*words, **options):
    shown(*words, **options)
    if str(words[0]).startswith("Sessile is ready"):
        shown("loaded", *sorted(sys.modules), file=sys.stderr, flush=True)
builtins.print = noted
"""
LOADED_LATER = (
    *("fastapi", "pydantic", "jwt", "httpx2", "grpc", "asyncpg", "redis", "jinja2", "confluent_kafka"),
    *("actors.directory.valkey", "actors.handoff", "actors.limits", "actors.replica", "actors.routing"),
    *("inference.image_fetcher", "inference.llama", "inference.moderation", "inference.remote", "inference.vllm"),
    *("inference.tools.tools_file", "inference.embedding.endpoint", "inference.models", "inference.chat_template"),
    *("persistence.memory", "persistence.postgres", "persistence.usage_stream", "persistence.at_rest.transit"),
    *("transport.anthropic", "transport.grpc_api", "transport.peer", "transport.auth.sign_in"),
    *("transport.http_api.app", "transport.http_api.routes", "transport.openai.request_models"),
    *("transport.push.credentials", "transport.push.door", "transport.retrieval.vector_store_models"),
    *("transport.ops.metrics_server", "deploy.commands.cluster", "deploy.commands.doctor", "deploy.planning"),
)


def test_a_server_is_ready_before_it_loads_rooms_that_its_settings_do_not_name(tmp_path: Path) -> None:
    with hooked_server(tmp_path, READY, "--engine", "sim") as server:
        try:
            assert server.stderr is not None
            loaded = next(line.split()[1:] for line in server.stderr if line.startswith("loaded "))
        finally:
            server.kill()
    assert "transport.http_api.server" in loaded
    assert [name for name in loaded if any(name == each or name.startswith(f"{each}.") for each in LOADED_LATER)] == []


def titles(limited: Any, **settings: Any) -> Callable[[TenantId], bool] | None:
    return limits(Settings(**settings), limited, SimulatedEngine(), Metrics()).actor.titles


@pytest.mark.parametrize(
    ("setting", "engine", "on"),
    [("auto", "llama", True), ("auto", "sim", False), ("model", "sim", True), ("off", "llama", False)],
)
def test_titles_are_on_by_setting_and_engine(setting: str, engine: str, on: bool) -> None:
    named = titles(None, titles=setting, engine=engine)
    assert (named is not None and named(TenantId("acme"))) is on


async def test_a_tenant_may_switch_titles_off(tmp_path: Path) -> None:
    path = tmp_path / "limits.toml"
    path.write_text("[tenants.acme]\ntitles = false\n")
    async with open_limits(str(path), "", MemoryStore().tallies) as limited:
        named = titles(limited, titles="model")
        assert named is not None
        assert [named(TenantId(tenant)) for tenant in ("acme", "beta")] == [False, True]
