"""Runs the terminal chat of the Python client: `./sessile chat`. It reads its own options."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path


def run_chat(arguments: Sequence[str]) -> int:
    """Runs the terminal chat until it ends; returns its exit status."""
    sys.path.insert(0, str(Path(__file__).parents[2] / "clients" / "python"))
    from sessile_client import terminal

    return terminal.main(list(arguments))
