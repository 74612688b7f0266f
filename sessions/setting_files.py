"""Reads the files of settings that people write: parses TOML, and says what is wrong with a file."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from typing import Any


def parse_toml(text: str, *, parse_float: Callable[[str], Any] = float) -> dict[str, Any]:
    """Returns the tables of a text. Raises TOMLDecodeError, a ValueError, also for values that are nested too deeply:
    of those the standard library alone makes a RecursionError."""
    try:
        return tomllib.loads(text, parse_float=parse_float)
    except RecursionError as error:
        raise tomllib.TOMLDecodeError("its values are nested too deeply") from error


def reason(error: Exception) -> str:
    """Returns what is wrong with a file, without its path and without the number of a system's error."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
