"""Ctrl-C while the server still loads its modules: a quick, quiet end; and none where a script has it ignored."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.doors.server_process import ROOT


def interrupted(folder: Path, loaded: str, *, ignore: bool = False) -> tuple[int, str]:
    """The status and stderr of a `--version` that gets SIGINT as soon as a library of this name is loaded."""
    prepare: Callable[[], object] | None = (lambda: signal.signal(signal.SIGINT, signal.SIG_IGN)) if ignore else None
    command = [sys.executable, str(ROOT / "app.py"), "--version"]
    with subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True, preexec_fn=prepare) as process:
        maps = Path(f"/proc/{process.pid}/maps")
        while process.poll() is None and loaded not in maps.read_text():
            pass
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
        return process.returncode, errors


@pytest.mark.parametrize("loaded", ["msgspec", "uvloop", "pydantic_core"])
def test_an_interrupt_while_modules_are_loaded_ends_the_start_quietly(tmp_path: Path, loaded: str) -> None:
    status, errors = interrupted(tmp_path, loaded)
    assert errors == ""
    assert status in (-signal.SIGINT, 130)


def test_an_interrupt_that_is_ignored_stays_so(tmp_path: Path) -> None:
    assert interrupted(tmp_path, "msgspec", ignore=True) == (0, "")
