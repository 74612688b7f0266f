"""Shows, pulls and removes models.

A model of Hugging Face's hub is written hf:ORG/REPO, with :FILE (or :Q8_0, a quantisation) where the repository has
several GGUF files and @REVISION for another branch or commit. `serve --model hf:ORG/REPO` pulls it too where it is not
there yet. HF_ENDPOINT names a mirror, HF_TOKEN is for models with terms, HF_HUB_OFFLINE=1 keeps off the network.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated, Final, NamedTuple, TextIO

import msgspec

from transport.cli.plain_text import plain
from transport.cli.shared_flags import Json, table, text

MODEL: Final = "hf:ORG/REPO[@REVISION][:FILE], or the name of a model that packages ship"
WIDTH: Final = 24  # of a bar


class ListModels(msgspec.Struct, frozen=True, kw_only=True):
    """Lists the models that are on this machine, and those that packages ship."""

    as_json: Json = False


class PullModel(msgspec.Struct, frozen=True):
    """Fetches a model, or its newer version; an interrupted pull continues where it stopped."""

    reference: Annotated[str, text("MODEL", MODEL)]


class RemoveModel(msgspec.Struct, frozen=True):
    """Removes a pulled model from this machine, and what an interrupted pull has left."""

    reference: Annotated[str, text("MODEL", MODEL)]


ModelCommand = ListModels | PullModel | RemoveModel


class ModelRow(NamedTuple):
    """A model as `models list` shows it."""

    name: str  # as --model takes it
    size_bytes: int
    licence: str
    where: str  # its path; empty if it is not on this machine


def format_models(rows: Sequence[ModelRow], *, as_json: bool) -> str:
    if as_json:
        return msgspec.json.encode([row._asdict() for row in rows]).decode()
    cells = [
        (row.name, f"{row.size_bytes / 1e6:,.0f} MB", row.licence or "not named", row.where or "not fetched yet")
        for row in rows
    ]
    return table([("model", "size", "licence", "where"), *cells])


class ProgressLine:
    """Shows a download: a bar that is redrawn on a terminal; elsewhere a line for every tenth of a file."""

    def __init__(self, out: TextIO = sys.stderr) -> None:
        self._out = out
        self._drawn = ("", -1)

    def __call__(self, file: str, done: int, total: int) -> None:
        terminal = self._out.isatty()
        part = done / total if total else 1.0
        step = int(part * (200 if terminal else 10))
        if self._drawn == (file, step):
            return
        if terminal and self._drawn[0] not in ("", file):
            self._out.write("\n")
        self._drawn = (file, step)
        bar = "#" * int(part * WIDTH)
        line = f"{plain(file)}  {part:4.0%}  {done / 1e6:,.0f} of {total / 1e6:,.0f} MB"
        self._out.write(f"\r[{bar:<{WIDTH}}] {line}" if terminal else f"{line}\n")
        self._out.flush()

    def end(self) -> None:
        if self._out.isatty() and self._drawn[0]:
            self._out.write("\n")
