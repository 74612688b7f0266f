"""What `--model` says: a path on this disk, or a model of a hub, `hf:ORG/REPO[@REVISION][:FILE]`.

Which files of a repository are the model is decided here too, from their names alone: llama.cpp reads one GGUF, in one
part or several; vLLM a folder with safetensors, configuration and tokenizer. Pickled weights are never taken: to read
them is to run them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, Literal

import msgspec

from sessions.model.errors import BadInput

Kind = Literal["gguf", "folder"]

HUB: Final = "hf:"
EXAMPLE: Final = "hf:ORG/REPO, or hf:ORG/REPO:FILE.gguf"
# Where a repository has several quantisations and none is named: about the best for its size first.
QUANTISATIONS: Final = ("Q4_K_M", "Q4_K_S", "Q4_0", "Q5_K_M", "Q4_1", "Q6_K", "Q8_0", "BF16", "F16", "F32")
TEMPLATE_FILES: Final = ("chat_template.jinja", "tokenizer_config.json")

NAME_BYTES_MAX: Final = 200  # file systems take 255, and a pull appends to it

_NAME: Final = r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}"
_REFERENCE: Final = re.compile(rf"({_NAME}/{_NAME})(?:@([A-Za-z0-9._/-]+))?(?::(.+))?")
_PART: Final = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$", re.IGNORECASE)
_FOLDER_FILES: Final = re.compile(r"[^/]+\.(safetensors|json|model|jinja|txt)")


class HubModel(msgspec.Struct, frozen=True):
    """A model in a repository of a hub."""

    repo: str
    revision: str = "main"
    file: str = ""  # its name, or a quantisation that is part of it; "": chosen

    def __str__(self) -> str:
        revision = "" if self.revision == "main" else f"@{self.revision}"
        return f"{HUB}{self.repo}{revision}{':' if self.file else ''}{self.file}"


class RepoFile(msgspec.Struct, frozen=True):
    """A file of a repository, with its size and hash."""

    name: str
    size: int
    sha256: str = ""
    git_sha1: str = ""  # set for files that are not in large-file storage


def parse_reference(text: str) -> HubModel | None:
    """Returns the hub's model that a setting names; None for a path. Raises BadInput."""
    if not text.startswith(HUB):
        return None
    match = _REFERENCE.fullmatch(text.removeprefix(HUB))
    if match is None or ".." in text:
        raise BadInput("invalid_setting", f"model = {text!r}: a model of a hub is written {EXAMPLE}.", param="model")
    return HubModel(match[1], match[2] or "main", match[3] or "")


def choose_files(model: HubModel, files: Sequence[RepoFile], kind: Kind) -> list[RepoFile]:
    """Returns the files to pull; the engine loads the first one. Raises BadInput, which says what the repository has
    instead."""
    safe = [file for file in files if is_safe(file.name)]
    chosen = _gguf(model, safe) if kind == "gguf" else _folder(model, safe)
    names = {file.name for file in chosen}
    return chosen + [file for file in safe if file.name in TEMPLATE_FILES and file.name not in names]


def is_safe(name: str) -> bool:
    """Returns whether a file's name, which the hub chose, stays below its folder and holds no control characters for a
    terminal."""
    parts = name.split("/")
    short = all(len(part.encode()) <= NAME_BYTES_MAX for part in parts) if name.isprintable() else False
    return short and "\\" not in name and not {"", ".", ".."} & set(parts)


def _gguf(model: HubModel, files: Sequence[RepoFile]) -> list[RepoFile]:
    ggufs = sorted((f for f in files if f.name.lower().endswith(".gguf")), key=lambda f: f.name)
    models = [f for f in ggufs if "mmproj" not in f.name.lower()]
    firsts = [f for f in models if (part := _PART.search(f.name)) is None or int(part[1]) == 1]
    if not firsts:
        raise _refused(
            model, "has no GGUF file, which llama.cpp needs. Name a repository with GGUF files, or use --engine vllm"
        )
    if model.file:
        first = next((f for f in firsts if f.name == model.file), None) or _quantised(model, firsts)
    else:
        ranked = (_of_quantisation(firsts, quantisation) for quantisation in QUANTISATIONS)
        first = next((found[0] for found in ranked if found), firsts[0])
    part = _PART.search(first.name)
    if part is None:
        return [first]
    stem = first.name[: part.start()]
    parts = [f for f in models if f.name.startswith(stem) and (p := _PART.search(f.name)) and p.start() == len(stem)]
    if len(parts) != int(part[2]):
        raise _refused(model, f"has {len(parts)} of the {int(part[2])} parts of {first.name}")
    return parts


def _quantised(model: HubModel, firsts: Sequence[RepoFile]) -> RepoFile:
    found = _of_quantisation(firsts, model.file)
    if len(found) != 1:
        names = ", ".join(f.name for f in (found or firsts)[:12])
        why = "has several such files" if found else f"has no file {model.file!r}"
        raise _refused(model, f"{why}. Name one of {names}")
    return found[0]


def _of_quantisation(firsts: Sequence[RepoFile], name: str) -> list[RepoFile]:
    mark = re.compile(rf"(?<![A-Za-z0-9]){re.escape(name)}(?![A-Za-z0-9_])", re.IGNORECASE)
    return [f for f in firsts if mark.search(f.name)]


def _folder(model: HubModel, files: Sequence[RepoFile]) -> list[RepoFile]:
    if model.file:
        raise _refused(model, "is pulled as a folder for vLLM: leave the file out")
    chosen = sorted((f for f in files if _FOLDER_FILES.fullmatch(f.name)), key=lambda f: f.name)
    names = {f.name for f in chosen}
    if "config.json" not in names or not any(name.endswith(".safetensors") for name in names):
        has = "GGUF files only; use --engine llama" if any(f.name.endswith(".gguf") for f in files) else "none"
        raise _refused(model, f"is no model for vLLM, which needs config.json and *.safetensors: it has {has}")
    return chosen


def _refused(model: HubModel, why: str) -> BadInput:
    return BadInput("bad_model", f"{HUB}{model.repo} {why}.", param="model")
