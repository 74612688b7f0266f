"""Reads deploy/image/Dockerfile: its instructions, and what it takes of this checkout."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

DOCKERFILE: Final = Path(__file__).resolve().parents[2] / "deploy" / "image" / "Dockerfile"


def instructions() -> list[tuple[str, str]]:
    text = re.sub(r"^\s*#.*\n", "", DOCKERFILE.read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in text.splitlines()) if word]


def copied() -> list[str]:
    """What the image takes of this checkout."""
    return [
        source
        for word, rest in instructions()
        if word == "COPY" and not rest.startswith("--from")
        for source in rest.split()[:-1]
    ]
