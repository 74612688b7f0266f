"""Sentences that are planted where people and models write, and the search for them in every byte of files."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

WORDS = ("heron", "quarry", "lantern", "walnut", "cobalt", "meadow", "anchor", "saffron", "thistle", "ember")


def sentences(count: int) -> list[str]:
    """No two alike, and none that stands anywhere by chance."""
    return [
        f"the {WORDS[n % 10]} of planted {n:05} told the {WORDS[n // 10 % 10]} nothing about {WORDS[n // 100 % 10]}"
        for n in range(count)
    ]


def planted_numbers(texts: Iterable[bytes]) -> set[int]:
    """Which of `sentences` stand in these bytes, whole or in part, as they are or in UTF-16."""
    found: set[int] = set()
    for data in texts:
        for each in (data, data.replace(b"\0", b"")):
            found.update(int(number) for number in re.findall(rb"planted (\d{5})", each))
    return found


def files_under(folders: Sequence[Path]) -> list[bytes]:
    """The bytes of every file."""
    return [path.read_bytes() for folder in folders for path in sorted(folder.rglob("*")) if path.is_file()]
