"""Reads the Dockerfile beside it: its instructions, what it takes of this checkout, and how its image is run."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Final, NamedTuple

DOCKERFILE: Final = Path(__file__).resolve().parent / "Dockerfile"
PACKAGES: Final = DOCKERFILE.parent / "packages.txt"


class ImageConfig(NamedTuple):
    """How the image is run, in the words of the OCI image specification."""

    user: str
    env: dict[str, str]
    workdir: str
    entrypoint: list[str]
    cmd: list[str]
    ports: list[str]
    volumes: list[str]
    stop_signal: str
    health: list[str]  # the command of HEALTHCHECK, which OCI has no word for


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


def image_config() -> ImageConfig:
    """Of the last stage."""
    stages = instructions()
    begun = max(number for number, (word, _) in enumerate(stages) if word == "FROM")
    last = stages[begun + 1 :]

    def value(name: str) -> str:
        return next(rest for word, rest in reversed(last) if word == name)

    env = dict(pair.split("=", 1) for word, rest in last if word == "ENV" for pair in shlex.split(rest))
    return ImageConfig(
        user=value("USER"),
        env=env,
        workdir=value("WORKDIR"),
        entrypoint=json.loads(value("ENTRYPOINT")),
        cmd=json.loads(value("CMD")),
        ports=value("EXPOSE").split(),
        volumes=value("VOLUME").split(),
        stop_signal=value("STOPSIGNAL"),
        health=json.loads(value("HEALTHCHECK").partition("CMD ")[2]),
    )


def debian_packages(variant: str) -> list[str]:
    """What the last stage takes from Debian: lines of packages.txt, some for one variant alone (`cuda: gcc`)."""
    found = []
    for line in PACKAGES.read_text().splitlines():
        of, colon, name = line.partition("#")[0].strip().rpartition(":")
        if name.strip() and (not colon or of == variant):
            found.append(name.strip())
    return found
