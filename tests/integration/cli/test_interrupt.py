"""Ctrl-C while the server still loads its modules: a quick, quiet end; and none where a script has it ignored."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

import httpx
import pytest

from tests.support.doors.server_process import ROOT

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


@pytest.mark.parametrize("loaded", ["msgspec", "uvloop", "pydantic_core"])
def test_an_interrupt_while_modules_are_loaded_ends_the_start_quietly(tmp_path: Path, loaded: str) -> None:
    status, errors = interrupted(tmp_path, loaded, "serve", "--engine", "sim", "--port", "0")
    assert errors == ""
    assert status in (-signal.SIGINT, 130)


def test_an_interrupt_that_is_ignored_stays_so(tmp_path: Path) -> None:
    status, errors = interrupted(tmp_path, "msgspec", "audit", "verify", ignore=True)
    assert status == 2 and "there is no journal in this folder" in errors


def test_a_second_interrupt_ends_a_server_that_waits_for_its_answers(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "app.py"), "serve", "--port", "0", "--drain-s", "500", "--engine", "sim"]
    command += ["--sim-tokens-per-s", "1", "--sim-answer-tokens", "100000", "--log-format", "json"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None and server.stderr is not None
        address = server.stdout.readline().removeprefix("Sessile is ready: ").strip()
        with httpx.Client(base_url=address, timeout=60) as http:
            model = http.get("/v1/models").json()["data"][0]["id"]
            turn = {"model": model, "input": "a long story", "stream": True}
            with http.stream("POST", "/v1/responses", json=turn) as answer:
                next(answer.iter_lines())
                server.send_signal(signal.SIGINT)
                stopping = next(line for line in map(json.loads, server.stderr) if line["event"] == "stopping")
                server.send_signal(signal.SIGINT)
                server.wait(timeout=60)
    assert stopping["answers_s"] == 500 and "Ctrl-C" in stopping["hint"]
    assert server.returncode == -signal.SIGINT
