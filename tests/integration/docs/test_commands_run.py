"""Commands of the documents, run for real: on a data folder of their own, against a server and against a cluster.

Each is taken from the pages as it stands there; only ports, folders and the model are other ones. What is too large to
run here is checked by its options (`tests/unit/docs/test_commands.py`).
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.documented_commands import ROOT, documented, split

COMMANDS = {entry.command for entry in documented()}
MAKE = sorted(command for command in COMMANDS if command.startswith("make "))
UNDER_WAY = 3  # the status of an erasure that the server is to finish
OFFLINE = [  # in this order on one data folder, with what each prints and its status
    ("./sessile keys create --tenant acme --role operator --label me", "sk-sessile-", 0),
    ("./sessile audit list --tenant acme --last 20", "key.created", 0),
    ("./sessile audit verify", "acme", 0),
    ("./sessile users export mary --tenant acme --out mary.jsonl", "", 0),
    ("./sessile users erase mary --tenant acme", "", UNDER_WAY),
    ("./sessile usage reconcile", "", 0),
    ("./sessile models list", "smollm2-135m", 0),
]
SERVE = 'make serve PORT=9000 ARGS="--data DIR --engine sim"'
CLUSTER = 'make cluster PORT=9000 ARGS="--engine sim"'
OPERATOR = [
    ("./sessile replicas", "replica-1"),
    ("./sessile sessions --limit 20", "sessions in memory"),
    ("./sessile drain replica-2", "replica-2"),
    ("./sessile undrain replica-2", "replica-2 takes sessions again"),
]


def environment(**more: str) -> dict[str, str]:
    ours = {name: value for name, value in os.environ.items() if not name.startswith("SESSILE_")}
    return ours | more


def words_of(command: str) -> list[str]:
    """The words of a command that some page names."""
    assert shlex.join(split(command)) in COMMANDS, f"no page names {command}"
    return split(command)


def run(command: str, folder: Path, *more: str, status: int = 0, lines: str = "", **variables: str) -> str:
    """What a documented command prints, run in a folder; it has to end with the status."""
    words = [str(ROOT / "sessile") if word == "./sessile" else word for word in words_of(command)]
    done = subprocess.run(
        [*words, *more],
        cwd=folder,
        env=environment(**variables),
        input=lines,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == status, done.stderr
    return done.stdout


def made(command: str, **replaced: str) -> list[str]:
    """The program that a `make` command begins, by a dry run, with other words in it."""
    done = subprocess.run(["make", "-n", *words_of(command)[1:]], cwd=ROOT, capture_output=True, text=True, timeout=60)
    line = next(line for line in reversed(done.stdout.splitlines()) if line.startswith("exec "))
    return [replaced.get(word, word) for word in shlex.split(line)[1:]]


@contextmanager
def running(program: list[str], ready: str) -> Iterator[str]:
    """Yields the output of a program up to its being ready, and ends it behind the block."""
    with subprocess.Popen(program, cwd=ROOT, env=environment(), stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            printed = ""
            for line in process.stdout:
                printed += line
                if ready in line:
                    break
            assert ready in printed, printed
            yield printed
        finally:
            process.terminate()
            process.wait(60)


@pytest.mark.parametrize("command", MAKE)
def test_make_knows_what_to_do(command: str) -> None:
    done = subprocess.run(["make", "-n", *split(command)[1:]], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_commands_on_a_data_folder(tmp_path: Path) -> None:
    for command, printed, status in OFFLINE:
        assert printed in run(command, tmp_path, status=status, SESSILE_DATA=str(tmp_path / "data")), command
    assert "user.exported" in (tmp_path / "mary.jsonl").read_text()


@pytest.mark.slow
def test_commands_against_a_server(tmp_path: Path) -> None:
    program = made(SERVE, **{"9000": "0", "DIR": str(tmp_path / "data")})
    with running(program, "Sessile is ready: ") as printed:
        url = re.findall(r"Sessile is ready: (\S+)/", printed)[0]
        request = next(each for each in COMMANDS if each.startswith("curl ") and "/v1/chat/completions" in each)
        words = [word.replace("http://127.0.0.1:8080", url) for word in split(request)]
        words = [re.sub(r'"model": "[^"]+"', '"model": "simulated"', word) for word in words]
        answer = subprocess.run([*words, "--silent"], capture_output=True, text=True, timeout=60).stdout
        assert '"object":"chat.completion"' in answer.replace(" ", "")
        socket = url.replace("http", "ws") + "/v1/ws"
        assert run("./sessile chat", tmp_path, "--url", socket, lines="Hello!\n")


@pytest.mark.cluster
@pytest.mark.slow
def test_commands_against_a_cluster(tmp_path: Path) -> None:
    program = made(CLUSTER, **{"9000": "0"})
    cut = program.index("--")
    # Beside pytest's folders: another session of tests closes those to PostgreSQL's account when it begins.
    with tempfile.TemporaryDirectory(prefix="sessile-commands-") as folder:
        Path(folder).chmod(0o755)
        program[cut:cut] = ["--data", f"{folder}/cluster", "--gateways", "1", "--replicas", "2"]
        _run_operators_commands(program, tmp_path)


def _run_operators_commands(program: list[str], tmp_path: Path) -> None:
    with running(program, "The cluster is ready") as printed:
        filled_in = re.findall(r"--config \S+", printed)
        assert len(filled_in) == 1
        for command, shown in OPERATOR:
            assert shown in run(command, tmp_path, *" ".join(filled_in).split()), command
