"""Finds the environment that the server's packages are in, and goes on in it.

Runs on the bare standard library: whoever starts `app.py` may do so with any Python, which need not know our packages.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("cyclopts", "msgspec", "structlog")  # one that is missing means that more may be


def enter_environment(root: Path = ROOT) -> None:
    """Returns where this Python has our packages; otherwise runs the same command again with `.venv`'s, or exits with
    a sentence that says how to make it."""
    if all(importlib.util.find_spec(each) is not None for each in PACKAGES):
        return
    environment = root / ".venv"
    python = environment / "bin" / "python"
    try:
        there = python.exists()
    except PermissionError:
        _refuse(
            f"this user may not read {environment}: give it that right, or make an environment in a checkout of its own"
        )
    if not there:
        _refuse(f"there is no environment yet: make it with `make setup` in {root}")
    if Path(sys.prefix).resolve() == environment.resolve():
        _refuse(f"{environment} lacks packages: complete it with `make setup` in {root}")
    os.execv(python, [str(python), *sys.orig_argv[1:]])


def _refuse(why: str) -> NoReturn:
    print(f"sessile: {why}", file=sys.stderr)
    raise SystemExit(2)
