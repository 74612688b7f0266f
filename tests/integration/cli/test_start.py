"""Starting as people do: what cannot work is one sentence at once, before a model is looked for."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
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
        ("replica", "--peer-port"),
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


def test_a_missing_model_is_named(tmp_path: Path) -> None:
    done = run("serve", "--port", "0", *NO_MODEL, "--data", str(tmp_path / "data"), "--log-level", "error")
    refused(done, "no-such-model.gguf.* does not exist.*--model")
    assert list(tmp_path.iterdir()) == []  # a start that was none leaves none of its folders
    done = run("serve", "--port", "0", "--model", "smollm2.135", "--data", str(tmp_path / "data"))
    refused(done, "smollm2-135m.* did you mean smollm2-135m")
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_variable_is_refused_as_an_unknown_key_is(tmp_path: Path) -> None:
    refused(run("serve", SESSILE_PROT="1"), "SESSILE_PROT is not a setting; the nearest is SESSILE_PORT")
    (tmp_path / "settings.toml").write_text("prot = 1\n")
    done = run("serve", "--config", str(tmp_path / "settings.toml"))
    refused(done, "prot .* is not a setting; the nearest is port")


def test_no_command_shows_what_there_is_with_status_2() -> None:
    for words in ((), ("keys",)):
        done = run(*words)
        assert done.returncode == 2 and "Usage: ./sessile" in done.stdout and not done.stderr
    assert run("serve", "--help").returncode == 0


def test_chat_shows_its_own_options() -> None:
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
