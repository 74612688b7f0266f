"""The functions that these programs offer a model. Everything in this folder runs without Sessile's packages."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

URL = os.environ.get("SESSILE_TEST_URL", "") + "/v1"
MODEL = "simulated"
RESUMES, PROMPT = sys.argv[1:2] == ["--resume"], sys.argv[-1]
STATE = Path.home() / "state"


def run_command(command: str) -> str:
    """Runs a shell command and returns what it prints."""
    return subprocess.run(command, shell=True, capture_output=True, text=True).stdout


def write_file(path: str, content: str) -> str:
    """Writes a file."""
    Path(path).write_text(content)
    return f"{path} is written."
