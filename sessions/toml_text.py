"""Parses the text of a TOML file that people write. Every fault of it is a `tomllib.TOMLDecodeError`, which is a
ValueError: the standard library alone has a RecursionError for values that are nested too deeply."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from typing import Any


def parse_toml(text: str, *, parse_float: Callable[[str], Any] = float) -> dict[str, Any]:
    """Returns the tables of a text. Raises TOMLDecodeError."""
    try:
        return tomllib.loads(text, parse_float=parse_float)
    except RecursionError as error:
        raise tomllib.TOMLDecodeError("its values are nested too deeply") from error
