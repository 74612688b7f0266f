"""Reads values that a peer sent, leniently: a value of another type is as good as an absent one.

Where the protocol requires a type, ``_wire.integer`` and ``_wire.string`` refuse instead.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


def text_or_none(value: object) -> str | None:
    return value if isinstance(value, str) else None


def text_of(value: object) -> str:
    return value if isinstance(value, str) else ""


def number_or_none(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def number_of(value: object) -> int:
    return number_or_none(value) or 0


def mapping_of(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def dicts(value: object) -> Iterator[dict[str, Any]]:
    """The objects of a list; nothing if it is none."""
    if isinstance(value, list):
        yield from (entry for entry in value if isinstance(entry, dict))
